"""A world that is imagined where the certificate allows it and real elsewhere: for training agents.

It is a `World`: `terrella rlvr` and any Gymnasium program can play it unchanged. In a world with a
readable state, a real step is taken directly from the imagined state. It inherits the errors of
that state, so the safe horizon bounds the imagined steps of a whole episode. Any other world first
replays the imagined actions, and each of them counts as a real step. Its result is the real state,
and imagination restarts from it.
    world = gated(FrozenLake.Config(size=3), Path("runs/lake"))
    world.reset(seed=0); world.step("Right"); world.gate.ledger.counts()
"""

from __future__ import annotations

import bisect
import itertools
import logging
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.types import Observation
from terrella.core.world import StateWorld, Step, World
from terrella.trust.certificate import Certificate, Trust
from terrella.trust.gate import Gate, audit_error
from terrella.trust.predictive import certain
from terrella.trust.truth import TrueModel
from terrella.world_models.certified import (
    HOW_TO_CERTIFY,
    CertifiedModel,
    cached_certificate,
    certified_stamp,
    world_key,
)
from terrella.world_models.imagine import ImaginedWorld

logger = logging.getLogger("terrella")

WorldStep = tuple[Observation, float, bool, bool, dict[str, Any]]
"""What `World.step` returns."""


def load_gate(folder: Path, samples: int, config: Gate.Config, world: World.Config) -> Gate:
    """One gate per folder, world and config: all worlds of a rollout share its ledger.

    A folder that was certified again has a gate of its own.
    """
    return _load_gate(folder, certified_stamp(folder), samples, world_key(world), config)


@cache  # none is dropped: a gate that has closed must not be made anew
def _load_gate(folder: Path, stamp: object, samples: int, world: str, config: Gate.Config) -> Gate:
    certificate = cached_certificate(folder, stamp, samples, world)
    if certificate is None or not certificate.certified:
        why, remedy = _why_closed(folder, certificate)
        logger.warning(
            "%s: the gate is closed, and every step is taken in the real world: %s; %s",
            folder,
            why,
            remedy,
        )
    return Gate(config, certificate)


def _why_closed(folder: Path, certificate: Certificate | None) -> tuple[str, str]:
    """Why nothing may be imagined, and what to do."""
    if certificate is not None:
        reasons = "; ".join(certificate.reasons) or "the certificate gives no reason"
        return f"not certified: {reasons}", "train on more data, or certify again"
    if not folder.is_dir():
        return "there is no such folder", HOW_TO_CERTIFY
    return "there is no certificate", f"make one: terrella certify {folder}"


