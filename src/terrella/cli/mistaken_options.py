"""A setting that was given as an option, and how it is given: `--steps 5` is `--set rlvr.steps=5`.

as_settings(["rlvr", "tiny_counter", "--steps", "5"])  ->  ["--set rlvr.steps=5"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from terrella.core.config import dump
from terrella.core.errors import TerrellaError

WITH_RECIPES = ("launch", "reproduce", "rlvr", "train-world-model")
MOST = 3
"""Settings of one name that are suggested, the least nested first."""


def as_settings(words: Sequence[str]) -> list[str]:
    """What to write in place of the options that name a setting of the recipe."""
    from terrella.recipes import find_recipe

    if len(words) < 3 or words[0] not in WITH_RECIPES:
        return []
    try:
        config = dump(find_recipe(words[1])())
    except (TerrellaError, AttributeError):  # no recipe's name, or it returns no config
        return []
    paths = list(_paths(config))
    suggested = []
    for number, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            continue
        after = words[number + 1 : number + 2]
        given = value if equals else next((each for each in after if each[:2] != "--"), "VALUE")
        found = [path for path in paths if path[-1] == name.replace("-", "_")]
        for path in sorted(found, key=len)[:MOST]:
            suggested.append(f"--set {'.'.join(path)}={given}")
    return suggested


def _paths(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all settings, as `--set` names them."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _paths(value, (*above, name))
        elif name not in ("class", "out"):  # --out is an option
            yield (*above, name)
