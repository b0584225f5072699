"""The rules of the games in words: of objects, of actions and of the score.

They are the official files of the GPT-simulator repository (`rules/human_written_rules`), one text
per game and kind. They are not shipped; the generated sample has rules of its own.
    rules_of(load_rules(folder), "boil-water")["action"]
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from terrella.core.errors import StoreError, WorldError
from terrella.core.untrusted import read_json
from terrella.worlds.bytesized32.sample import ITEMS, SAMPLE_RULES
from terrella.worlds.bytesized32.sources import data_folder

RULE_KINDS = ("object", "action", "score")
RULES_REMEDY = (
    "give the folder rules/human_written_rules of the GPT-simulator repository "
    "(--set world.rules_folder=FOLDER), or put its three files beside the games"
)
Rules = Mapping[str, Mapping[str, Any]]
"""Kind -> game -> rules."""


def find_rules(rules_folder: Path | None, path: Path | None) -> Rules:
    """The rules in their own folder, beside the games, or of the sample.

    Raises:
        WorldError: There are games without rules.
    """
    games = data_folder(path)
    if rules_folder is None and games is None:
        return {kind: dict.fromkeys(ITEMS, text) for kind, text in SAMPLE_RULES.items()}
    folder = rules_folder or games
    assert folder is not None
    return load_rules(folder)


def load_rules(folder: Path) -> Rules:
    """The three files of a folder."""
    return {kind: _load(folder / f"{kind}_rules.json") for kind in RULE_KINDS}


@functools.lru_cache(maxsize=8)
def _load(path: Path) -> Mapping[str, Any]:
    try:
        return dict(read_json(path))
    except (StoreError, TypeError, ValueError) as error:
        raise WorldError("bytesized32", f"{path} cannot be read: {error}", RULES_REMEDY) from error


def rules_of(rules: Rules, game: str) -> dict[str, str]:
    """The rules of one game by kind; kinds that have none for it are left out."""
    found = {kind: _text(rules[kind].get(game, "")) for kind in RULE_KINDS}
    return {kind: text for kind, text in found.items() if text}


def _text(rules: Any) -> str:
    if isinstance(rules, str):
        return rules.strip()
    lines = rules.values() if isinstance(rules, dict) else rules
    return "\n".join(map(str, lines))
