"""What a model was trained on, token by token, for a person to look at: one JSON line per episode, one file per step.

Tokens are kept as text (decoded one by one, for reading only: training never sees them again), with who wrote them,
how likely they were and where they were pushed. Frames are not kept.
    write_records(folder, 10, [token_record(episode, decode, advantages)]); list(read_records(path))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from terrella.core.protocols import TokenEpisode
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
from terrella.data.store import write_atomic

RECORDS: dict[str, type[Text] | type[State] | type[Tree]] = {Kind.TEXT: Text, Kind.STATE: State, Kind.TREE: Tree}


def token_record(
    episode: TokenEpisode,
    decode: Callable[[int], str],
    advantages: Sequence[float] | None,
    predicted: str | None = None,
) -> dict[str, Any]:
    """One episode as plain values; `advantages` is None where the episode taught nothing."""
    seed, _, noise_seed = episode.group.partition("/")
    return {
        "seed": int(seed), "noise_seed": int(noise_seed), "outcome": _verdict(episode.outcome), "predicted": predicted,
        "prompt": [decode(token) for token in episode.prompt_ids],
        "texts": [decode(token) for token in episode.completion_ids],
        "model": [int(mine) for mine in episode.model_mask], "logprobs": [round(p, 4) for p in episode.logprobs],
        "advantages": None if advantages is None else [round(a, 4) for a in advantages],
        "episode": None if episode.record is None else _episode(episode.record),
    }  # fmt: skip


def write_records(folder: Path, step: int, records: Sequence[Mapping[str, Any]]) -> Path:
    """The file of one step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:07d}.jsonl"
    write_atomic(path, "".join(json.dumps(record) + "\n" for record in records).encode())
    return path


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """What was written, with its step."""
    step = int(path.stem.partition("-")[2])
    for line in path.read_text("utf-8").splitlines():
        yield {"step": step, **json.loads(line)}


def recorded_verdict(found: Mapping[str, Any]) -> Verdict:
    """A verdict that was written."""
    return Verdict(
        value=found["value"], parts=found["parts"], status=Status(found["status"]), evidence=found["evidence"]
    )


def recorded_episode(record: Mapping[str, Any]) -> Episode | None:
    """The episode of a record; None for a question with one answer."""
    found = record["episode"]
    if found is None:
        return None
    seen = [_read(row) for row in found["seen"]]
    steps = tuple(
        Transition(observation=before, next_observation=after, **step)
        for before, after, step in zip(seen, seen[1:], found["steps"], strict=False)
    )
    return Episode(
        world=found["world"], instance=found["instance"], split=Split(found["split"]), seed=found["seed"],
        noise_seed=found["noise_seed"], policy=found["policy"], first=seen[0], transitions=steps,
        stop=Stop(found["stop"]), outcome=recorded_verdict(record["outcome"]), error=found["error"],
    )  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {"value": verdict.value, "parts": dict(verdict.parts), "status": verdict.status.value,
            "evidence": verdict.evidence}  # fmt: skip


def _episode(episode: Episode) -> dict[str, Any]:
    fields = ("action", "reward", "terminated", "truncated")
    return {
        "world": episode.world, "instance": episode.instance, "split": episode.split.value, "seed": episode.seed,
        "noise_seed": episode.noise_seed, "policy": episode.policy, "stop": episode.stop.value, "error": episode.error,
        "seen": [_seen(one) for one in (episode.first, *(step.next_observation for step in episode.transitions))],
        "steps": [{name: getattr(step, name) for name in fields} | {"info": dict(step.info)}
                  for step in episode.transitions],
    }  # fmt: skip


def _seen(observation: Observation) -> dict[str, str]:
    text = "(frames)" if isinstance(observation, Frames) else observation.text
    return {"kind": Kind.TEXT if isinstance(observation, Frames) else observation.kind.value, "text": text}


def _read(row: Mapping[str, str]) -> Observation:
    return RECORDS[row["kind"]](row["text"])
