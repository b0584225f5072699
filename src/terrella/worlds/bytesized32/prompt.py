"""What a chat model is told before a question: role, form of the answer, the game's rules, worked examples.

Rules are the official files of the GPT-simulator repository (`rules/human_written_rules`), one text per game; without
the folder they are left out. Examples come from the one game that is never asked.
    prompt(world)
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from terrella.core.errors import WorldError
from terrella.core.types import show_text
from terrella.worlds.bytesized32.records import Record
from terrella.worlds.bytesized32.sources import load_records
from terrella.worlds.bytesized32.splits import EXAMPLE_GAME

if TYPE_CHECKING:
    from terrella.worlds.bytesized32.env import ByteSized32

ROLES = {
    "full": "Predict the state after the action and after the game's own next tick, and the score.",
    "action": "Predict the state right after the action, before the game's own next tick.",
    "tick": "The action was carried out. Predict the state after the game's own next tick.",
    "score": "The action and the tick were carried out. Predict the score, and whether the game is over or won.",
}
RULES_REMEDY = "give the folder rules/human_written_rules of the GPT-simulator repository"
KINDS = ("object", "action", "score")


def prompt(world: ByteSized32) -> str:
    """The whole instruction."""
    config, view = world.config, world.view
    form = view.legend if config.answer == "difference" or view.name == "compact" else view.whole_legend
    more = view.whole_legend if config.answer == "whole" and view.name == "compact" else ""
    parts = [world.rules, ROLES[config.asked], form, more, _task(world.record)]
    parts += _rules(config.rules_folder, world.record.game) + _examples(world)
    return "\n".join(part for part in parts if part)


def _task(record: Record) -> str:
    return f"Game: {record.state.task} New objects are numbered from {record.state.max_uuid}."


def _rules(folder: Path | None, game: str) -> list[str]:
    if folder is None:
        return []
    told = [(kind, _load_rules(folder / f"{kind}_rules.json").get(game, "")) for kind in KINDS]
    return [f"Rules of {kind}s:\n{_text(rules)}" for kind, rules in told if rules]


@functools.lru_cache(maxsize=8)
def _load_rules(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise WorldError("bytesized32", f"{file} cannot be read: {error}", RULES_REMEDY) from error


def _text(rules: Any) -> str:
    if isinstance(rules, str):
        return rules
    lines = rules.values() if isinstance(rules, dict) else rules
    return "\n".join(map(str, lines))


def _examples(world: ByteSized32) -> list[str]:
    """The first rows of the example game in which something changes, in the view and form that is asked."""
    config = world.config
    if not config.examples:
        return []
    found = []
    for row in example_rows(config.path)[: config.examples]:
        before, after = row.question(config.asked)
        seen = show_text(world.view.state(row.game, before))
        answer = show_text(world.view.answer(row.game, before, after, whole=config.answer == "whole"))
        found.append(f"Example state:\n{seen}\nAction: {row.action}\nReply:\n{answer}")
    return found


@functools.lru_cache(maxsize=2)
def example_rows(path: Path | None) -> tuple[Record, ...]:
    """One row per action verb of the example game; without that game (as in the made sample), none."""
    rows = [row for row in load_records(path) if row.game == EXAMPLE_GAME and row.act.modified]
    return tuple({row.action.split()[0]: row for row in reversed(rows)}.values())
