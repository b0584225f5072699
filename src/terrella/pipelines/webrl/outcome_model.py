"""An outcome model: the probability that an attempt succeeded, from its actions and last page.

It is trained on attempts whose verdicts are known, calibrated on others (a scale and a shift of its
logits), and measured on a third set. Between `abstain_low` and `abstain_high` it abstains, and the
attempt is not trained on. A page can claim its own success: `injections.py` counts how often that
changes a verdict.
    result = OutcomeModel(config).fit(agent, actor, families, folder, seed=0, patience=5)
    result.accuracy
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrella.core.bounds import check_above_zero, check_least
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.integrity import read_hashed, write_hashed
from terrella.core.protocols import Progress
from terrella.core.run_folder import rank, wait_for
from terrella.core.seeds import TASK_STREAM, instance_seed, stream
from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.data.attempt_journal import AttemptJournal, play_once
from terrella.data.attempts import (
    Attempt,
    PracticeTask,
    count_steps,
    read_attempts,
    scored_attempts,
)
from terrella.pipelines.webrl.agent import Agent, Player
from terrella.pipelines.webrl.injections import Flips, count_flips
from terrella.pipelines.webrl.updates import SILENT, begin, fit_judge

FloatArray = NDArray[np.float64]

BINS = 10
SPLITS = (Split.TRAIN, Split.VALIDATION, Split.TEST)
FIT_STREAM = 7
FIRST_SEED = 10_000_000
"""Far from the seeds of demonstrations and evaluations: none of those may be memorised."""
WEIGHTS, CALIBRATION = "judge", "calibration.json"
FARTHEST_SHIFT = 60.0
"""Largest shift of scaled logits: beyond it a probability is 0 or 1."""


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Attempts with similar predictions: what was predicted, and what happened."""

    predicted: float
    actual: float
    n: int


@dataclass(frozen=True, kw_only=True)
class PredictionMetrics:
    """How predictions of success compare with the world's verdicts."""

    n: int
    base_rate: float
    accuracy: float
    """Fraction of the attempts that were decided, and correctly; with its 95% interval."""
    low: float
    high: float
    false_success: float
    """Fraction of the failures that were judged a success."""
    false_failure: float
    """Fraction of the successes that were judged a failure."""
    brier: float
    calibration: list[CalibrationBin]
    calibration_error: float
    abstained: float
    accuracy_when_answering: float | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Probabilities from logits: their scale, and a shift.

    A language model may say YES of everything and still rank attempts well. A temperature alone
    moves no verdict, and such a model would call every attempt a success.
    """

    scale: float
    shift: float

    @classmethod
    def fit(cls, logits: ArrayLike, labels: Sequence[float]) -> Calibration:
        """The least cross-entropy over scales in steps of five percent, each with its best shift.

        As Platt did, labels are drawn towards each other: a set that is separated without an error
        does not make probabilities certain.
        """
        logit, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels) > 0.5
        if not len(truth):
            return cls(scale=1.0, shift=0.0)
        won, lost = int(truth.sum()), int((~truth).sum())
        target = np.where(truth, (won + 1) / (won + 2), 1 / (lost + 2))
        candidates = [
            cls(scale=scale, shift=_best_shift(logit * scale, target))
            for scale in (1.05 ** np.arange(-60, 61)).tolist()
        ]

        def cross_entropy(candidate: Calibration) -> float:
            prob = np.clip(candidate.probs(logit), 1e-9, 1 - 1e-9)
            return float(-(target * np.log(prob) + (1 - target) * np.log(1 - prob)).mean())

        return min(candidates, key=cross_entropy)

    def probs(self, logits: ArrayLike) -> FloatArray:
        """The probability of success for each logit."""
        return _sigmoid(np.asarray(logits, dtype=np.float64) * self.scale + self.shift)


@dataclass(frozen=True, kw_only=True)
class OutcomeModelResult(PredictionMetrics):
    """A fitted outcome model, measured on attempts that it was not fitted to."""

    scale: float
    shift: float
    """Shift of its logits; see `Calibration`."""
    env_steps: int
    trained_on: int
    injected: Flips
    """Failures that a claim on the page turned into a success."""


@dataclass(frozen=True, kw_only=True)
class OutcomeErrors:
    """Decisions of the outcome model in one phase, compared with the world's verdicts."""

    n: int
    abstained: int
    wrong: int
    false_success: int
    truly_won: float


