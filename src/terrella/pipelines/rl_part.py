"""RL as one part of a longer pipeline, after a model was fitted.

trained = rl_finetune(run, engine, fitted, source, config, seed=0, evaluate_on=200)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from terrella.core.files import write_json_lines
from terrella.core.metric import Metric
from terrella.core.run_folder import RunFolder
from terrella.engines.configs import RlvrConfig
from terrella.engines.interface import Engine
from terrella.pipelines.curve import step_values
from terrella.pipelines.validation import validate
from terrella.rollout.source import EpisodeSource


@dataclass(frozen=True, kw_only=True)
class RlPart:
    """Metrics on validation tasks, and the reward by step."""

    before: Metric
    after: Metric
    reward: list[float | None]
    """None for a step whose verdicts were all masked."""


def rl_finetune(
    run: RunFolder,
    engine: Engine,
    start: Path,
    source: EpisodeSource,
    config: RlvrConfig,
    *,
    seed: int,
    evaluate_on: int,
) -> RlPart:
    """RLVR from the model in `start` to `rl/model` in the run's folder; done once."""
    trained = run / "rl" / "model"

    def train() -> list[float | None]:
        result = engine.rlvr(start, source, config, trained, seed=seed, progress=run.progress)
        if run.is_main:
            write_json_lines(run / "curve.jsonl", result.curve)
        return step_values(result.curve, "reward")

    def measure(model: Path) -> Metric:
        return validate(engine, source, model, count=evaluate_on, seed=seed).metric

    before = run.part("rl/before", Metric, lambda: measure(start))
    reward = run.part("rl/reward", list[float | None], train, collective=True)
    after = run.part("rl/after", Metric, lambda: measure(trained))
    return RlPart(before=before, after=after, reward=reward)
