"""One row per evaluated episode: what was won, how replies were written, what they cost.

The same row for a model that is sampled here and for one behind an endpoint, so their scores are
computed by the same code. A row holds the episode itself, for `terrella view`.
    row = token_row(episode, codec, asked); row.value, row.well_formed, row.replies
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from terrella.codecs.tagged import TaggedCodec, TextCodec
from terrella.core.protocols import Codec
from terrella.core.tokens import Task, TokenEpisode
from terrella.core.types import Episode, Status, Stop, Verdict
from terrella.data.token_records import episode_record, verdict_record
from terrella.evals.reply_counts import ReplyCounts, of_facts
from terrella.policies.chat_client import Usage


@dataclass(frozen=True, kw_only=True)
class AskedEpisode:
    """Which episode is played: an instance, and the number of the sample."""

    instance: str
    task: Task
    member: int

    @property
    def key(self) -> tuple[int, int]:
        """Rows are kept and sorted by it."""
        return self.task.seed, self.member


@dataclass(frozen=True, kw_only=True)
class EpisodeRow:
    """What is kept of an episode."""

    instance: str
    seed: int
    member: int
    value: float | None
    """The world's verdict; None for a masked episode, which is neither won nor lost."""
    status: str
    """How the verdict was reached; of a masked episode the cause."""
    reason: str = ""
    """Why it was masked."""
    total_reward: float = 0.0
    steps: int = 0
    valid: int = 0
    """Steps whose action the world could take."""
    effective: int = 0
    """Steps that changed the state."""
    turns: int = 0
    well_formed: int = 0
    """Replies in the expected form."""
    written: ReplyCounts
    """How the replies ended, and their thoughts."""
    out_of_tokens: bool = False
    """Whether the limit on the tokens of an episode, or the model's context, ended it."""
    usage: Usage = field(default_factory=Usage)
    replies: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    """What an API returned of the model's thoughts, by turn; nothing reads it."""
    outcome: dict[str, Any] | None = None
    episode: dict[str, Any] | None = None
    """The record of the episode; None if the world broke."""

    @property
    def won(self) -> bool:
        return self.value == 1.0

    @property
    def may_pass(self) -> bool:
        """Whether it was masked by something that may have passed: a server that was down."""
        return self.status == Status.POLICY_ERROR


def token_row(episode: TokenEpisode, codec: Codec, asked: AskedEpisode) -> EpisodeRow:
    """The row of an episode that a sampler has written."""
    replies = list(_replies(episode))
    written = sum(len(reply) for reply in replies)
    return make_row(
        asked,
        episode.outcome,
        episode.record,
        replies=[reply_text(codec, reply) for reply in replies],
        well_formed=sum(is_well_formed(codec, reply) for reply in replies),
        written=of_facts(episode.replies),
        usage=Usage(
            requests=len(replies),
            prompt_tokens=_read_tokens(episode, written),
            completion_tokens=written,
        ),
    )


def _read_tokens(episode: TokenEpisode, written: int) -> int:
    """What the model read: each turn's own prompt, or one prompt and what the world added."""
    if episode.turn_prompts:
        return sum(len(prompt) for prompt, _ in episode.sequences)
    return len(episode.prompt_ids) + len(episode.completion_ids) - written


def make_row(
    asked: AskedEpisode,
    outcome: Verdict,
    record: Episode | None,
    *,
    replies: Sequence[str],
    well_formed: int,
    written: ReplyCounts,
    usage: Usage,
) -> EpisodeRow:
    """A row; `record` is None where the world broke."""
    steps = record.transitions if record else ()
    return EpisodeRow(
        instance=asked.instance,
        seed=asked.task.seed,
        member=asked.member,
        value=outcome.value,
        status=outcome.status.value,
        reason=outcome.evidence if outcome.masked else "",
        total_reward=record.total_reward if record else 0.0,
        steps=len(steps),
        valid=sum(bool(step.info.get("valid")) for step in steps),
        effective=sum(bool(step.info.get("effective")) for step in steps),
        turns=len(replies),
        well_formed=well_formed,
        written=written,
        out_of_tokens=record is not None and record.stop is Stop.OUT_OF_TOKENS,
        usage=usage,
        replies=list(replies),
        outcome=verdict_record(outcome),
        episode=episode_record(record) if record else None,
    )


def _replies(episode: TokenEpisode) -> Iterator[tuple[int, ...]]:
    """The model's tokens, turn by turn."""
    before = 0
    for end in episode.turn_ends:
        places = range(before, end)
        yield tuple(episode.completion_ids[n] for n in places if episode.model_mask[n])
        before = end


def reply_text(codec: Codec, reply: Sequence[int]) -> str:
    """The text of a reply; all codecs of text can decode."""
    inner = codec.inner if isinstance(codec, TaggedCodec) else codec
    return cast(TextCodec, inner).text(reply)


def is_well_formed(codec: Codec, reply: Sequence[int]) -> bool:
    """Whether a reply has ended and holds an action, with all tags of its form."""
    if isinstance(codec, TaggedCodec):
        return codec.well_formed(reply)
    return bool(reply) and reply[-1] in codec.stop_ids and bool(codec.read_actions(reply))