class GatedWorld(ImaginedWorld):
    """Imagined within the certificate, real outside of it.

    Use `gated` to make one from the config of the real world.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(ImaginedWorld.Config):
        """The real world, the folder of its model, and the gate."""

        gate: Gate.Config = field(default_factory=Gate.Config)

        def kept_in(self, folder: Path) -> Self:
            return self.replace(gate=self.gate.replace(folder=folder))

    name: ClassVar[str] = "gated"
    config: Config

    def __init__(
        self,
        config: Config,
        certified_model: CertifiedModel | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Unless `gate` is given, the gate of the folder is loaded on first use."""
        super().__init__(config, certified_model)
        self._gate = gate
        self.pending_actions: tuple[str, ...] = ()
        """Imagined actions that the real world has not taken yet.

        Only used by worlds without a readable state.
        """

    @property
    def gate(self) -> Gate:
        """Decides which steps are imagined, and counts them."""
        if self._gate is None:
            self._gate = load_gate(
                self.config.folder, self.config.samples, self.config.gate, self.played_world
            )
        return self._gate

    def _draw_instance(self) -> None:
        super()._draw_instance()
        self.pending_actions = ()
        if self._gate is not None:
            self._gate.save_sometimes()

    def _imagine(self, action: str) -> Step:
        query = self.query(action)
        ((distribution, risk),) = self.certified_model.assess([query])
        verdict = self.gate.verdict(risk, depth=self.depth + 1)
        if verdict is not Trust.TRUSTED:
            return self._real_step(action, risk, verdict)
        before = self._observation
        step = self._draw_step(distribution, risk, verdict)
        self.gate.ledger.imagined += 1
        rng = stream(TASK_STREAM, self.seed, self.noise_seed, self.steps)
        if self._can_audit() and self.gate.wants_audit(rng.random()):
            truth = self._audited_truth(query)
            self.gate.audit(risk, audit_error(distribution, truth, before, self.verifier))
        self.pending_actions = (*self.pending_actions, action)
        return step

    def _can_audit(self) -> bool:
        """Whether the real result of this step alone can be known.

        A world whose state cannot be set could only replay the pending actions. The result would
        have the errors of all of them, and the certificate bounds the error of one step.
        """
        return TrueModel.supports(self.real) or not self.pending_actions

    def _audited_truth(self, query: Query) -> PredictiveDistribution:
        """What really follows an audited step, as the certificate knows it.

        A world whose state cannot be set takes the step in a copy.
        """
        if TrueModel.supports(self.real):
            return TrueModel(self.real).predict([query])[0]
        self.gate.ledger.replayed += self.real.steps_to_fork
        observation, reward, terminated, _, info = self.real.fork().step(query.action)
        return PredictiveDistribution(
            (certain(observation, reward, terminated, bool(info["success"])),)
        )

    def _replay(self, action: str) -> list[WorldStep]:
        """Take the pending actions in the real world, then this one, until its episode ends.

        The last result is the one that counts.
        """
        results = []
        for each in (*self.pending_actions, action):
            results.append(self.real.step(each))
            _, _, terminated, truncated, _ = results[-1]
            if terminated or truncated:
                break
        return results

    # --- real steps -------------------------------------------------------------------------------

    def _real_step(self, action: str, risk: float, verdict: Trust) -> Step:
        """Take a step in the real world."""
        if not isinstance(self.real, StateWorld):
            self.depth = 0  # the replay corrects the imagined steps
        self.step_info = {"risk": risk, "depth": self.depth, "trust": verdict.value, "real": True}
        if not isinstance(self.real, StateWorld):
            return self._replay_and_step(action)
        before = self._observation
        self.gate.ledger.real += 1
        (result,) = self._sample(self.real, before, action, self.noise.random()).predictions
        self._observation = result.observation
        return Step(
            result.reward,
            result.terminated,
            result.success,
            valid=True,
            effective=self._observation != before,
        )

    def _replay_and_step(self, action: str) -> Step:
        before = self._observation
        results = self._replay(action)
        self._observation, reward, terminated, truncated, info = results[-1]
        self.gate.ledger.real += len(results)
        self.pending_actions = ()
        return Step(
            reward,
            terminated,
            bool(info["success"]),
            valid=bool(info["valid"]),
            effective=self._observation != before,
            truncated=truncated,
        )

    @staticmethod
    def _sample(
        world: StateWorld[Any], observation: Observation, action: str, uniform: float
    ) -> PredictiveDistribution:
        """Sample one real result of an action from the world's own probabilities."""
        results = world.truth(world.view.read(observation), action)
        edges = list(itertools.accumulate(result.probability for result in results))
        index = min(bisect.bisect_right(edges, uniform * edges[-1]), len(results) - 1)
        result = results[index]
        shown = world.view.show(result.state)
        return PredictiveDistribution(
            (certain(shown, result.reward, result.terminated, result.success),)
        )

    def fork(self) -> Self:
        """An independent copy; the gate and its ledger are shared."""
        twin = super().fork()
        if self.real.steps_to_fork:
            self.gate.ledger.replayed += self.real.steps_to_fork
        twin.real = self.real.fork()
        return twin


def gated(
    world: World.Config,
    folder: Path | None = None,
    *,
    certified_model: CertifiedModel | None = None,
    gate: Gate | None = None,
    samples: int = 8,
) -> GatedWorld:
    """The gated counterpart of a world, with the same episode length, split and instances."""
    config = GatedWorld.Config(
        world=world,
        folder=folder or Path(),
        samples=samples,
        max_steps=world.max_steps,
        split=world.split,
    )
    return GatedWorld(config, certified_model, gate)
