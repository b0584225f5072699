"""`terrella import KIND SOURCE`: foreign data into the stores of terrella, by kind."""

from terrella.pipelines.import_data.base import Importer
from terrella.pipelines.import_data.chats import ImportChats
from terrella.pipelines.import_data.episodes import ImportLeRobot, ImportRlds, ImportTraces
from terrella.pipelines.import_data.games import ImportGames

IMPORTERS: dict[str, type[Importer]] = {
    "rlds": ImportRlds,
    "lerobot": ImportLeRobot,
    "webrl": ImportTraces,
    "cot": ImportChats,
    "bytesized32": ImportGames,
}
"""What `terrella import` reads, by the name of the kind."""
