"""The instruction of a chat model: the role, the answer format, the game's rules and examples.

`short` explains the format; rules and examples are in it if they are configured. `terse` explains
nothing, for models that are fitted to the format. `published` is RLVR-World's
(`published_prompt.py`). Examples come from a game that is used for nothing else.
    prompt(world)
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar, Protocol

from terrella.core.types import show_text
from terrella.worlds.bytesized32.published_prompt import published_prompt
from terrella.worlds.bytesized32.records import Record
from terrella.worlds.bytesized32.rules import load_rules, rules_of
from terrella.worlds.bytesized32.sources import load_records
from terrella.worlds.bytesized32.splits import EXAMPLE_GAME

ROLES = {
    "full": "Predict the state after the action and after the game's own next tick, and the score.",
    "action": "Predict the state right after the action, before the game's own next tick.",
    "tick": "The action was carried out. Predict the state after the game's own next tick.",
    "score": (
        "The action and the tick were carried out. "
        "Predict the score, and whether the game is over or won."
    ),
}


TERSE = "Say what changes in this text game."


class PromptedGame(Protocol):
    """What the prompt needs of the world."""

    rules: ClassVar[str]
    config: Any
    view: Any
    record: Record


def prompt(world: PromptedGame) -> str:
    """The complete instruction for the current record."""
    if world.config.prompt == "terse":
        return TERSE
    if world.config.prompt == "published":
        return published_prompt(world)
    parts = [world.rules, ROLES[world.config.asked], *_answer_format(world), _task(world.record)]
    parts += _rules(world.config.rules_folder, world.record.game) + _examples(world)
    return "\n".join(part for part in parts if part)


def _answer_format(world: PromptedGame) -> list[str]:
    view = world.view
    if world.config.answer == "difference":
        return [view.legend]
    if view.name == "compact":  # its `whole_legend` refers to the notation in `legend`
        return [view.legend, view.whole_legend]
    return [view.whole_legend]


def _task(record: Record) -> str:
    return f"Game: {record.state.task} New objects are numbered from {record.state.max_uuid}."


def _rules(folder: Path | None, game: str) -> list[str]:
    if folder is None:
        return []
    rules = rules_of(load_rules(folder), game)
    return [f"Rules of {kind}s:\n{text}" for kind, text in rules.items()]


def _examples(world: PromptedGame) -> list[str]:
    """Worked examples in the view and answer format of the world."""
    config = world.config
    if not config.examples:
        return []
    examples = []
    for record in example_records(config.path)[: config.examples]:
        before, after = record.before_and_after(config.asked)
        state = show_text(world.view.state(record.game, before))
        whole = config.answer == "whole"
        answer = show_text(world.view.answer(record.game, before, after, whole=whole))
        examples.append(f"Example state:\n{state}\nAction: {record.action}\nReply:\n{answer}")
    return examples


@functools.lru_cache(maxsize=2)
def example_records(path: Path | None) -> tuple[Record, ...]:
    """One record with an effect per action verb of the example game.

    Empty if the data do not have that game (as in the generated sample).
    """
    records = [
        record
        for record in load_records(path)
        if record.game == EXAMPLE_GAME and record.act.modified
    ]
    return tuple({record.action.split()[0]: record for record in reversed(records)}.values())