class OutcomeModel(Configurable):
    """Fits, decides and measures."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        attempts: int = 1000
        """Attempts to train on. A quarter as many calibrate it, and as many again measure it.

        At least 4, so that each of the three has one.
        """
        epochs: int = 8
        batch: int = 64
        learning_rate: float = 1e-3
        abstain_low: float = 0.5
        abstain_high: float = 0.5
        """It abstains between these; if they are equal, it always decides."""

        def __post_init__(self) -> None:
            check_least(self, attempts=4, epochs=1, batch=1)
            check_above_zero(self, "learning_rate")
            if not 0 <= self.abstain_low <= self.abstain_high <= 1:
                raise ConfigError(
                    "outcome_model",
                    f"{self.abstain_low:g}..{self.abstain_high:g} is not a band within 0..1",
                    "set abstain_low <= abstain_high",
                )

    config: Config

    def fit(
        self,
        agent: Agent,
        actor: Path,
        families: Sequence[str],
        folder: Path,
        *,
        seed: int,
        patience: int,
        progress: Progress = SILENT,
    ) -> OutcomeModelResult:
        """Let the actor play, train, calibrate and measure; the weights go to the folder.

        Rank 0 plays, all ranks train. `patience` is that of an `AttemptJournal`.
        """
        if rank() == 0:
            self._play(agent, actor, families, folder, seed, patience, progress)
        attempts = {split: _read_when_made(folder / _attempts_file(split)) for split in SPLITS}
        validation, test = attempts[Split.VALIDATION], attempts[Split.TEST]
        with agent.judge(None, base=actor) as judge:
            fit_judge(
                judge,
                attempts[Split.TRAIN],
                learning_rate=self.config.learning_rate,
                epochs=self.config.epochs,
                batch=self.config.batch,
                rng=stream(TASK_STREAM, seed, FIT_STREAM),
                progress=progress,
            )
            calibration = Calibration.fit(judge.logits(validation), truths(validation))
            judge.save(folder / f"{WEIGHTS}{agent.suffix}")
            probs = calibration.probs(judge.logits(test))
            injected = count_flips(
                judge,
                test,
                success=False,
                decide=lambda logit: self.decide(float(calibration.probs(logit))),
            )
        if rank() == 0:
            write_hashed(folder / CALIBRATION, json.dumps(asdict(calibration)).encode())
        env_steps = sum(map(count_steps, attempts.values()))
        return OutcomeModelResult(
            **vars(prediction_metrics(probs, truths(test), self.config)),
            **asdict(calibration),
            env_steps=env_steps,
            trained_on=len(attempts[Split.TRAIN]),
            injected=injected,
        )

    def _play(
        self,
        agent: Agent,
        actor: Path,
        families: Sequence[str],
        folder: Path,
        seed: int,
        patience: int,
        progress: Progress,
    ) -> None:
        count = self.config.attempts
        with agent.player(actor) as player:
            for split, wanted in zip(SPLITS, (count, count // 4, count // 4), strict=True):
                play_once(
                    folder / _attempts_file(split),
                    partial(_play, player, families, wanted, split, seed, progress),
                    patience=patience,
                )

    # --- decisions --------------------------------------------------------------------------------

    def success_probs(
        self, agent: Agent, folder: Path, attempts: Sequence[Attempt]
    ) -> list[float | None]:
        """The probability that each attempt succeeded; None for one that broke.

        The world's verdict is not needed: tasks that a curriculum wrote may have none.
        """
        saved = folder / f"{WEIGHTS}{agent.suffix}"
        with agent.judge(saved, base=saved) as judge:
            logits = judge.logits([attempt for attempt in attempts if attempt.can_be_judged])
        calibration = Calibration(**json.loads(read_hashed(folder / CALIBRATION)))
        probs = iter(calibration.probs(logits).tolist())
        return [next(probs) if attempt.can_be_judged else None for attempt in attempts]

    def decide(self, prob: float | None) -> float | None:
        """1.0 for success, 0.0 for failure, None if it abstains."""
        if prob is None or self.config.abstain_low < prob < self.config.abstain_high:
            return None
        return float(prob >= self.config.abstain_high)


def _attempts_file(split: Split) -> str:
    return f"attempts-{split.value}.jsonl"


def _read_when_made(path: Path) -> list[Attempt]:
    wait_for(path)
    return read_attempts(path)


def _play(
    player: Player,
    families: Sequence[str],
    count: int,
    split: Split,
    seed: int,
    progress: Progress,
    journal: AttemptJournal | None,
) -> list[Attempt]:
    begin(progress, f"attempts for the outcome model, {split.value}", count)
    tasks = [
        PracticeTask(
            family=families[index % len(families)], seed=instance_seed(seed, FIRST_SEED + index)
        )
        for index in range(count)
    ]
    played = player.play(
        tasks, split=split, watch=lambda _, done: progress.advance(done), journal=journal
    )
    scored = scored_attempts(played)
    if not scored:
        raise ConfigError(
            "outcome_model",
            f"none of {count} {split.value} attempts has a verdict: there is nothing to learn from",
            "look into the log for why they are masked, or set more outcome_model.attempts",
        )
    return scored


def truths(attempts: Sequence[Attempt]) -> list[float]:
    """The world's own verdicts."""
    return [float(bool(attempt.success)) for attempt in attempts]


