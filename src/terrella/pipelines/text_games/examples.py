"""SFT examples of text games in bundles: a state, several recorded actions, and what each led to.

The examples of a bundle share the state as their prompt. The completion is the action, which is not
a target, and the answer, which is. In half of the examples something changes.
    for records in bundles(world, states=100, actions=12, share=1.0, seed=0):
        examples = bundle_examples(world, codec, records)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from terrella.codecs.choose import sft_targets
from terrella.core.protocols import Codec
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.tokens import TrainExample
from terrella.core.types import Split
from terrella.evals.text_games import situation_of
from terrella.pipelines.shared_prompt import share_prompt
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

CHANGED = 0.5
"""Fraction of a bundle's records in which something changes, if the state has that many."""
BUNDLE_STREAM = 7

StateRecords = tuple[list[Record], list[Record]]
"""The records of one state: those that change something, and those that do not."""


def bundles(
    world: ByteSized32,
    *,
    states: int,
    actions: int,
    share: float,
    seed: int,
    part: int = 0,
) -> Iterator[list[Record]]:
    """`states` bundles of up to `actions` records: a game, one of its states, records of it.

    Every game is equally likely. `share` is the fraction of the train records that may be used.
    Another `part` draws other bundles.
    """
    games = _by_state([row for row in world.pools[Split.TRAIN] if _is_allowed(row, share)])
    rng = stream(TASK_STREAM, seed, BUNDLE_STREAM, *([part] if part else []))
    for _ in range(states):
        game = games[int(rng.integers(len(games)))]
        changed, unchanged = game[int(rng.integers(len(game)))]
        wanted = max(round(actions * CHANGED), actions - len(unchanged))
        chosen = _sample(changed, wanted, rng)
        yield chosen + _sample(unchanged, actions - len(chosen), rng)


def _is_allowed(record: Record, share: float) -> bool:
    """Whether SFT may use the record. It depends on the record alone, so all seeds agree."""
    digest = hashlib.sha256(("sft\n" + "\n".join(record.key)).encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def _by_state(records: Sequence[Record]) -> list[list[StateRecords]]:
    games: dict[str, dict[str, StateRecords]] = {}
    for record in records:
        groups = games.setdefault(record.game, {}).setdefault(record.state.key, ([], []))
        groups[0 if record.changed else 1].append(record)
    return [list(states.values()) for states in games.values()]


def _sample(records: Sequence[Record], count: int, rng: np.random.Generator) -> list[Record]:
    if len(records) <= count:
        return list(records)
    return [records[int(index)] for index in rng.choice(len(records), size=count, replace=False)]


def bundle_examples(
    world: ByteSized32, codec: Codec, records: Sequence[Record]
) -> list[TrainExample]:
    """The examples of a bundle; their prompt is the part that all of them share."""
    examples = []
    for record in records:
        step = world.transition(record)
        answer = codec.answer_observation(step.next_observation)
        examples.append(
            TrainExample(
                prompt_ids=codec.ask_observation(situation_of(world, record), step.action),
                completion_ids=answer,
                mask=sft_targets(codec, answer),
            )
        )
    return share_prompt(examples)
