"""The data of a viewer page: episodes with predictions, counterfactuals, tokens and curves.

Plain JSON values, as `viewer/src/data.ts` reads them. An observation is written once, however often
it occurs.
    builder = PageBuilder("runs/lake")
    builder.add(episode, number=0, extras=Extras(predictions=..., forks=...))
    builder.data()
"""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from terrella.core.types import Episode, Frames, Observation, Prediction, Transition, Verdict
from terrella.show.counterfactuals import CounterfactualBranch, StepPrediction
from terrella.show.png import data_url

MAX_EVIDENCE = 2000


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What is known of an episode beyond its record."""

    predictions: Sequence[StepPrediction] = ()
    forks: Sequence[Sequence[CounterfactualBranch]] = ()
    tokens: Mapping[str, Any] | None = None
    screenshots: Sequence[bytes] = ()
    """PNG files: the page at the beginning and after each step."""
    note: str = ""


@dataclass(slots=True)
class PageBuilder:
    """Collects episodes, and returns the data of a page with them."""

    title: str
    about: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    curves: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    threshold: float | None = None
    """The certificate's risk threshold: higher risks are marked."""
    observations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    episodes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _indices: dict[Observation, int] = field(default_factory=dict[Observation, int])

    def index_of(self, observation: Observation) -> int:
        """Return the index of an observation in the page; a new one is added."""
        if observation not in self._indices:
            self._indices[observation] = len(self.observations)
            self.observations.append(page_observation(observation))
        return self._indices[observation]

    def add(self, episode: Episode, number: int, extras: Extras | None = None) -> None:
        """Add an episode under its number."""
        extras = extras or Extras()
        steps = [self._step(step, n, extras) for n, step in enumerate(episode.transitions)]
        row: dict[str, Any] = {
            "id": number,
            "world": episode.world,
            "policy": episode.policy,
            "split": episode.split.value,
            "seed": episode.seed,
            "noise_seed": episode.noise_seed,
            "instance": episode.instance,
            "stop": episode.stop.value,
            "outcome": verdict_json(episode.outcome),
            "error": episode.error,
            "first": self.index_of(episode.first),
            "steps": steps,
            "note": extras.note,
            "flat": False,
        }
        if extras.tokens:
            row["tokens"] = extras.tokens
        if extras.screenshots:
            row["screens"] = [_png_url(picture) for picture in extras.screenshots]
        self.episodes.append(row)

    def _step(self, step: Transition, index: int, extras: Extras) -> dict[str, Any]:
        risk = step.info.get("risk")
        row: dict[str, Any] = {
            "action": step.action,
            "seen": self.index_of(step.next_observation),
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "info": dict(step.info),
            "risk": risk if isinstance(risk, float) else None,
        }
        if index < len(extras.predictions):
            predicted = extras.predictions[index]
            row["risk"] = predicted.risk
            row["predicted"] = self._predicted(step, predicted)
        if index < len(extras.forks):
            row["forks"] = [branch_json(branch, self.index_of) for branch in extras.forks[index]]
        return row

    def _predicted(self, step: Transition, predicted: StepPrediction) -> dict[str, Any]:
        """A prediction that could not be read is shown as no change with probability 0."""
        prediction = predicted.prediction or Prediction(
            observation=step.observation,
            reward=0.0,
            terminated=False,
            logprob=-math.inf,
            risk=1.0,
        )
        return {
            **result_json(prediction, self.index_of(prediction.observation)),
            "risk": predicted.risk,
            "trust": predicted.trust,
            "verdict": verdict_json(predicted.verdict),
        }

    def data(self) -> dict[str, Any]:
        """Return the page's data; groups without reward variance are marked."""
        mark_flat_groups(self.episodes)
        return {
            "title": self.title,
            "about": self.about,
            "observations": self.observations,
            "episodes": self.episodes,
            "curves": self.curves,
            "threshold": self.threshold,
            "pages": [],
            "page": 0,
            "live": None,
        }


def branch_json(
    branch: CounterfactualBranch, observation_of: Callable[[Observation], Any]
) -> dict[str, Any]:
    """Write an action that was not taken; `observation_of` says how observations are written."""

    def results(predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
        return [result_json(result, observation_of(result.observation)) for result in predictions]

    return {
        "action": branch.action,
        "risk": branch.risk,
        "trust": branch.trust,
        "real": results(branch.real),
        "imagined": results(branch.imagined),
    }


def result_json(prediction: Prediction, observation: Any) -> dict[str, Any]:
    """Write a possible result of a step with its probability."""
    return {
        "seen": observation,
        "reward": prediction.reward,
        "terminated": prediction.terminated,
        "success": prediction.success,
        "chance": math.exp(min(prediction.logprob, 0.0)),
    }


def page_observation(observation: Observation) -> dict[str, Any]:
    """Write an observation as a page shows it; frames become PNG pictures."""
    if isinstance(observation, Frames):
        return {"kind": "frames", "images": [data_url(frame) for frame in observation.array]}
    return {"kind": observation.kind.value, "text": observation.text}


def _png_url(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Write all four fields of a verdict; long evidence is cut."""
    return {
        "value": verdict.value,
        "status": verdict.status.value,
        "parts": dict(verdict.parts),
        "evidence": verdict.evidence[:MAX_EVIDENCE],
    }


def mark_flat_groups(episodes: Iterable[dict[str, Any]]) -> None:
    """Mark groups whose members all have the same reward: nothing is learned from them.

    A group shares its task: world, split, seed, and the note of its training step.
    """
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in episodes:
        groups[row["world"], row["split"], row["seed"], row["note"]].append(row)
    for rows in groups.values():
        values = {row["outcome"]["value"] for row in rows} - {None}
        for row in rows:
            row["flat"] = len(rows) > 1 and len(values) <= 1
