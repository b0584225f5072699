"""An outcome model: the probability that an attempt succeeded, from its actions and last page.

It is trained on attempts whose verdicts are known, calibrated on others (temperature), and measured
on a third set. Between `abstain_low` and `abstain_high` it abstains, and the attempt is not trained
on. A page can claim its own success: `injections.py` counts how often that changes a verdict.
    result = OutcomeModel(config).fit(agent, actor, families, folder, seed=0)
    result.accuracy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.integrity import read_hashed, write_hashed
from terrella.core.run_folder import rank, wait_for
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.data.attempts import (
    Attempt,
    PracticeTask,
    count_steps,
    read_attempts,
    scored_attempts,
    write_attempts,
)
from terrella.pipelines.webrl.agent import Agent, Player
from terrella.pipelines.webrl.injections import Flips, count_flips
from terrella.pipelines.webrl.updates import fit_judge

FloatArray = NDArray[np.float64]

BINS = 10
SPLITS = (Split.TRAIN, Split.VALIDATION, Split.TEST)
FIT_STREAM = 7
FIRST_SEED = 10_000_000
"""Far from the seeds of demonstrations and evaluations: none of those may be memorised."""
WEIGHTS, TEMPERATURE = "judge", "temperature.txt"


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
class OutcomeModelResult(PredictionMetrics):
    """A fitted outcome model, measured on attempts that it was not fitted to."""

    temperature: float
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
        """Attempts to train on. A quarter as many calibrate it, and as many again measure it."""
        epochs: int = 8
        batch: int = 64
        learning_rate: float = 1e-3
        abstain_low: float = 0.5
        abstain_high: float = 0.5
        """It abstains between these; if they are equal, it always decides."""

        def __post_init__(self) -> None:
            if not 0 <= self.abstain_low <= self.abstain_high <= 1:
                raise ConfigError(
                    "outcome_model",
                    f"{self.abstain_low:g}..{self.abstain_high:g} is not a band within 0..1",
                    "set abstain_low <= abstain_high",
                )

    config: Config

    def fit(
        self, agent: Agent, actor: Path, families: Sequence[str], folder: Path, *, seed: int
    ) -> OutcomeModelResult:
        """Let the actor play, train, calibrate and measure; the weights go to the folder.

        Rank 0 plays, all ranks train.
        """
        if rank() == 0:
            self._play(agent, actor, families, folder)
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
            )
            temperature = fit_temperature(judge.logits(validation), truths(validation))
            judge.save(folder / f"{WEIGHTS}{agent.suffix}")
            probs = sigmoid(judge.logits(test), temperature)
            injected = count_flips(
                judge,
                test,
                success=False,
                decide=lambda logit: self.decide(float(sigmoid(logit, temperature))),
            )
        write_hashed(folder / TEMPERATURE, repr(temperature).encode())
        env_steps = sum(map(count_steps, attempts.values()))
        return OutcomeModelResult(
            **vars(prediction_metrics(probs, truths(test), self.config)),
            temperature=temperature,
            env_steps=env_steps,
            trained_on=len(attempts[Split.TRAIN]),
            injected=injected,
        )

    def _play(self, agent: Agent, actor: Path, families: Sequence[str], folder: Path) -> None:
        count = self.config.attempts
        with agent.player(actor) as player:
            for split, wanted in zip(SPLITS, (count, count // 4, count // 4), strict=True):
                path = folder / _attempts_file(split)
                if not path.exists():
                    write_attempts(path, _play(player, families, wanted, split))

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
        temperature = float(read_hashed(folder / TEMPERATURE))
        probs = iter(sigmoid(logits, temperature).tolist())
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


def _play(player: Player, families: Sequence[str], count: int, split: Split) -> list[Attempt]:
    tasks = [
        PracticeTask(family=families[index % len(families)], seed=FIRST_SEED + index)
        for index in range(count)
    ]
    return scored_attempts(player.play(tasks, split=split))


def truths(attempts: Sequence[Attempt]) -> list[float]:
    """The world's own verdicts."""
    return [float(bool(attempt.success)) for attempt in attempts]


def sigmoid(logits: ArrayLike, temperature: float) -> FloatArray:
    """Probabilities from logits."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    probs: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(scaled, -30, 30)))
    return probs


def fit_temperature(logits: ArrayLike, labels: Sequence[float]) -> float:
    """The temperature with the least cross-entropy, from a fixed grid of steps of five percent."""
    grid = 1.05 ** np.arange(-60, 61)
    target = np.asarray(labels)

    def cross_entropy(temperature: float) -> float:
        prob = np.clip(sigmoid(logits, temperature), 1e-9, 1 - 1e-9)
        return float(-(target * np.log(prob) + (1 - target) * np.log(1 - prob)).mean())

    return float(min(grid, key=cross_entropy)) if len(target) else 1.0


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
