"""Episodes of a page from the tokens that a training run recorded.

Tokens are recorded with `--set record_every=10`.
    for number, episode, extras in token_episodes(read_run(Path("runs/rlvr")), limit=1000): ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from terrella.core.types import Episode, Frames, Prediction, Stop, Transition, Verdict
from terrella.data.token_records import read_records, recorded_episode, recorded_verdict
from terrella.rollout.tasks import PredictionTasks
from terrella.show.counterfactuals import StepPrediction
from terrella.show.page_data import Extras
from terrella.show.runs import Run

TOKEN_COLUMNS = ("prompt", "texts", "model", "logprobs", "advantages")


def token_episodes(run: Run, limit: int) -> Iterator[tuple[int, Episode, Extras]]:
    """Yield the recorded episodes in the order of training.

    A limit (0 is none) is divided evenly among the recorded steps.
    """
    per_step = max(1, limit // len(run.token_files)) if limit and run.token_files else None
    number = itertools.count()
    for path in run.token_files:
        for record in itertools.islice(read_records(path), per_step):
            episode = recorded_episode(record)
            predictions: list[StepPrediction] = []
            if episode is None:
                episode, predictions = _prediction_episode(run, record)
            if episode is not None:
                tokens = {key: record[key] for key in TOKEN_COLUMNS}
                note = f"step {record['step']}"
                yield (
                    next(number),
                    episode,
                    Extras(predictions=predictions, tokens=tokens, note=note),
                )


def _prediction_episode(
    run: Run, record: Mapping[str, Any]
) -> tuple[Episode | None, list[StepPrediction]]:
    """Show a prediction task of a world model as an episode of one step.

    The task is rebuilt from its number: tasks are a function of it.
    """
    if run.world is None:
        return None, []
    task = PredictionTasks(run.world, seed=int(run.config["seed"]))(record["noise_seed"])
    step = task.transition
    assert step is not None
    verdict = recorded_verdict(record["outcome"])
    episode = Episode(
        world=run.world.owner.name,
        instance="",
        split=task.split,
        seed=record["seed"],
        noise_seed=record["noise_seed"],
        policy="prediction task",
        first=step.observation,
        transitions=(step,),
        stop=Stop.OUT_OF_STEPS,
        outcome=verdict,
    )
    return episode, [_step_prediction(step, record, verdict)]


def _step_prediction(
    step: Transition, record: Mapping[str, Any], verdict: Verdict
) -> StepPrediction:
    """Return what was sampled as a prediction.

    Its risk is the probability that the model gave to everything else.
    """
    logprob = min(0.0, sum(record["logprobs"]))
    risk = 1.0 - math.exp(logprob)
    truth = step.next_observation
    if record["predicted"] is None or isinstance(truth, Frames):
        return StepPrediction(None, risk, "", verdict)
    prediction = Prediction(
        observation=type(truth)(record["predicted"]),
        reward=step.reward,
        terminated=step.terminated,
        logprob=logprob,
        risk=risk,
    )
    return StepPrediction(prediction, risk, "", verdict)
