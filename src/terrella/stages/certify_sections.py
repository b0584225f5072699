"""The sections of a certificate, one method each: what is measured, on which instances, at what price in real steps.

sections = Sections(config, Evidence(world, model, data)); sections.risk()["coverage"]; sections.real_steps
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from terrella.core.episode import play
from terrella.core.stats import mean_interval
from terrella.core.types import Split, Transition
from terrella.core.world import World
from terrella.stages.tasks import PredictionTasks
from terrella.trust.beliefs import Belief, Believer, Question, held_of
from terrella.trust.coverage import describe_coverage
from terrella.trust.horizon import accuracies, closed_loop, mean_row, open_loop, safe_horizon, truths_of
from terrella.trust.nearness import NearestData
from terrella.trust.ranking import compare_rankings
from terrella.trust.risk import FIT_SHARE, Assessor, RiskModel, fit_risk, least_calibration, signals, trusted_below
from terrella.trust.truth import NearestCopy, NoChange, seen_truth
from terrella.use.imagine import Imagination, imagine
from terrella.use.plan import Planner
from terrella.use.policy_eval import Played, evaluate_policy

if TYPE_CHECKING:
    from terrella.stages.certify import Certify

MOST_TRIES = 4
"""Instances that are drawn for one that is wanted: small worlds run out of different ones."""
FIRST = 2**33
"""Where the numbers of a certificate's instances begin: away from those of training."""


@dataclass(frozen=True)
class Evidence:
    """What is measured, and with what."""

    world: World
    model: Believer
    data: NearestData


@dataclass(frozen=True)
class Asked:
    """Steps, one per instance, with what the model says of them and how far that is from the truth."""

    questions: list[Question]
    changed: np.ndarray
    signals: np.ndarray
    wrong: np.ndarray
    """Share of the true distribution that imagination would not play."""
    held: np.ndarray
    """What imagination gives to the result that came."""
    beliefs: list[Belief]
    truths: list[Belief]


