"""What the viewer's page holds: episodes, the observations they share, predictions, counterfactuals, tokens, curves.

Plain JSON values, the same as `viewer/src/data.ts` reads. An observation is written once, however often it is seen.
    book = PageBook("runs/lake"); book.add(episode, foretold=..., forks=...); book.data()
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from terrella.core.types import Episode, Frames, Observation, Prediction, Transition, Verdict
from terrella.show.counterfactuals import Branch, Foretold
from terrella.show.png import data_url


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What may be known of an episode beyond its record."""

    foretold: Sequence[Foretold] = ()
    forks: Sequence[Sequence[Branch]] = ()
    tokens: Mapping[str, Any] | None = None
    note: str = ""


@dataclass(slots=True)
class PageBook:
    """Collects episodes until they are written."""

    title: str
    about: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    curves: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    threshold: float | None = None
    """The certificate's: risks above it are drawn as such."""
    observations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    episodes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    bytes: int = 0
    """About what the observations and episodes take, before they are packed."""
    _places: dict[Observation, int] = field(default_factory=dict[Observation, int])

    def place(self, observation: Observation) -> int:
        """Where an observation stands in the page."""
        if observation not in self._places:
            self._places[observation] = len(self.observations)
            self.observations.append(seen_json(observation))
            self.bytes += _size(self.observations[-1])
        return self._places[observation]

    def add(self, episode: Episode, number: int, extras: Extras | None = None) -> None:
        """One episode more."""
        extras = extras or Extras()
        steps = [self._step(step, n, extras) for n, step in enumerate(episode.transitions)]
        row = {
            "id": number, "world": episode.world, "policy": episode.policy, "split": episode.split.value,
            "seed": episode.seed, "noise_seed": episode.noise_seed, "instance": episode.instance,
            "stop": episode.stop.value, "outcome": verdict_json(episode.outcome), "error": episode.error,
            "first": self.place(episode.first), "steps": steps, "note": extras.note, "flat": False,
        }  # fmt: skip
        self.episodes.append({**row, "tokens": extras.tokens} if extras.tokens else row)
        self.bytes += 200 * (len(steps) + 1) + (40 * len(extras.tokens["texts"]) if extras.tokens else 0)

    def _step(self, step: Transition, at: int, extras: Extras) -> dict[str, Any]:
        risk = step.info.get("risk")
        row: dict[str, Any] = {
            "action": step.action, "seen": self.place(step.next_observation), "reward": step.reward,
            "terminated": step.terminated, "truncated": step.truncated, "info": dict(step.info),
            "risk": risk if isinstance(risk, float) else None,
        }  # fmt: skip
        if at < len(extras.foretold):
            told = extras.foretold[at]
            row["risk"] = told.risk
            said = told.said or Prediction(
                observation=step.observation, reward=0.0, terminated=False, logprob=-math.inf, risk=1.0
            )
            row["predicted"] = {
                **self.result(said), "risk": told.risk, "trust": told.trust, "verdict": verdict_json(told.verdict)
            }  # fmt: skip
        if at < len(extras.forks):
            row["forks"] = [self.branch(branch) for branch in extras.forks[at]]
        return row

    def branch(self, branch: Branch) -> dict[str, Any]:
        """An action that was not taken."""
        return branch_json(branch, self.place)

    def result(self, said: Prediction) -> dict[str, Any]:
        """A result of a step, its observation by place."""
        return result_json(said, self.place(said.observation))

    def data(self) -> dict[str, Any]:
        """The page's data; groups whose members all have the same value are marked."""
        mark_flat_groups(self.episodes)
        return {
            "title": self.title, "about": self.about, "observations": self.observations, "episodes": self.episodes,
            "curves": self.curves, "threshold": self.threshold, "pages": [], "page": 0, "live": None,
        }  # fmt: skip


def _size(seen: Mapping[str, Any]) -> int:
    return sum(map(len, seen["images"])) if "images" in seen else len(seen["text"])


def branch_json(branch: Branch, place: Any) -> dict[str, Any]:
    """An action that was not taken; `place` says how an observation is written."""
    return {
        "action": branch.action, "risk": branch.risk, "trust": branch.trust,
        "real": [result_json(result, place(result.observation)) for result in branch.real],
        "imagined": [result_json(result, place(result.observation)) for result in branch.imagined],
    }  # fmt: skip


def result_json(said: Prediction, seen: Any) -> dict[str, Any]:
    """A result of a step with its chance."""
    return {"seen": seen, "reward": said.reward, "terminated": said.terminated, "success": said.success,
            "chance": math.exp(min(said.logprob, 0.0))}  # fmt: skip


def seen_json(observation: Observation) -> dict[str, Any]:
    """An observation as a page shows it; frames become PNG pictures."""
    if isinstance(observation, Frames):
        return {"kind": "frames", "images": [data_url(frame) for frame in observation.array]}
    return {"kind": observation.kind.value, "text": observation.text}


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """All four parts of a verdict."""
    return {"value": verdict.value, "status": verdict.status.value, "parts": dict(verdict.parts),
            "evidence": verdict.evidence[:2000]}  # fmt: skip


def mark_flat_groups(episodes: Iterable[dict[str, Any]]) -> None:
    """A group shares its question (world, split, seed, and the note of its step); one value in it teaches nothing."""
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in episodes:
        groups[row["world"], row["split"], row["seed"], row["note"]].append(row)
    for rows in groups.values():
        values = {row["outcome"]["value"] for row in rows} - {None}
        for row in rows:
            row["flat"] = len(rows) > 1 and len(values) <= 1
