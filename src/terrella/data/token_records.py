"""Token records: training episodes token by token, for people to inspect.

One JSON line per episode, one file per training step. Tokens are stored as text (decoded one by
one, only for display: training never reads them), with whether the model wrote them, their
log-probability and their advantage. Frames are not stored.
    path = write_records(folder, 10, [token_record(episode, decode, advantages)])
    records = list(read_records(path))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from terrella.core.files import read_json_lines, write_atomic
from terrella.core.tokens import TokenEpisode
from terrella.core.types import (
    Episode,
    Frames,
    Kind,
    Observation,
    Split,
    State,
    Status,
    Stop,
    Text,
    Transition,
    Tree,
    Verdict,
)

TEXT_KINDS: dict[str, type[Text] | type[State] | type[Tree]] = {
    Kind.TEXT: Text,
    Kind.STATE: State,
    Kind.TREE: Tree,
}


def token_record(
    episode: TokenEpisode,
    decode: Callable[[int], str],
    advantages: Sequence[float] | None,
    predicted: str | None = None,
) -> dict[str, Any]:
    """One episode as JSON values; `advantages` is None for an episode without a gradient."""
    seed, _, noise_seed = episode.group.partition("/")
    return {
        "seed": int(seed),
        "noise_seed": int(noise_seed),
        "outcome": verdict_record(episode.outcome),
        "predicted": predicted,
        "prompt": [decode(token) for token in episode.prompt_ids],
        "texts": [decode(token) for token in episode.completion_ids],
        "model": [int(by_model) for by_model in episode.model_mask],
        "logprobs": [round(logprob, 4) for logprob in episode.logprobs],
        "advantages": None if advantages is None else [round(a, 4) for a in advantages],
        "episode": None if episode.record is None else episode_record(episode.record),
    }


def write_records(folder: Path, step: int, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write the records of one training step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:07d}.jsonl"
    write_atomic(path, "".join(json.dumps(record) + "\n" for record in records).encode())
    return path


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, each with its training step."""
    step = int(path.stem.partition("-")[2])
    for record in read_json_lines(path):
        yield {"step": step, **record}


def recorded_verdict(record: Mapping[str, Any]) -> Verdict:
    """The verdict in a record."""
    return Verdict(
        value=record["value"],
        parts=record["parts"],
        status=Status(record["status"]),
        evidence=record["evidence"],
    )


def recorded_episode(record: Mapping[str, Any]) -> Episode | None:
    """The episode in a record; None for a prediction task, which has no episode."""
    fields = record["episode"]
    if fields is None:
        return None
    observations = [_read(row) for row in fields["seen"]]
    steps = tuple(
        Transition(observation=before, next_observation=after, **step)
        for before, after, step in zip(
            observations, observations[1:], fields["steps"], strict=False
        )
    )
    return Episode(
        world=fields["world"],
        instance=fields["instance"],
        split=Split(fields["split"]),
        seed=fields["seed"],
        noise_seed=fields["noise_seed"],
        policy=fields["policy"],
        first=observations[0],
        transitions=steps,
        stop=Stop(fields["stop"]),
        outcome=recorded_verdict(record["outcome"]),
        error=fields["error"],
    )


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    return {
        "value": verdict.value,
        "parts": dict(verdict.parts),
        "status": verdict.status.value,
        "evidence": verdict.evidence,
    }


def episode_record(episode: Episode) -> dict[str, Any]:
    """An episode as JSON values; `recorded_episode` reads it back, with its outcome beside it."""
    step_fields = ("action", "reward", "terminated", "truncated")
    observations = [episode.first, *(step.next_observation for step in episode.transitions)]
    return {
        "world": episode.world,
        "instance": episode.instance,
        "split": episode.split.value,
        "seed": episode.seed,
        "noise_seed": episode.noise_seed,
        "policy": episode.policy,
        "stop": episode.stop.value,
        "error": episode.error,
        "seen": [_observation(observation) for observation in observations],
        "steps": [
            {name: getattr(step, name) for name in step_fields} | {"info": dict(step.info)}
            for step in episode.transitions
        ],
    }


def _observation(observation: Observation) -> dict[str, str]:
    if isinstance(observation, Frames):
        return {"kind": Kind.TEXT, "text": "(frames)"}
    return {"kind": observation.kind.value, "text": observation.text}


def _read(row: Mapping[str, str]) -> Observation:
    return TEXT_KINDS[row["kind"]](row["text"])
