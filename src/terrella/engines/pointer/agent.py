"""The pointer networks of a WebRL run: 0.3M parameters, exactly repeatable on one core.

agent = PointerAgent(rollout, PointerSizes(), seed=0)
with agent.player(Path("actor.safetensors")) as player: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.data.attempt_journal import AttemptJournal
from terrella.data.attempts import Attempt, PracticeTask
from terrella.engines.pointer.learner import PointerActor, PointerCritic, PointerJudge, make_net
from terrella.models.pointer import PointerSizes, Reader
from terrella.models.policy_input import PolicyInput
from terrella.rollout.batch_rollout import (
    BatchRollout,
    Chosen,
    Watch,
    WorldSlot,
    draw_index,
    unwatched,
)


@dataclass(frozen=True)
class PointerPlayer:
    """See `pipelines.webrl.agent.Player`."""

    rollout: BatchRollout
    actor: PointerActor

    def play(
        self,
        tasks: Sequence[PracticeTask],
        *,
        split: Split,
        max_env_steps: int = 0,
        greedy: bool = False,
        watch: Watch = unwatched,
        journal: AttemptJournal | None = None,
    ) -> list[Attempt]:
        """Sample at temperature 1 with each episode's own random numbers, or the likeliest."""

        def choose(inputs: Sequence[PolicyInput], slots: Sequence[WorldSlot]) -> list[Chosen]:
            with torch.no_grad():
                probs_BK = self.actor.scores(inputs).double().exp()
            chosen = []
            for probs_K, shown, slot in zip(probs_BK, inputs, slots, strict=True):
                probs = probs_K[: len(shown.offered)]
                taken = draw_index(probs.tolist(), slot.rng, greedy=greedy)
                chosen.append(Chosen(taken, float(probs[taken].log())))
            return chosen

        return self.rollout.play(
            choose, tasks, split=split, max_env_steps=max_env_steps, watch=watch, journal=journal
        )


class PointerAgent:
    """See `pipelines.webrl.agent.Agent`."""

    suffix = ".safetensors"
    writes = False

    def __init__(self, rollout: BatchRollout, sizes: PointerSizes, *, seed: int) -> None:
        self.rollout = rollout
        self.sizes = sizes
        self.seed = seed
        self.reader = Reader()

    def in_own_words(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """A pointer network writes nothing."""
        return list(attempts)

    def writer(self, actor: Path, *, reply_tokens: int) -> NoReturn:
        raise ConfigError(
            "instructions", "a pointer network writes nothing", "set writer=templates or endpoint"
        )

    @contextlib.contextmanager
    def player(self, actor: Path) -> Iterator[PointerPlayer]:
        with self.actor(actor) as opened:
            yield PointerPlayer(self.rollout, opened)

    @contextlib.contextmanager
    def actor(self, saved: Path | None) -> Iterator[PointerActor]:
        net = make_net("actor", self.sizes, seed=self.seed, path=saved)
        yield PointerActor(net, self.reader)

    @contextlib.contextmanager
    def critic(self, saved: Path | None, *, base: Path) -> Iterator[PointerCritic]:
        net = make_net("critic", self.sizes, seed=self.seed, path=saved)
        yield PointerCritic(net, self.reader)

    @contextlib.contextmanager
    def judge(self, saved: Path | None, *, base: Path) -> Iterator[PointerJudge]:
        net = make_net("critic", self.sizes, seed=self.seed, path=saved)
        yield PointerJudge(net, self.reader)
