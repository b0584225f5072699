"""A store of recorded steps on made-up pages: typing a word into a field, then sending it."""

from pathlib import Path

from tests.support.made_episodes import made

from terrella.core.run_folder import check_spec
from terrella.core.types import Tree
from terrella.data import store
from terrella.data.parts import encode_part


def page(number: int, lines: int = 0) -> str:
    """A form; `lines` elements follow it."""
    rest = "".join(f'\n[{4 + n}] link "Item {n}"' for n in range(lines))
    return f'[1] task "Enter {number}."\n[2] textbox ""\n[3] button "Submit"{rest}'


def write_pages(folder: Path, count: int, lines: int = 0, more: str = "") -> Path:
    """Two steps an episode; the second is a success. `more` is written below each page."""
    folder.mkdir(parents=True)
    episodes = []
    for number in range(count):
        empty = page(number, lines) + more
        typed = empty.replace('textbox ""', f'textbox "" focused value="{number}"')
        sent = typed.replace('"Submit"', '"Sent"')
        pages = [Tree(empty), Tree(typed), Tree(sent)]
        episodes.append(made("pages", pages, [f"type 2 {number}", "click 3"], seed=number))
    spec = check_spec(folder, {"config": {"seed": 1}})
    part = store.write_part(folder, encode_part(episodes, 0, spec))
    store.finish(folder, [part], {"target": {"episodes": count}})
    return folder
