"""The prompt that RLVR-World published for state differences, in its order and wording.

Role and answer format; the example game with its rules and two worked examples, one where an action
changes the state and one where time does; then the game that is asked about, with its rules. The
codec adds the state, the action and how to mark the answer. Departures: states are JSON (published:
Python's notation), and the doubled sentence about time is given once.
    published_prompt(world)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from terrella.core.types import show_text
from terrella.worlds.bytesized32.records import Patch, Record
from terrella.worlds.bytesized32.rules import Rules, find_rules, rules_of
from terrella.worlds.bytesized32.sources import load_records
from terrella.worlds.bytesized32.splits import EXAMPLE_GAME

ROLE = (
    "You are a simulator of a text game. Read the task description and the current environment "
    "observation description. Given the current game state in JSON, you need to decide the new "
    "game state after taking an action. Your response should be in the JSON format. It should have "
    "three keys: 'modified', 'removed', and 'score'. The 'modified' key stores a list of all the "
    "object states that are added or changed after taking the action. Keep it an empty list if no "
    "object is added or modified. The 'removed' key stores a list of uuids of the objects that are "
    "removed. Keep it an empty list if no object is removed. The 'score' key stores a dictionary "
    "with three keys: 'score' is the current game score, 'gameOver' is a boolean of whether the "
    "game is over, and 'gameWon' is a boolean of whether the agent won the game. If a player earns "
    "a score or wins/loses the game, you should reflect that change in the dictionary saved under "
    "the 'score' key. Otherwise, you should set value of the 'score' key to an empty dictionary. "
    "Note that while game states can be changed by actions, some game states may change over the "
    "time, which is described in the tick function of each object class."
)
EXAMPLES = {
    0: "",
    1: "Here is an example.",
    2: "Here are two examples of both cases. Both examples are from the same example game.",
}
"""What announces the worked examples, by their number."""
CASES = (
    "In the first example, the game state is changed by an action:",
    "In the second example from the same example game, the game state is changed over the time. "
    "Note that while in this example the game state is changed by time only, it is possible that a "
    "game state is changed by both an action and time.",
)
RULES = {
    "object": "Here are the descriptions of all game objects properties{where}:",
    "action": "Here are the descriptions of all game actions{where}:",
    "score": "Here is a description of the score function of {which} game:",
}
ACTIONS = (
    "put dirty plate (ID: 5) in mug (ID: 6)",
    "eat dishwasher (ID: 2) with dirty plate (ID: 5)",
)
"""The actions of the two published examples."""


def published_prompt(world: Any) -> str:
    """The instruction for the current record of a `ByteSized32` world."""
    config, record = world.config, world.record
    rules = find_rules(config.rules_folder, config.path)
    lines = [ROLE, *_examples(world, rules), "Here is the game that you need to simulate:"]
    lines += ["Task Description:", record.state.task, *_rules(rules, record.game)]
    lines.append(_uuid_base(record))
    return "\n".join(lines)


def _examples(world: Any, rules: Rules) -> Iterator[str]:
    """The example game: its task, its rules, and the worked examples."""
    records = example_records(world.config.path)[: world.config.examples]
    if not records:
        return
    yield EXAMPLES[len(records)]
    yield "Example game task description:"
    yield records[0].state.task
    yield from _rules(rules, EXAMPLE_GAME, example=True)
    for case, record in zip(CASES, records, strict=False):
        before, after = record.before_and_after("full")
        yield case
        yield "Here is the game state:"
        yield show_text(world.view.state(record.game, before))
        yield _uuid_base(record)
        yield f"The action to take is: {record.action}"
        yield "The expected response is:"
        yield show_text(world.view.answer(record.game, before, after, whole=False))


def _uuid_base(record: Record) -> str:
    return f"The current game UUID base is {record.state.max_uuid}"


def _rules(rules: Rules, game: str, *, example: bool = False) -> Iterator[str]:
    where, which = (" in the example game", "the example") if example else ("", "the")
    for kind, text in rules_of(rules, game).items():
        yield RULES[kind].format(where=where, which=which)
        yield text


@functools.lru_cache(maxsize=2)
def example_records(path: Path | None) -> tuple[Record, ...]:
    """A record that an action changes and one that time changes; the published ones if present.

    Empty if the data do not have the example game.
    """
    records = [record for record in load_records(path) if record.game == EXAMPLE_GAME]
    kinds = zip((_by_action, _by_time), ACTIONS, strict=True)
    chosen = [_first(records, changed, action) for changed, action in kinds]
    return tuple(record for record in chosen if record is not None)


def _first(records: list[Record], changed: Callable[[Record], bool], action: str) -> Record | None:
    """The first record of a kind, with this action if there is one."""
    fitting = [record for record in records if changed(record)]
    published = [record for record in fitting if record.action == action]
    return next(iter(published or fitting), None)


def _by_action(record: Record) -> bool:
    return record.changed and record.act != Patch() and record.tick == Patch()


def _by_time(record: Record) -> bool:
    return record.changed and record.act == Patch() and record.tick != Patch()