def _sigmoid(logits: FloatArray) -> FloatArray:
    probs: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(logits, -30, 30)))
    return probs


def _best_shift(logits: FloatArray, target: FloatArray) -> float:
    """The shift with the least cross-entropy: probabilities then have the mean of the targets."""
    reach = FARTHEST_SHIFT + float(np.abs(logits).max())
    low, high = -reach, reach
    for _ in range(60):
        middle = (low + high) / 2
        if _sigmoid(logits + middle).mean() < target.mean():
            low = middle
        else:
            high = middle
    return (low + high) / 2


def prediction_metrics(
    probs: ArrayLike, labels: Sequence[float], config: OutcomeModel.Config
) -> PredictionMetrics:
    """Accuracy with its interval, both kinds of error, calibration and the effect of abstaining.

    The decisions are those of `OutcomeModel.decide`.
    """
    prob = np.asarray(probs, dtype=np.float64)
    truth = np.asarray(labels) > 0.5
    silent = (prob > config.abstain_low) & (prob < config.abstain_high)
    claimed = prob >= config.abstain_high
    right = (claimed == truth) & ~silent
    wrong = (claimed != truth) & ~silent
    low, high = wilson(int(right.sum()), len(right))
    curve = _calibration(prob, truth)
    gaps = sum(abs(part.predicted - part.actual) * part.n for part in curve)
    return PredictionMetrics(
        n=len(truth),
        base_rate=float(truth.mean()),
        accuracy=float(right.mean()),
        low=low,
        high=high,
        false_success=float((wrong & ~truth).sum() / max(1, (~truth).sum())),
        false_failure=float((wrong & truth).sum() / max(1, truth.sum())),
        brier=float(((prob - truth) ** 2).mean()),
        calibration=curve,
        calibration_error=float(gaps / max(1, len(truth))),
        abstained=float(silent.mean()),
        accuracy_when_answering=float(right[~silent].mean()) if (~silent).any() else None,
    )


def _calibration(prob: FloatArray, truth: NDArray[np.bool_]) -> list[CalibrationBin]:
    bins = np.minimum((prob * BINS).astype(int), BINS - 1)
    curve = []
    for number in range(BINS):
        inside = bins == number
        if inside.any():
            part = CalibrationBin(
                predicted=float(prob[inside].mean()),
                actual=float(truth[inside].mean()),
                n=int(inside.sum()),
            )
            curve.append(part)
    return curve


def outcome_errors(attempts: Sequence[Attempt], outcomes: Sequence[float | None]) -> OutcomeErrors:
    """Compare the decisions of the outcome model with the world's verdicts."""
    pairs = [
        (attempt.success, outcome)
        for attempt, outcome in zip(attempts, outcomes, strict=True)
        if attempt.success is not None
    ]
    decided = [(truth, outcome >= 0.5) for truth, outcome in pairs if outcome is not None]
    return OutcomeErrors(
        n=len(pairs),
        abstained=len(pairs) - len(decided),
        wrong=sum(truth != success for truth, success in decided),
        false_success=sum(success and not truth for truth, success in decided),
        truly_won=sum(truth for truth, _ in pairs) / max(1, len(pairs)),
    )
