"""Replies that say what is seen and what will come, besides what to do: tags inside an agent's turn.

    worldmodel           <observation> now </observation><prediction> next </prediction><answer> Up || Left </answer>
    worldmodel_forward   <observation> now </observation><answer> Up || Left </answer><prediction> next </prediction>
    shown                Up      (no tags: the states are what the world shows between the replies)
The first is SPA's published order (goal, then the way there), the second a forward model. Tags are found by plain
search and states are exchanged on token ids: sampled tokens outside a state stay as they were. The hook: `with_states`.
    codec = TaggedCodec(InterleavedCodec(tokenizer), form="worldmodel")
    ids, spans = codec.with_states(sampled.token_ids, before="P_G", after="__√")
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from terrella.codecs.chat import SEPARATOR, read_answer
from terrella.core.protocols import Codec
from terrella.core.types import Observation, Situation

Form = Literal["plain", "worldmodel", "worldmodel_forward", "shown"]
OBSERVATION, PREDICTION, ANSWER = "observation", "prediction", "answer"
ORDERS: dict[str, tuple[str, ...]] = {
    "plain": (ANSWER,),
    "worldmodel": (OBSERVATION, PREDICTION, ANSWER),
    "worldmodel_forward": (OBSERVATION, ANSWER, PREDICTION),
    "shown": (),
}
TAG_WORDS = (*(f"<{slash}{tag}>" for tag in (OBSERVATION, PREDICTION, ANSWER) for slash in ("", "/")), SEPARATOR)
"""What a character tokenizer should know as single tokens."""


class Span(enum.IntEnum):
    """What a token of a reply belongs to; loss masks are chosen by it."""

    WORDS = 0
    OBSERVATION = 1
    PREDICTION = 2


class TextCodec(Codec, Protocol):
    """A codec with words: what `TaggedCodec` stands on (the interleaved and the chat codec both are)."""

    def write(self, text: str) -> list[int]:
        """Plain text as ids; it cannot hold control tokens."""
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """Ids as text."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where the inside of a tag stands in a reply's text."""

    start: int
    end: int


