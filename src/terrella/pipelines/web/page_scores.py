"""Scores of page world models on recorded steps, over all steps and over those with changes.

scores = page_scores(steps, replies)
scores.changed.exact
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.judge import judge
from terrella.core.metric import Metric
from terrella.core.protocols import Sampler
from terrella.core.tokens import TokenRequest
from terrella.core.types import Status, Transition, Tree, Verdict, show_text
from terrella.pipelines.web.page_steps import changes_of, situation_of
from terrella.verify.tree_diff import TreeDiff

NO_CHANGES = "="
EMPTY_LISTS = "New items:\nNone\nDeleted items:\nNone\nUpdated items:\nNone"


@dataclass(frozen=True, kw_only=True)
class StepScores:
    """Scores over a group of steps; None if every verdict of the group is masked."""

    n: int
    masked: int
    """Verdicts that say nothing about the reply; they are in no mean."""
    unparsable: int
    value: Metric | None
    f1: Metric | None
    exact: Metric | None


@dataclass(frozen=True, kw_only=True)
class PageScores:
    """Scores over all steps, and over those that changed the page or did not."""

    all: StepScores
    changed: StepScores
    unchanged: StepScores


def page_scores(steps: Sequence[Transition], replies: Sequence[str]) -> PageScores:
    """Verify one reply per step."""
    verifier = TreeDiff.Config().build()
    verdicts = [
        judge(verifier, reply=Tree(reply), truth=step.next_observation, before=step.observation)
        for step, reply in zip(steps, replies, strict=True)
    ]
    has_changes = [changes_of(step) != NO_CHANGES for step in steps]
    pairs = list(zip(verdicts, has_changes, strict=True))
    return PageScores(
        all=_step_scores(verdicts),
        changed=_step_scores([verdict for verdict, changed in pairs if changed]),
        unchanged=_step_scores([verdict for verdict, changed in pairs if not changed]),
    )


def _step_scores(verdicts: Sequence[Verdict]) -> StepScores:
    known = [verdict for verdict in verdicts if not verdict.masked]
    # A reply that cannot be read is wrong in every part.
    return StepScores(
        n=len(known),
        masked=len(verdicts) - len(known),
        unparsable=sum(verdict.status is Status.UNPARSABLE for verdict in known),
        value=_metric([verdict.value for verdict in known]),
        f1=_metric([verdict.parts.get("f1", 0.0) for verdict in known]),
        exact=_metric([verdict.parts.get("exact", 0.0) for verdict in known]),
    )


def _metric(values: Sequence[float | None]) -> Metric | None:
    return Metric.of(values) if values else None


def greedy_scores(
    sampler: Sampler, codec: InterleavedCodec, steps: Sequence[Transition], *, turn_tokens: int
) -> PageScores:
    """Scores of a model's greedy answers."""

    async def answer(step: Transition) -> str:
        request = TokenRequest(
            prompt_ids=codec.ask_observation(situation_of(step), step.action),
            max_new_tokens=turn_tokens,
            seed=0,
            temperature=0.0,
            stop_ids=codec.stop_ids,
        )
        sampled = await sampler.sample(request)
        return codec.text(sampled.token_ids[:-1]) if sampled.stopped else ""

    async def answer_all() -> list[str]:
        return list(await asyncio.gather(*map(answer, steps)))

    return page_scores(steps, asyncio.run(answer_all()))


def baseline_scores(steps: Sequence[Transition]) -> dict[str, PageScores]:
    """Replies that need no model: no changes, a copy of the page, empty lists of changes."""
    return {
        "no_change": page_scores(steps, [NO_CHANGES] * len(steps)),
        "copy_of_the_page": page_scores(steps, [show_text(step.observation) for step in steps]),
        "none": page_scores(steps, [EMPTY_LISTS] * len(steps)),
    }
