"""The sections of a certificate, one method each, and the real env steps that each one takes.

sections = Sections(config, Evidence(world, model, data))
sections.risk()["coverage"], sections.real_steps
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from terrella.core.protocols import Policy, WorldModel
from terrella.core.seeds import CERTIFY_FIRST, instance_seed
from terrella.core.stats import mean_interval
from terrella.core.types import Episode, Split
from terrella.evals.policy_eval import PolicyResult, evaluate_policy
from terrella.pipelines.certify.records import CertifyConfig, Evidence, StepPredictions
from terrella.pipelines.certify.risk import risk_section
from terrella.pipelines.certify.steps import MOST_TRIES, predict_steps, require_unseen
from terrella.pipelines.certify.watch import Watch
from terrella.rollout.tasks import distinct_instances
from terrella.trust.coverage import describe_coverage
from terrella.trust.horizon import (
    accuracies,
    accuracy_bound,
    carried,
    closed_loop,
    mean_row,
    open_loop,
    random_starts,
    safe_horizon,
)
from terrella.trust.ranking import compare_rankings
from terrella.trust.risk import (
    RiskEstimator,
    RiskModel,
    by_policy,
    fit_risk,
    least_calibration,
)
from terrella.trust.truth import NearestCopy, NoChange
from terrella.world_models.certified import CertifiedModel
from terrella.world_models.imagine import imagine
from terrella.world_models.planner import Planner

Loop = Callable[..., list[list[float]]]
"""`open_loop` or `closed_loop`."""


class Sections:
    """Measures when asked; each public method is one section."""

    def __init__(self, config: CertifyConfig, evidence: Evidence) -> None:
        self.config = config
        self.evidence = evidence
        self.real_steps: Counter[str] = Counter()
        self.watch = Watch()

    # --- risk -------------------------------------------------------------------------------------

    @functools.cached_property
    def calibration(self) -> StepPredictions:
        """Steps on validation instances."""
        return self._predict(Split.VALIDATION, self.config.calibration, "calibration")

    @functools.cached_property
    def held_out(self) -> StepPredictions:
        """Steps on test instances."""
        return self._predict(Split.TEST, self.config.held_out, "held_out")

    def _predict(self, split: Split, count: int, name: str) -> StepPredictions:
        model = self.watch.model(self.evidence.model)
        evidence = replace(self.evidence, model=model)
        predictions, env_steps = predict_steps(self.config, evidence, split, count)
        self.real_steps[name] += env_steps
        return predictions

    @functools.cached_property
    def risk_model(self) -> RiskModel | None:
        """The calibrated risk; None with too few steps to calibrate it."""
        steps, level = self.calibration, self.config.level
        groups = by_policy(len(steps.wrong), steps.policies.tolist())
        fewest = min((len(group) for group in groups), default=0)
        if len(groups) < len(self.config.under) or fewest < least_calibration(level):
            return None
        return fit_risk(
            steps.signals, steps.wrong, steps.probs, steps.policies.tolist(), level=level
        )

    def risk(self) -> dict[str, Any]:
        """Prediction sets on held-out instances, and the risk below which to imagine."""
        return risk_section(
            self.risk_model,
            self.calibration,
            self.held_out,
            self.evidence.world.verifier,
            step_error=self.config.step_error,
            policies=self.policy_names,
            seed=self.config.seed,
        )

    @functools.cached_property
    def policy_names(self) -> list[str]:
        """The policies that the certificate holds for."""
        return [policy.build().name for policy in self.config.under]

    # --- accuracy ---------------------------------------------------------------------------------

    @functools.cached_property
    def _baselines(self) -> Mapping[str, WorldModel]:
        return {"no_change": NoChange(), "nearest": NearestCopy(self.evidence.data)}

    def one_step(self) -> dict[str, Any]:
        """Held-out accuracy of model and baselines, on changed and unchanged steps apart.

        Steps of the first policy: one per instance, so that the intervals hold.
        """
        test, world = self.held_out, self.evidence.world
        accuracy = {"model": 1 - test.wrong}
        for name, baseline in self._baselines.items():
            distributions = baseline.predict(test.queries)
            accuracy[name] = np.array(accuracies(distributions, test.truths, test.queries, world))
        first = test.policies == 0
        kinds = {"all": first, "changed": first & test.changed, "unchanged": first & ~test.changed}
        return {
            kind: {name: mean_row(list(values[chosen])) for name, values in accuracy.items()}
            for kind, chosen in kinds.items()
        }

    def horizon(self) -> list[dict[str, Any]]:
        """Accuracy by depth on test instances, open and closed loop, with open-loop baselines.

        Loops begin at a random real step of each episode, as the gate does; one open loop more
        begins at its reset. `bound` is the lower bound of the accuracy of both open loops under
        every policy, where an episode that has ended keeps the accuracy of its last step.
        `reached` are the episodes of each policy that had a step at this depth.
        """
        config, world = self.config, self.evidence.world
        model = self.watch.model(self.evidence.model)
        played = [
            self._play_real(policy.build(), config.horizon_episodes) for policy in config.under
        ]
        self.real_steps["horizon"] += sum(result.steps for result in played)
        episodes = [episode for result in played for episode in result.episodes]
        instructions = [text for result in played for text in result.instructions]
        depth = min(config.depth, config.world.max_steps)
        anywhere, at_reset = random_starts(episodes, seed=config.seed), [0] * len(episodes)

        def accuracy(loop: Loop, model: WorldModel, starts: Sequence[int]) -> list[list[float]]:
            return loop(model, episodes, world, depth, instructions=instructions, starts=starts)

        tracks = {
            "open": accuracy(open_loop, model, anywhere),
            "from_reset": accuracy(open_loop, model, at_reset),
            "closed": accuracy(closed_loop, model, anywhere),
        }
        for name, baseline in self._baselines.items():
            tracks[name] = accuracy(open_loop, baseline, anywhere)
        lengths = {
            "open": _lengths(episodes, anywhere),
            "from_reset": _lengths(episodes, at_reset),
        }
        return _horizon_rows(tracks, lengths, policies=len(played))

    def safe_horizon(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Depth to which the open loop keeps to the acceptable error, by its lower bound.

        Some policy must have reached it in enough episodes, in both loops.
        """
        return safe_horizon(
            [row["bound"] for row in rows],
            [min(max(counts) for counts in row["reached"].values()) for row in rows],
            error=self.config.horizon_error,
        )

    def _instance_seeds(self, count: int) -> list[int]:
        """Seeds of different test instances; fewer than `count` where a world has no more."""
        drawn = (
            instance_seed(self.config.seed, CERTIFY_FIRST + index)
            for index in range(MOST_TRIES * count)
        )
        return distinct_instances(self.evidence.world, drawn, Split.TEST)[:count]

    # --- coverage, ranking, exploitability --------------------------------------------------------

    def coverage(self) -> dict[str, Any]:
        """How near the held-out steps are to the data."""
        test = self.held_out
        return describe_coverage(self.evidence.data, test.queries, list(test.wrong))

    @property
    def _certified_model(self) -> CertifiedModel:
        return CertifiedModel(
            RiskEstimator(self.evidence.model, self.evidence.data, self.risk_model)
        )

    def _play_real(self, policy: Policy, count: int) -> PolicyResult:
        played = evaluate_policy(
            self.config.world.build,
            self.watch.policy(policy),
            seeds=self._instance_seeds(count),
            split=Split.TEST,
            num_envs=1,
        )
        require_unseen(self.evidence.data, [episode.instance for episode in played.episodes])
        return played

    def _play_imagined(self, policy: Policy, count: int) -> PolicyResult:
        certified_model = self._certified_model
        return evaluate_policy(
            lambda: imagine(self.config.world, certified_model=certified_model),
            self.watch.policy(policy),
            seeds=self._instance_seeds(count),
            split=Split.TEST,
        )

    def ranking(self) -> dict[str, Any] | None:
        """Policies of graded quality, real and imagined, on the same instances."""
        if not self.config.policies or not self.config.ranked_on:
            return None
        policies = [policy.build() for policy in self.config.policies]
        real = [self._play_real(policy, self.config.ranked_on) for policy in policies]
        imagined = [self._play_imagined(policy, self.config.ranked_on) for policy in policies]
        self.real_steps["ranking"] += sum(result.steps for result in real)
        return compare_rankings(
            [policy.name for policy in policies],
            [result.returns for result in real],
            [result.returns for result in imagined],
            seed=self.config.seed,
        )

    def exploitability(self) -> dict[str, Any] | None:
        """Imagined minus real return of a planner, an agent that knows only the model."""
        config = self.config
        if not config.exploited_on:
            return None
        risk_estimator = self._certified_model.risk_estimator
        settings = Planner.Config(depth=config.plan_depth, most_states=config.plan_states)
        planner = Planner(settings, risk_estimator)
        real = self._play_real(planner, config.exploited_on)
        imagined = self._play_imagined(planner, config.exploited_on)
        self.real_steps["exploitability"] += real.steps
        returns = zip(imagined.returns, real.returns, strict=True)
        gaps = [imagined_return - real_return for imagined_return, real_return in returns]
        low, high = mean_interval(gaps) if len(gaps) > 1 else (None, None)  # JSON has no infinity
        return {
            "agent": planner.name,
            "n": len(gaps),
            "imagined": _return_row(imagined.returns),
            "real": _return_row(real.returns),
            "gap": {"mean": float(np.mean(gaps)), "low": low, "high": high},
            "real_success": float(np.mean(real.successes)),
            "imagined_success": float(np.mean(imagined.successes)),
        }


