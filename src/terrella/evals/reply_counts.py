"""How replies ended and how long they thought: what a limit on tokens cuts off does not act.

The same counts for a model that is sampled here and for one behind an endpoint.
    written = of_facts(episode.replies) + of_chat(reply)
    written_scores([written]).truncated
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from terrella.codecs.answers import split_reply
from terrella.core.metric import Metric
from terrella.core.tokens import ReplyFacts
from terrella.evals.pass_at_k import bootstrap_mean, share_mean
from terrella.policies.chat_client import ChatReply


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyCounts:
    """Counts of replies. They add up."""

    replies: int = 0
    truncated: int = 0
    """Replies that the limit on tokens cut off."""
    thoughts: int = 0
    """Replies with a thought."""
    truncated_thoughts: int = 0
    """Thoughts that were not ended."""
    counted_thoughts: int = 0
    """Thoughts whose length is known: an endpoint need not report it."""
    thought_tokens: int = 0
    """Tokens of those thoughts."""

    def __add__(self, other: ReplyCounts) -> ReplyCounts:
        names = [each.name for each in fields(self)]
        return ReplyCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class WrittenScores:
    """Means over instances. None where there is nothing to average."""

    truncated: Metric | None
    """Share of the replies that the limit on tokens cut off."""
    thought_tokens: Metric | None
    """Tokens of a thought, of those whose length is known."""
    truncated_thoughts: Metric | None
    """Share of the thoughts that were not ended."""


def of_facts(replies: Iterable[ReplyFacts]) -> ReplyCounts:
    """The counts of replies that were sampled here."""
    written = ReplyCounts()
    for reply in replies:
        thinks = reply.thought_tokens is not None
        written += ReplyCounts(
            replies=1,
            truncated=reply.truncated,
            thoughts=thinks,
            truncated_thoughts=reply.thought_truncated,
            counted_thoughts=thinks,
            thought_tokens=reply.thought_tokens or 0,
        )
    return written


def of_chat(reply: ChatReply) -> ReplyCounts:
    """The counts of a reply of an endpoint: its thought is in the text, beside it, or only counted.

    What stands beside an empty reply that ended may be a refusal, so it counts as no thought.
    """
    said = split_reply(reply.text)
    beside = bool(reply.reasoning) and bool(reply.text or not reply.finished)
    tokens = reply.usage.reasoning_tokens
    thinks = said.thought is not None or beside or tokens > 0
    unended = said.truncated or (thinks and not reply.finished and not said.rest.strip())
    if unended and not tokens:
        tokens = reply.usage.completion_tokens
    return ReplyCounts(
        replies=1,
        truncated=not reply.finished,
        thoughts=thinks,
        truncated_thoughts=unended,
        counted_thoughts=tokens > 0,
        thought_tokens=tokens,
    )


def written_scores(instances: Sequence[ReplyCounts]) -> WrittenScores:
    """The scores of all instances, from the sum of each one's replies."""

    def over(mean: Callable[[Sequence[float]], Metric], part: str, whole: str) -> Metric | None:
        values = [
            getattr(each, part) / getattr(each, whole) for each in instances if getattr(each, whole)
        ]
        if not values:
            return None
        return dataclasses.replace(mean(values), masked=len(instances) - len(values))

    return WrittenScores(
        truncated=over(share_mean, "truncated", "replies"),
        thought_tokens=over(bootstrap_mean, "thought_tokens", "counted_thoughts"),
        truncated_thoughts=over(share_mean, "truncated_thoughts", "thoughts"),
    )