class Sections:
    """Measures; each method is one section."""

    def __init__(self, config: Certify.Config, evidence: Evidence) -> None:
        """Nothing is measured yet."""
        self.config, self.evidence = config, evidence
        self.real_steps: Counter[str] = Counter()

    # --- risk -----------------------------------------------------------------------------------------------------

    def _steps(self, split: Split, count: int) -> list[tuple[Question, Transition]]:
        """One step from each of so many different instances, or from as many as a long search finds.

        Instances fall into splits by chance, so different ones are exchangeable; the same one twice would not be.
        """
        tasks = PredictionTasks(self.config.world, self.config.policy, split=split, seed=self.config.seed + 1)
        found: dict[str, tuple[Question, Transition]] = {}
        for index in range(MOST_TRIES * count):
            task = tasks(FIRST + index)
            assert task.situation is not None and task.transition is not None
            found.setdefault(tasks.world.instance, (Question(task.situation, task.transition.action), task.transition))
            if len(found) == count:
                break
        return list(found.values())

    def _ask(self, split: Split, count: int, name: str) -> Asked:
        world, model = self.evidence.world, self.evidence.model
        pairs = self._steps(split, count)
        questions, steps = [question for question, _ in pairs], [step for _, step in pairs]
        # Real steps up to the one that is asked about: what a person would have to take to ask it.
        self.real_steps[name] += sum(len(question.situation.history) + 1 for question in questions)
        beliefs, truths = model.believe(questions), truths_of(world, questions, steps)
        distances, _ = self.evidence.data.look_up([(q.situation.observation, q.action) for q in questions])
        right = np.array(accuracies(beliefs, truths, questions, world))
        held = [held_of(b, seen_truth(step).predictions[0], step.observation, world.verifier)
                for b, step in zip(beliefs, steps, strict=True)]  # fmt: skip
        changed = np.array([step.changed for step in steps], bool)
        return Asked(questions, changed, signals(beliefs, distances), 1 - right, np.array(held), beliefs, truths)

    @functools.cached_property
    def calibration(self) -> Asked:
        """Validation steps."""
        return self._ask(Split.VALIDATION, self.config.calibration, "calibration")

    @functools.cached_property
    def held_out(self) -> Asked:
        """Test steps."""
        return self._ask(Split.TEST, self.config.held_out, "held_out")

    @functools.cached_property
    def risk_model(self) -> RiskModel | None:
        """The calibrated risk; None when there is too little to calibrate it."""
        asked = self.calibration
        if len(asked.wrong) < 2 * least_calibration(self.config.level):
            return None
        return fit_risk(asked.signals, asked.wrong, asked.held, level=self.config.level)

    def risk(self) -> dict[str, Any]:
        """Prediction sets on held-out instances: do they hold what happens? And the risk below which to imagine."""
        model, test = self.risk_model, self.held_out
        counts = {"calibration": len(self.calibration.wrong), "held_out": len(test.wrong)}
        if model is None:
            return {**counts, "model": None, "threshold": None, "coverage": None}
        risks = model.risks(test.signals)
        threshold = trusted_below(
            model.risks(self.calibration.signals), self.calibration.wrong, error=self.config.step_error
        )
        inside = risks <= (-1.0 if threshold is None else threshold)
        sizes = [_set_size(model, risk, belief) for risk, belief in zip(risks, test.beliefs, strict=True)]
        return {
            **counts, "model": {"weights": model.weights, "quantile": model.quantile, "level": model.level},
            "coverage": mean_row(self._covered(model, risks)),
            "set_sizes": {str(n): sizes.count(n) / len(sizes) for n in sorted(set(sizes))},
            "threshold": threshold, "mean_risk": float(risks.mean()), "mean_wrong": float(test.wrong.mean()),
            "trusted_share": float(inside.mean()),
            "trusted_wrong": mean_row(list(test.wrong[inside])),
            "ordering": _auroc(risks, test.wrong > 0.5), "curve": _risk_curve(risks, test.wrong),
        }  # fmt: skip

    def _covered(self, model: RiskModel, risks: np.ndarray) -> list[float]:
        """For each held-out step the true probability that its prediction set holds the result."""
        verifier, test = self.evidence.world.verifier, self.held_out
        found = []
        for risk, belief, truth, question in zip(risks, test.beliefs, test.truths, test.questions, strict=True):
            before = question.situation.observation
            held = [held_of(belief, result, before, verifier) for result in truth.predictions]
            found.append(sum(c for c, h in zip(truth.chances, held, strict=True) if model.inside(risk, h)))
        return found

    # --- accuracy -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _baselines(self) -> Mapping[str, Believer]:
        return {"no_change": NoChange(), "nearest": NearestCopy(self.evidence.data)}

    def one_step(self) -> dict[str, Any]:
        """Held-out accuracy of what would be played, changed and unchanged steps apart, beside the baselines."""
        test, world = self.held_out, self.evidence.world
        right = {"model": 1 - test.wrong}
        for name, baseline in self._baselines.items():
            right[name] = np.array(accuracies(baseline.believe(test.questions), test.truths, test.questions, world))
        kinds = {"all": np.ones(len(test.changed), bool), "changed": test.changed, "unchanged": ~test.changed}
        return {
            kind: {name: mean_row(list(values[which])) for name, values in right.items()}
            for kind, which in kinds.items()
        }

    def horizon(self) -> list[dict[str, Any]]:
        """Accuracy by depth on test instances, open and closed loop, with open-loop baselines."""
        config, world, model = self.config, self.evidence.world, self.evidence.model
        assert config.policy is not None  # settled by the stage
        policy = config.policy.build()
        seeds = [FIRST + config.seed * 10_000 + n for n in range(config.horizon_episodes)]
        episodes = [play(world, policy, seed=seed, split=Split.TEST) for seed in seeds]
        self.real_steps["horizon"] += sum(len(episode.transitions) for episode in episodes)
        depth = min(config.depth, config.world.max_steps)
        tracks = {
            "open": open_loop(model, episodes, world, depth),
            "closed": closed_loop(model, episodes, world, depth),
        }
        tracks |= {name: open_loop(base, episodes, world, depth) for name, base in self._baselines.items()}
        return [
            {"depth": place + 1, **{name: mean_row(values[place]) for name, values in tracks.items()}}
            for place in range(depth)
        ]

    def safe_horizon(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Depth to which the open loop holds the stated error, by its lower bound."""
        opened = [dict(row["open"]) for row in rows]
        return safe_horizon(opened, error=self.config.horizon_error, least=self.config.least_episodes)

    # --- coverage, ranking, exploitability ------------------------------------------------------------------------

    def coverage(self) -> dict[str, Any]:
        """How near the held-out steps lie to the data."""
        return describe_coverage(self.evidence.data, self.held_out.questions, list(self.held_out.wrong))

    @property
    def _imagination(self) -> Imagination:
        return Imagination(Assessor(self.evidence.model, self.evidence.data, self.risk_model))

    def _play(self, policy: Any, count: int, *, real: bool) -> Played:
        config, imagination = self.config, self._imagination
        seeds = [FIRST + config.seed * 10_000 + n for n in range(count)]
        if real:
            return evaluate_policy(config.world.build, policy, seeds=seeds, split=Split.TEST, side_by_side=1)
        return evaluate_policy(
            lambda: imagine(config.world, imagination=imagination), policy, seeds=seeds, split=Split.TEST
        )

    def ranking(self) -> dict[str, Any] | None:
        """Policies of graded quality in both worlds, on the same instances."""
        if not self.config.policies:
            return None
        policies = [policy.build() for policy in self.config.policies]
        real = [self._play(policy, self.config.ranked_on, real=True) for policy in policies]
        dreamt = [self._play(policy, self.config.ranked_on, real=False) for policy in policies]
        self.real_steps["ranking"] += sum(played.steps for played in real)
        names = [policy.name for policy in policies]
        returns = [played.returns for played in real], [played.returns for played in dreamt]
        return compare_rankings(names, *returns, seed=self.config.seed)

    def exploitability(self) -> dict[str, Any] | None:
        """Return in imagination minus return in reality of an agent that knows only the model: a planner in it."""
        config = self.config
        if not config.exploited_on:
            return None
        assessor = self._imagination.assessor
        planner = Planner(Planner.Config(depth=config.plan_depth), assessor)
        real, dreamt = (self._play(planner, config.exploited_on, real=real) for real in (True, False))
        self.real_steps["exploitability"] += real.steps
        gaps = [dream - true for dream, true in zip(dreamt.returns, real.returns, strict=True)]
        low, high = mean_interval(gaps)
        return {
            "agent": planner.name, "n": len(gaps), "imagined": mean_row_any(dreamt.returns),
            "real": mean_row_any(real.returns), "gap": {"mean": float(np.mean(gaps)), "low": low, "high": high},
            "real_success": float(np.mean(real.successes)), "imagined_success": float(np.mean(dreamt.successes)),
        }  # fmt: skip

    # --- verdict --------------------------------------------------------------------------------------------------

    def reasons(self, found: Mapping[str, Any]) -> list[str]:
        """Why this model is not certified; empty when it is."""
        config, risk = self.config, found["risk"]
        reasons = []
        if min(risk["calibration"], risk["held_out"]) < config.least:
            reasons.append(f"too thin: {risk['calibration']} calibration and {risk['held_out']} held-out steps, "
                           f"fewer than {config.least}")  # fmt: skip
        if risk["model"] is None:
            return [*reasons, f"no risk can be calibrated at a level of {config.level:g}"]
        # One calibration of n steps misses its level by chance, too; only what is beyond both chances counts.
        slack = 2 * math.sqrt(config.level * (1 - config.level) / (risk["calibration"] * (1 - FIT_SHARE)))
        if risk["coverage"]["high"] < config.level - slack:
            reasons.append(f"the risk does not hold: {risk['coverage']['mean']:.3f} covered, {config.level:g} promised")
        if risk["threshold"] is None:
            reasons.append(f"no steps can be shown to be wrong less often than {config.step_error:g}")
        if found["safe_horizon"] == 0:
            reasons.append(f"wrong more often than {config.horizon_error:g} after a single step")
        if found["coverage"]["actions_never_seen"]:
            reasons.append(f"actions never seen in the data: {', '.join(found['coverage']['actions_never_seen'])}")
        return reasons


def mean_row_any(values: Sequence[float]) -> dict[str, Any]:
    """Mean and interval of values that need not lie in [0, 1]."""
    low, high = mean_interval(values)
    return {"mean": float(np.mean(values)), "low": low if math.isfinite(low) else None,
            "high": high if math.isfinite(high) else None, "n": len(values)}  # fmt: skip


def _set_size(model: RiskModel, risk: float, belief: Belief) -> int:
    """Predictions in the set of a step; none means that the model had better not be asked."""
    chances = belief.chances
    return sum(model.inside(risk, chance / chances.sum()) for chance in chances)


def _risk_curve(risks: np.ndarray, wrong: np.ndarray) -> list[dict[str, float]]:
    """Error among the steps of lowest risk, by how many of them are accepted."""
    order = np.argsort(risks)
    counts = [max(1, round(len(order) * share / 20)) for share in range(1, 21)]
    return [{"share": n / len(order), "risk": float(risks[order][n - 1]), "wrong": float(wrong[order][:n].mean())}
            for n in counts]  # fmt: skip


def _auroc(risks: np.ndarray, bad: np.ndarray) -> float | None:
    """Chance that a wrong step has a higher risk than a right one; None without both kinds."""
    if bad.all() or not bad.any():
        return None
    above = (risks[bad][:, None] > risks[~bad][None]).mean()
    return float(above + 0.5 * (risks[bad][:, None] == risks[~bad][None]).mean())