def _lengths(episodes: Sequence[Episode], starts: Sequence[int]) -> list[int]:
    """Steps of each episode from its start on."""
    return [
        len(episode.transitions) - start for episode, start in zip(episodes, starts, strict=True)
    ]


def _return_row(values: Sequence[float]) -> dict[str, Any]:
    """Mean and interval of values that need not be in [0, 1]."""
    low, high = mean_interval(values)
    return {
        "mean": float(np.mean(values)),
        "low": low if math.isfinite(low) else None,
        "high": high if math.isfinite(high) else None,
        "n": len(values),
    }


def _horizon_rows(
    tracks: Mapping[str, Sequence[Sequence[float]]],
    lengths: Mapping[str, Sequence[int]],
    *,
    policies: int,
) -> list[dict[str, Any]]:
    """A row per depth: its lower bound, the episodes that reach it, the accuracy of each track."""
    groups = [
        group
        for name in lengths
        for group in np.split(carried(tracks[name], lengths[name]), policies)
    ]
    by_policy = {name: np.split(np.array(lengths[name]), policies) for name in lengths}
    return [
        {
            "depth": index + 1,
            "episodes": len(lengths["open"]) // policies,
            "bound": accuracy_bound([group[:, index].tolist() for group in groups]),
            "reached": {
                name: [int((steps > index).sum()) for steps in by_policy[name]] for name in lengths
            },
            **{name: mean_row(values[index]) for name, values in tracks.items()},
        }
        for index in range(len(tracks["open"]))
    ]
