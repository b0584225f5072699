"""Scores of page world models on recorded steps, over all steps and over those with changes.

scores = page_scores(steps, replies)
scores.changed.f1, scores.all.well_formed
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from terrella.codecs.pages import PageForm
from terrella.core.judge import judge
from terrella.core.metric import Metric
from terrella.core.protocols import Codec, Progress, Sampler
from terrella.core.tokens import TokenRequest
from terrella.core.types import Status, Transition, Tree, Verdict, show_text
from terrella.pipelines.web.page_steps import VERIFIERS, changes_of, situation_of

NO_CHANGES = "="
EMPTY_LISTS = "New items:\nNone\nDeleted items:\nNone\nUpdated items:\nNone"
NOTHING: dict[PageForm, str] = {"changes": NO_CHANGES, "sections": EMPTY_LISTS}
"""How each form says that nothing changes."""
ASKED_AT_ONCE = 64
"""Questions that a sampler holds at once: each keeps the keys and values of a whole page."""


@dataclass(frozen=True, kw_only=True)
class PageRow:
    """One step, what the model wrote about it, and the verdict."""

    action: str
    changed: bool
    """Whether the step changes the page."""
    reply: str
    """The answer; empty if there was none to be read."""
    readable: bool
    value: float | None
    """None for a verdict that says nothing about the reply."""
    f1: float
    exact: float


@dataclass(frozen=True, kw_only=True)
class StepScores:
    """Scores over a group of steps; None if every verdict of the group is masked."""

    n: int
    masked: int
    """Verdicts that say nothing about the reply; they are in no mean."""
    unparsable: int
    well_formed: Metric | None
    """Share of the replies that could be read."""
    value: Metric | None
    f1: Metric | None
    exact: Metric | None


@dataclass(frozen=True, kw_only=True)
class PageScores:
    """Scores over all steps, and over those that changed the page or did not."""

    all: StepScores
    changed: StepScores
    unchanged: StepScores


def page_rows(
    steps: Sequence[Transition], replies: Sequence[str], form: PageForm = "changes"
) -> list[PageRow]:
    """Verify one reply per step."""
    verifier = VERIFIERS[form].build()
    rows = []
    for step, reply in zip(steps, replies, strict=True):
        verdict: Verdict = judge(
            verifier, reply=Tree(reply), truth=step.next_observation, before=step.observation
        )
        rows.append(
            PageRow(
                action=step.action,
                changed=changes_of(step, form) != NOTHING[form],
                reply=reply,
                readable=verdict.status is not Status.UNPARSABLE,
                value=None if verdict.masked else verdict.value,
                f1=verdict.parts.get("f1", 0.0),
                exact=verdict.parts.get("exact", 0.0),
            )
        )
    return rows


def page_scores(
    steps: Sequence[Transition], replies: Sequence[str], form: PageForm = "changes"
) -> PageScores:
    """Scores of one reply per step."""
    return score_rows(page_rows(steps, replies, form))


def score_rows(rows: Sequence[PageRow]) -> PageScores:
    """Scores of verified replies."""
    return PageScores(
        all=_step_scores(rows),
        changed=_step_scores([row for row in rows if row.changed]),
        unchanged=_step_scores([row for row in rows if not row.changed]),
    )


def _step_scores(rows: Sequence[PageRow]) -> StepScores:
    known = [row for row in rows if row.value is not None]
    # A reply that cannot be read is wrong in every part.
    return StepScores(
        n=len(known),
        masked=len(rows) - len(known),
        unparsable=sum(not row.readable for row in known),
        well_formed=_metric([float(row.readable) for row in known]),
        value=_metric([row.value for row in known]),
        f1=_metric([row.f1 for row in known]),
        exact=_metric([row.exact for row in known]),
    )


def _metric(values: Sequence[float | None]) -> Metric | None:
    return Metric.of(values) if values else None


def greedy_replies(
    sampler: Sampler,
    codec: Codec,
    steps: Sequence[Transition],
    *,
    turn_tokens: int,
    progress: Progress,
) -> list[str]:
    """A model's greedy answer about each step; empty where there is none to be read."""
    gate = asyncio.Semaphore(ASKED_AT_ONCE)
    done = 0

    async def answer(step: Transition) -> str:
        nonlocal done
        request = TokenRequest(
            prompt_ids=codec.ask_observation(situation_of(step), step.action),
            max_new_tokens=turn_tokens,
            seed=0,
            temperature=0.0,
            stop_ids=codec.stop_ids,
        )
        async with gate:
            sampled = await sampler.sample(request)
        done += 1
        progress.advance(done)
        found = codec.read_observation(sampled.token_ids, like=step.next_observation)
        return "" if found is None else show_text(found)

    async def answer_all() -> list[str]:
        return list(await asyncio.gather(*map(answer, steps)))

    progress.phase("score", len(steps))
    progress.advance(0)
    return asyncio.run(answer_all())


def baseline_scores(
    steps: Sequence[Transition], form: PageForm = "changes"
) -> dict[str, PageScores]:
    """Replies that need no model: no changes, a copy of the page, empty lists of changes."""
    replies = {
        "no_change": [NOTHING[form]] * len(steps),
        "copy_of_the_page": [show_text(step.observation) for step in steps],
    }
    if form == "changes":
        replies["none"] = [EMPTY_LISTS] * len(steps)
    return {name: page_scores(steps, each, form) for name, each in replies.items()}
