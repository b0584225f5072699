"""A world that is imagined where the certificate allows it and real elsewhere: what agents are trained in.

It is a `World`: `terrella rlvr` and any Gymnasium program play it unchanged. A world with a readable state takes a real
step from where imagination stands (one real step); any other is brought there by the actions so far (as many as those).
    world = gated(FrozenLake.Config(size=3), Path("runs/lake")); world.step("Right"); world.gate.ledger.counts()
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from terrella.core.instances import TASK_STREAM, stream
from terrella.core.types import Observation
from terrella.core.world import StateWorld, Step, World
from terrella.trust.beliefs import Belief, certain
from terrella.trust.certificate import Trust
from terrella.trust.gate import Gate
from terrella.use.imagine import Imagination, ImaginedWorld, load_imagination


@lru_cache(maxsize=4)
def load_gate(folder: Path, samples: int, config: Gate.Config) -> Gate:
    """One gate per folder and config, so that all worlds that a driver builds share its ledger."""
    return Gate(config, load_imagination(folder, samples).certificate)


class GatedWorld(ImaginedWorld):
    """Imagined inside the certificate, real outside of it. Use `gated` to make one from the real world's config."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ImaginedWorld.Config):
        """The real world, the folder of its model, and the gate."""

        gate: Gate.Config = field(default_factory=Gate.Config)

    name: ClassVar[str] = "gated"
    config: Config

    def __init__(self, config: Config, imagination: Imagination | None = None, gate: Gate | None = None) -> None:
        """The gate is the folder's, loaded when it is first needed, unless given."""
        super().__init__(config, imagination)
        self._gate = gate
        self.behind: tuple[str, ...] = ()
        """Actions that the real world has not carried out yet (worlds without a readable state only)."""

    @property
    def gate(self) -> Gate:
        """Who decides, and counts."""
        if self._gate is None:
            self._gate = load_gate(self.config.folder, self.config.samples, self.config.gate)
        return self._gate

    def _draw_instance(self) -> None:
        super()._draw_instance()
        self.behind = ()

    def _imagine(self, action: str) -> Step:
        question = self.question(action)
        ((belief, risk),) = self.imagination.assessor.assess([question])
        verdict = self.gate.verdict(risk, depth=self.depth + 1)
        if verdict is not Trust.TRUSTED:
            return self._really(action, risk, verdict)
        before = self._seen
        step = self._dream(belief, risk, verdict)
        self.gate.ledger.imagined += 1
        coins = stream(TASK_STREAM, self.seed, self.noise_seed, self.steps)
        if self.gate.wants_audit(coins.random()):
            seen = self._check(before, action, coins.random())
            self.gate.audit(risk, self.gate.disagrees(belief, risk, seen, before, self.verifier))
        self.behind = (*self.behind, action)
        return step

    def _check(self, before: Observation, action: str, uniform: float) -> Belief:
        """What the real world makes of this step; one whose state cannot be set is replayed in a copy, which costs."""
        if isinstance(self.real, StateWorld):
            return self._sample(self.real, before, action, uniform)
        twin = self.real.fork()
        for waiting in self.behind:
            twin.step(waiting)
            self.gate.ledger.real += 1
        observation, reward, terminated, _, info = twin.step(action)
        return Belief((certain(observation, reward, terminated, bool(info["success"])),))

    # --- real steps -----------------------------------------------------------------------------------------------

    def _really(self, action: str, risk: float, verdict: Trust) -> Step:
        """A step in the real world; imagination begins anew from what it shows."""
        self.told = {"risk": risk, "depth": 0, "trust": verdict.value, "real": True}
        before, self.depth = self._seen, 0
        if isinstance(self.real, StateWorld):
            self.gate.ledger.real += 1
            (result,) = self._sample(self.real, before, action, self.noise.random()).predictions
            self._seen = result.observation
            return Step(result.reward, result.terminated, result.success, True, self._seen != before)
        return self._catch_up(action)

    def _catch_up(self, action: str) -> Step:
        """Carry out what was imagined, then this; where imagination was wrong, the real world is what counts."""
        before, reward, terminated, truncated, info = self._seen, 0.0, False, False, {"success": False}
        for waiting in (*self.behind, action):
            self._seen, reward, terminated, truncated, info = self.real.step(waiting)
            self.gate.ledger.real += 1
            if terminated or truncated:
                break
        self.behind = ()
        return Step(reward, terminated, bool(info["success"]), True, self._seen != before, truncated)

    @staticmethod
    def _sample(world: StateWorld[Any], observation: Observation, action: str, uniform: float) -> Belief:
        """One real result of an action, drawn by the world's own chances."""
        results = world.truth(world.view.read(observation), action)
        edges = list(itertools.accumulate(result.probability for result in results))
        r = results[min(bisect.bisect_right(edges, uniform * edges[-1]), len(results) - 1)]
        return Belief((certain(world.view.show(r.state), r.reward, r.terminated, r.success),))

    def fork(self) -> Self:
        """An independent copy; the gate and its ledger stay shared."""
        twin = super().fork()
        twin.real = self.real.fork()
        return twin


def gated(
    world: World.Config, folder: Path | None = None, *, imagination: Imagination | None = None,
    gate: Gate | None = None, samples: int = 8,
) -> GatedWorld:  # fmt: skip
    """The gated twin of a world: same length of episodes, same split, same instances."""
    config = GatedWorld.Config(
        world=world, folder=folder or Path(), samples=samples, max_steps=world.max_steps, split=world.split
    )
    return GatedWorld(config, imagination, gate)
