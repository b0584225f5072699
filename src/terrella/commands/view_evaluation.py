"""What a viewer page shows of an evaluation: its metrics, its curves, its episodes with replies.

for number, episode, extras in evaluated_episodes(run, first=0, count=100): extras.tokens
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from terrella.core.types import Episode
from terrella.data.token_records import recorded_episode
from terrella.show.evaluation import evaluation_tables, is_agent
from terrella.show.page_data import Extras
from terrella.show.runs import Run

MAX_REPLY = 2000
"""Characters of a reply that a page shows."""


def evaluated_episodes(run: Run, first: int, count: int) -> Iterator[tuple[int, Episode, Extras]]:
    """Episodes of an agent, world by world; a masked one whose world broke has no record."""
    rows = ((world, row) for world, found in run.evaluated_rows.items() for row in found)
    numbered = enumerate(rows)
    stop = first + count if count else None
    for number, (world, row) in itertools.islice(numbered, first, stop):
        episode = recorded_episode(row) if row.get("episode") else None
        if episode is not None:
            yield number, episode, Extras(note=world, tokens=_replies(row))


def _replies(row: Mapping[str, Any]) -> dict[str, Any]:
    """The replies in the panel that shows tokens: one span for each, headed by its number."""
    texts: list[str] = []
    thoughts = row["reasoning"] or [""] * len(row["replies"])
    for turn, (reply, thought) in enumerate(zip(row["replies"], thoughts, strict=True), start=1):
        thinking = f"(thought, as the API returned it) {thought[:MAX_REPLY]}\n" if thought else ""
        texts += [f"\nreply {turn}\n{thinking}", reply[:MAX_REPLY]]
    written = [number % 2 for number in range(len(texts))]
    return {
        "prompt": [],
        "texts": texts,
        "model": written,
        "logprobs": [0.0] * len(texts),
        "advantages": None,
    }


def pass_curves(run: Run) -> list[dict[str, Any]]:
    """pass@k by k, or accuracy by horizon, for each world."""
    if run.kind != "evaluation":
        return []
    curves = []
    for world, scores in run.metrics["worlds"].items():
        if is_agent(scores):
            points = [(int(k), metric["mean"]) for k, metric in scores["passes"].items()]
            name = f"pass@k on {world}"
        else:
            points = [(k, row["model"]["mean"]) for k, row in enumerate(scores["horizon"], start=1)]
            name = f"accuracy by horizon on {world}"
        if len(points) > 1:
            steps, values = (list(column) for column in zip(*points, strict=True))
            curves.append({"name": name, "steps": steps, "values": values})
    return curves


def about_evaluation(run: Run) -> list[tuple[str, str]]:
    """The tables of an evaluation as rows of the page's summary."""
    if run.kind != "evaluation":
        return []
    rows = []
    for title, _, table in evaluation_tables(run.metrics):
        for name, value, *beside in table:
            known = [text for text in beside[:2] if text]
            suffix = f" (beside: {', '.join(known)})" if known else ""
            rows.append((f"{title}: {name}", f"{value}{suffix}"))
    return rows
