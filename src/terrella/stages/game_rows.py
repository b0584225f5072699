"""SFT rows of text games in bundles: a state, several recorded actions in it, and what really came of each.

The bundle's common beginning (the state) is the prompt that its rows share; each row's completion is the action, which
carries no loss, and the answer, which does. Half of the questions are ones in which something changes.
    rows = [answered(world, codec, records) for records in bundles(world, states=100, actions=12, share=1.0, seed=0)]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from terrella.core.instances import TASK_STREAM, stream
from terrella.core.protocols import Codec
from terrella.core.types import Situation, Split
from terrella.engines.trl.packs import TrainingRow
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

GOLD = 0.5
"""Share of a bundle's questions in which something changes, where the state has so many."""
BUNDLE_STREAM = 7


def bundles(world: ByteSized32, *, states: int, actions: int, share: float, seed: int) -> Iterator[list[Record]]:
    """`states` bundles of `actions` rows: the game evenly, then one of its states, then questions about it."""
    games = _by_state([row for row in world.pools[Split.TRAIN] if _seen(row, share)])
    rng = stream(TASK_STREAM, seed, BUNDLE_STREAM)
    for _ in range(states):
        game = games[int(rng.integers(len(games)))]
        changed, still = game[int(rng.integers(len(game)))]
        gold = _some(changed, max(round(actions * GOLD), actions - len(still)), rng)
        yield gold + _some(still, actions - len(gold), rng)


def _seen(row: Record, share: float) -> bool:
    """Whether SFT may see this question: by the question, so that every seed holds back the same."""
    told = hashlib.sha256(("sft\n" + "\n".join(row.key)).encode()).digest()
    return int.from_bytes(told[:4], "big") < share * 2**32


def _by_state(rows: Sequence[Record]) -> list[list[tuple[list[Record], list[Record]]]]:
    """Games, their states, and the rows of each: those that change something, those that do not."""
    games: dict[str, dict[str, tuple[list[Record], list[Record]]]] = {}
    for row in rows:
        groups = games.setdefault(row.game, {}).setdefault(row.state.key, ([], []))
        groups[0 if row.changed else 1].append(row)
    return [list(states.values()) for states in games.values()]


def _some(rows: Sequence[Record], count: int, rng: Any) -> list[Record]:
    if len(rows) <= count:
        return list(rows)
    return [rows[int(place)] for place in rng.choice(len(rows), size=count, replace=False)]


def answered(world: ByteSized32, codec: Codec, records: Sequence[Record]) -> list[TrainingRow]:
    """The bundle as training rows that share their common beginning."""
    pairs = []
    for record in records:
        step = world.transition(record)
        situation = situation_of(world, record)
        pairs.append((codec.ask_observation(situation, step.action), codec.answer_observation(step.next_observation)))
    common = _common([prompt for prompt, _ in pairs])
    return [
        TrainingRow(
            prompt_ids=prompt[:common], completion_ids=prompt[common:] + answer,
            mask=(False,) * (len(prompt) - common) + (True,) * len(answer),
        )
        for prompt, answer in pairs
    ]  # fmt: skip


def situation_of(world: ByteSized32, record: Record) -> Situation:
    """Where the question of a row stands."""
    seen = world.begin(record)
    return Situation(instruction=world.instruction, observation=seen, actions=world.actions(), history=(), steps_left=1)


def _common(prompts: Sequence[Sequence[int]]) -> int:
    """How many first tokens all prompts share; one token at least is left to each."""
    shortest = min(map(len, prompts)) - 1
    same = (place for place in range(shortest) if len({prompt[place] for prompt in prompts}) > 1)
    return next(same, shortest)