def find_tag(text: str, tag: str, after: int = 0) -> Place | None:
    """The inside of the first complete tag of this name; None without one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.find(opening, after)
    end = text.find(closing, start)
    return Place(start + len(opening), end) if start >= 0 and end >= 0 else None


def reply_form(form: Form) -> str:
    """How a chat model is told to reply."""
    inside = {OBSERVATION: "the current state", PREDICTION: "the state after your actions", ANSWER: "your actions"}
    tags = {tag: f"<{tag}> {inside[tag]} </{tag}>" for tag in inside}
    if form == "worldmodel":
        return f"<think>{tags[OBSERVATION]} your thoughts {tags[PREDICTION]}</think>{tags[ANSWER]}"
    if form == "worldmodel_forward":
        return f"<think>{tags[OBSERVATION]} your thoughts </think>{tags[ANSWER]}{tags[PREDICTION]}"
    return f"<think> your thoughts </think>{tags[ANSWER]}"


class TaggedCodec:
    """`core.protocols.Codec` over a codec with words; only what an agent writes in its turn is different."""

    def __init__(self, inner: TextCodec, *, form: Form, blank: str = "") -> None:
        """`inner` asks the questions (a chat codec must tell `reply_form(form)`); `blank` stands around a state."""
        self.inner, self.form, self.blank = inner, form, blank
        self.stop_ids = inner.stop_ids
        self._lengths: dict[int, int] = {}

    @property
    def states_in_replies(self) -> bool:
        """Whether a reply says what is seen and what will be seen."""
        return OBSERVATION in ORDERS[self.form]

    # --- questions: the inner codec's ------------------------------------------------------------------------------

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """What is seen, and an open turn."""
        return self.inner.ask_action(situation)

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """A world model's question has no tags of ours."""
        return self.inner.ask_observation(situation, action)

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """What the world forces between two replies."""
        return self.inner.world_turn(situation, cut_off=cut_off)

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        """As the inner codec."""
        return self.inner.answer_observation(observation)

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """As the inner codec."""
        return self.inner.read_observation(token_ids, like)

    # --- replies ---------------------------------------------------------------------------------------------------

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The reply that does this; its states are empty, because nobody has said them."""
        return self.answer(actions, before="", after="")[0]

    def answer(self, actions: Sequence[str], *, before: str, after: str) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """The canonical reply with these states, and what each of its tokens belongs to."""
        if not ORDERS[self.form]:
            bare = self.inner.answer_action(actions)
            return bare, (Span.WORDS,) * len(bare)
        states = {OBSERVATION: before, PREDICTION: after}
        inside = {tag: f"{self.blank}{state}{self.blank}" for tag, state in states.items()}
        inside[ANSWER] = SEPARATOR.join(actions)
        ids: list[int] = []
        spans: list[Span] = []
        for tag in ORDERS[self.form]:
            kind = Span[tag.upper()] if tag != ANSWER else Span.WORDS
            for text, span in ((f"<{tag}>", Span.WORDS), (inside[tag], kind), (f"</{tag}>", Span.WORDS)):
                written = self._write(text)
                ids += written
                spans += [span] * len(written)
        return (*ids, self.stop_ids[0]), (*spans, Span.WORDS)

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions of the last complete answer tag; without tags, of the whole reply."""
        if not ORDERS[self.form]:
            return self.inner.read_actions(token_ids)
        return read_answer(self.inner.text(token_ids))

    def read_states(self, token_ids: Sequence[int]) -> tuple[str | None, str | None]:
        """What the reply says is seen, and will be seen, without blanks around; None for a tag that is not there."""
        text = self.inner.text(token_ids)
        found = [find_tag(text, tag) if tag in ORDERS[self.form] else None for tag in (OBSERVATION, PREDICTION)]
        observed, predicted = (None if place is None else text[place.start : place.end].strip() for place in found)
        return observed, predicted

    def well_formed(self, token_ids: Sequence[int]) -> bool:
        """All tags of the form, complete, in their order, and an action in the answer; the turn is ended."""
        if not token_ids or token_ids[-1] not in self.stop_ids or not self.read_actions(token_ids):
            return False
        text, at = self.inner.text(token_ids), 0
        for tag in ORDERS[self.form]:
            place = find_tag(text, tag, at)
            if place is None:
                return False
            at = place.end
        return True

    def with_states(
        self, token_ids: Sequence[int], *, before: str | None, after: str | None
    ) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """The reply with these states inside its tags, and what each token belongs to; None leaves one as it is.

        A tag that is not there stays away. A token that straddles the edge of a tag is written anew, as two.
        """
        body, end = self._without_stop(token_ids)
        edges = self._edges(body)
        text = self.inner.text(body)
        ids: list[int] = []
        spans: list[Span] = []
        at = 0
        for place, span, new in self._places(text, before, after):
            for kind, piece in ((Span.WORDS, self._cut(body, edges, text, at, place.start)),
                                (span, self._state(body, edges, text, place, new))):  # fmt: skip
                ids += piece
                spans += [kind] * len(piece)
            at = place.end
        rest = [*self._cut(body, edges, text, at, len(text)), *end]
        return (*ids, *rest), (*spans, *[Span.WORDS] * len(rest))

    def _places(self, text: str, before: str | None, after: str | None) -> list[tuple[Place, Span, str | None]]:
        """The states in a reply, in the order in which they stand."""
        found = [
            (find_tag(text, tag), Span[tag.upper()], new)
            for tag, new in ((OBSERVATION, before), (PREDICTION, after))
            if tag in ORDERS[self.form]
        ]
        places = sorted(((p, s, n) for p, s, n in found if p is not None), key=lambda item: item[0].start)
        # A tag inside a tag is the model's mistake: only the outer one counts.
        return [item for i, item in enumerate(places) if i == 0 or item[0].start >= places[i - 1][0].end]

    def _state(self, ids: Sequence[int], edges: Sequence[int], text: str, place: Place, new: str | None) -> list[int]:
        if new is None:
            return self._cut(ids, edges, text, place.start, place.end)
        return self._write(f"{self.blank}{new}{self.blank}")

    def _without_stop(self, token_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        ids = list(token_ids)
        ended = bool(ids) and ids[-1] in self.stop_ids
        return (ids[:-1], ids[-1:]) if ended else (ids, [])

    def _edges(self, ids: Sequence[int]) -> list[int]:
        """The character that each token begins at, and the length of it all; half a character counts for nothing."""
        lengths = [self._length(token) for token in ids]
        if sum(lengths) == len(self.inner.text(ids)):  # every token is whole characters: no need to decode prefixes
            return list(itertools.accumulate(lengths, initial=0))
        return [len(self.inner.text(ids[:count]).rstrip("\ufffd")) for count in range(len(ids) + 1)]

    def _length(self, token: int) -> int:
        if token not in self._lengths:
            text = self.inner.text([token])
            self._lengths[token] = -1 if "\ufffd" in text else len(text)
        return self._lengths[token]

    def _cut(self, ids: Sequence[int], edges: Sequence[int], text: str, start: int, end: int) -> list[int]:
        """Tokens of text[start:end]: the sampled ones where they lie inside, written anew where they straddle."""
        first, last = bisect_left(edges, start), bisect_left(edges, end)
        if end == len(text):  # and whatever wrote no character: half of one, a control token
            last = len(ids)
        elif edges[last] != end:
            last -= 1
        if first > last:  # one token holds it all, and more
            return self._write(text[start:end])
        head = text[start : min(edges[first], end)]
        tail = "" if last == len(ids) else text[max(edges[last], start) : end]
        return [*self._write(head), *ids[first:last], *self._write(tail)]

    def _write(self, text: str) -> list[int]:
        return self.inner.write(text) if text else []
