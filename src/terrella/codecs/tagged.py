"""Codec for agents whose replies also state the current and the next observation, in tags.

Forms of a reply, where each tag is written as `<observation> state </observation>`:
    worldmodel            observation, prediction, answer     (SPA's published order)
    worldmodel_forward    observation, answer, prediction     (a forward model)
    plain                 answer
    shown                 Up          (no tags: the world shows the states between replies)
    steps                 Up > P21    (a line per action with what it changes; `codecs/steps.py`)
    steps_predicted       P21 > Up    (the same with the prediction first, SPA's published order)
Tags are found by plain search. States are replaced on token ids, so that sampled tokens outside a
state stay as they are; see `with_states`.
    codec = TaggedCodec(InterleavedCodec(tokenizer), form="worldmodel")
    ids, spans = codec.with_states(sampled.token_ids, ["P_G", "__√"])
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from terrella.codecs.answers import SEPARATOR, join_actions, read_answer
from terrella.core.protocols import TargetCodec, ThoughtReader, TurnCodec
from terrella.core.tokens import History
from terrella.core.types import Observation, Situation

Form = Literal["plain", "worldmodel", "worldmodel_forward", "shown", "steps", "steps_predicted"]
OBSERVATION, PREDICTION, ANSWER = "observation", "prediction", "answer"
ORDERS: dict[str, tuple[str, ...]] = {
    "plain": (ANSWER,),
    "worldmodel": (OBSERVATION, PREDICTION, ANSWER),
    "worldmodel_forward": (OBSERVATION, ANSWER, PREDICTION),
    "shown": (),
    "steps": (),
    "steps_predicted": (),
}
TAG_TOKENS = (
    *(f"<{slash}{tag}>" for tag in (OBSERVATION, PREDICTION, ANSWER) for slash in ("", "/")),
    SEPARATOR,
)
"""Strings that a character tokenizer should have as single tokens."""


class Span(enum.IntEnum):
    """The part of a reply that a token belongs to; loss masks depend on it."""

    TEXT = 0
    OBSERVATION = 1
    PREDICTION = 2
    EMPTY_THOUGHT = 3
    """Never a target: a model that thinks would learn from it to think no more."""


class TextCodec(ThoughtReader, TurnCodec, TargetCodec, Protocol):
    """A codec over plain text, such as the interleaved and the chat codec."""

    @property
    def opens_thought(self) -> bool:
        """Whether a prompt ends inside a thought."""
        ...

    @property
    def thought_marks(self) -> tuple[str, str]:
        """What stands before and after a thought in a reply; empty for models without one."""
        ...

    def write(self, text: str) -> list[int]:
        """Tokenize plain text; it cannot contain special tokens."""
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode ids."""
        ...


@dataclass(frozen=True, slots=True)
class TextRange:
    """Position of a tag's content in the text of a reply."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TrueStates:
    """Whether the states in a reply are true."""

    observation: bool | None
    """What was seen when it was written; None where the form does not state it."""
    predictions: tuple[bool, ...]
    """What is seen after its actions: one in all, or one for each action."""


def find_tag(text: str, tag: str, after: int = 0) -> TextRange | None:
    """The content of the first complete tag of this name; None without one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.find(opening, after)
    end = text.find(closing, start)
    return TextRange(start + len(opening), end) if start >= 0 and end >= 0 else None


def has_tags(text: str, tags: Sequence[str]) -> bool:
    """Whether a reply has all these tags, complete and in order."""
    position = 0
    for tag in tags:
        content = find_tag(text, tag, position)
        if content is None:
            return False
        position = content.end
    return True


def tagged_reply_form(form: Form, *, thinks: bool = True) -> str:
    """The reply format in a chat model's system message; states stand inside a thought."""
    contents = {
        OBSERVATION: "the current state",
        PREDICTION: "the state after your actions",
        ANSWER: "your actions",
    }
    tags = {tag: f"<{tag}> {contents[tag]} </{tag}>" for tag in contents}
    if not thinks:
        return "".join(tags[tag] for tag in ORDERS[form] or (ANSWER,))
    if form == "worldmodel":
        return f"<think>{tags[OBSERVATION]} your thoughts {tags[PREDICTION]}</think>{tags[ANSWER]}"
    if form == "worldmodel_forward":
        return f"<think>{tags[OBSERVATION]} your thoughts </think>{tags[ANSWER]}{tags[PREDICTION]}"
    return f"<think> your thoughts </think>{tags[ANSWER]}"


class TaggedCodec:
    """`core.protocols.Codec` over a text codec; only the format of an agent's reply differs."""

    def __init__(self, inner: TextCodec, *, form: Form, blank: str = "") -> None:
        """`inner` writes the prompts; a chat codec needs `form=tagged_reply_form(form)`.

        `blank` is the white space around a state inside its tag.
        """
        self.inner = inner
        self.form = form
        self.blank = blank
        self.stop_ids = inner.stop_ids
        self._lengths: dict[int, int] = {}
        self._empty_thought = tuple(self._write("".join(inner.thought_marks)))

    @property
    def states_in_replies(self) -> bool:
        """Whether a reply states the current and the next observation."""
        return OBSERVATION in ORDERS[self.form]

    # --- prompts: those of the inner codec --------------------------------------------------------

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        return self.inner.ask_action(situation)

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        return self.inner.ask_turn(situation, history)

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        return self.inner.ask_observation(situation, action)

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        return self.inner.world_turn(situation, cut_off=cut_off)

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        return self.inner.answer_observation(observation)

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        return self.inner.read_observation(token_ids, like)

    # --- replies ----------------------------------------------------------------------------------

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The reply with these actions and empty states, because the states are unknown here."""
        return self.answer(actions, ["", ""])[0]

    def answer(
        self, actions: Sequence[str], states: Sequence[str]
    ) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """The canonical reply, and the span of each of its tokens.

        `states` begins with the one before the actions; the last one is after all of them.
        """
        if not ORDERS[self.form]:
            bare = self.inner.answer_action(actions)
            learnt = self.inner.targets(bare)
            return bare, tuple(Span.TEXT if each else Span.EMPTY_THOUGHT for each in learnt)
        contents = {
            OBSERVATION: f"{self.blank}{states[0]}{self.blank}",
            PREDICTION: f"{self.blank}{states[-1]}{self.blank}",
            ANSWER: join_actions(actions, blank=""),
        }
        begin_thought, end_thought = self.inner.thought_marks
        if self.states_in_replies:
            ids: list[int] = self._write(begin_thought)
            spans: list[Span] = [Span.TEXT] * len(ids)
        else:
            ids, end_thought = list(self._empty_thought), ""
            spans = [Span.EMPTY_THOUGHT] * len(ids)
        for tag in ORDERS[self.form]:
            kind = Span[tag.upper()] if tag != ANSWER else Span.TEXT
            opening = f"{end_thought if tag == ANSWER else ''}<{tag}>"
            pieces = (
                (opening, Span.TEXT),
                (contents[tag], kind),
                (f"</{tag}>", Span.TEXT),
            )
            for text, span in pieces:
                written = self._write(text)
                ids += written
                spans += [span] * len(written)
        return (*ids, self.stop_ids[0]), (*spans, Span.TEXT)

    def targets(self, reply: Sequence[int]) -> tuple[bool, ...]:
        """The tokens of a canonical reply that SFT should train: all but an empty thought."""
        return self.inner.targets(reply)

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions in the last complete answer tag; without tags, in the whole reply."""
        if not ORDERS[self.form]:
            return self.inner.read_actions(token_ids)
        return read_answer(self.inner.text(token_ids), opened=self.inner.opens_thought)

    def read_thought(self, token_ids: Sequence[int]) -> tuple[int, bool] | None:
        """As the inner codec's; states inside a thought count as its tokens."""
        return self.inner.read_thought(token_ids)

    def read_states(self, token_ids: Sequence[int]) -> tuple[str | None, str | None]:
        """The current and the next state that the reply states, stripped; None for no tag."""
        text = self.inner.text(token_ids)
        return self._read_state(text, OBSERVATION), self._read_state(text, PREDICTION)

    def true_states(self, token_ids: Sequence[int], states: Sequence[str]) -> TrueStates:
        """Which of the states in a reply are true, given those before and after each action."""
        observed, predicted = self.read_states(token_ids)
        return TrueStates(observed == states[0].strip(), (predicted == states[-1].strip(),))

    def _read_state(self, text: str, tag: str) -> str | None:
        content = find_tag(text, tag) if tag in ORDERS[self.form] else None
        return None if content is None else text[content.start : content.end].strip()

    def well_formed(self, token_ids: Sequence[int]) -> bool:
        """Whether the reply has ended, with all tags of the form in order and with an action."""
        if not self._ended(token_ids) or not self.read_actions(token_ids):
            return False
        return has_tags(self.inner.text(token_ids), ORDERS[self.form])

    def with_states(
        self, token_ids: Sequence[int], states: Sequence[str] | None
    ) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """Replace the states in a reply; returns its ids and the span of each token.

        `states` are those before and after each action; None leaves the reply as it is. A missing
        tag is not added. A token that straddles the edge of a state is tokenized again, as two.
        """
        body, end = self._without_stop(token_ids)
        edges = self._edges(body)
        text = self.inner.text(body)
        ids: list[int] = []
        spans: list[Span] = []
        position = 0
        for content, span, new in self._state_ranges(text, states):
            outside = self._cut(body, edges, text, position, content.start)
            if new is None:
                state = self._cut(body, edges, text, content.start, content.end)
            else:
                state = self._write(new)
            ids += [*outside, *state]
            spans += [*[Span.TEXT] * len(outside), *[span] * len(state)]
            position = content.end
        rest = [*self._cut(body, edges, text, position, len(text)), *end]
        return (*ids, *rest), (*spans, *[Span.TEXT] * len(rest))

    def _state_ranges(
        self, text: str, states: Sequence[str] | None
    ) -> list[tuple[TextRange, Span, str | None]]:
        """The states in a reply and their replacements, in the order of the text."""
        found: list[tuple[TextRange, Span, str | None]] = []
        for tag, place in ((OBSERVATION, 0), (PREDICTION, -1)):
            content = find_tag(text, tag) if tag in ORDERS[self.form] else None
            if content is not None:
                new = None if states is None else f"{self.blank}{states[place]}{self.blank}"
                found.append((content, Span[tag.upper()], new))
        found.sort(key=lambda state: state[0].start)
        # A tag inside a tag is the model's mistake: only the outer one counts.
        if len(found) == 2 and found[1][0].start < found[0][0].end:
            return found[:1]
        return found

    def _without_stop(self, token_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        ids = list(token_ids)
        return (ids[:-1], ids[-1:]) if self._ended(ids) else (ids, [])

    def _ended(self, token_ids: Sequence[int]) -> bool:
        """Whether a stop token ends the reply; if not, the limit cut it off."""
        return bool(token_ids) and token_ids[-1] in self.stop_ids

    def _edges(self, ids: Sequence[int]) -> list[int]:
        """The character at which each token begins, and the total length.

        An incomplete character has length 0.
        """
        lengths = [self._length(token) for token in ids]
        # If every token is whole characters, there is no need to decode prefixes.
        if sum(lengths) == len(self.inner.text(ids)):
            return list(itertools.accumulate(lengths, initial=0))
        return [len(self.inner.text(ids[:count]).rstrip("\ufffd")) for count in range(len(ids) + 1)]

    def _length(self, token: int) -> int:
        if token not in self._lengths:
            text = self.inner.text([token])
            self._lengths[token] = -1 if "\ufffd" in text else len(text)
        return self._lengths[token]

    def _cut(
        self, ids: Sequence[int], edges: Sequence[int], text: str, start: int, end: int
    ) -> list[int]:
        """Tokens of text[start:end]: the sampled ones, except where they straddle an edge.

        Text of a straddling token is tokenized again.
        """
        first, last = bisect_left(edges, start), bisect_left(edges, end)
        if end == len(text):  # include tokens without text: incomplete characters, special tokens
            last = len(ids)
        elif edges[last] != end:
            last -= 1
        if first > last:  # the range lies inside one token
            return self._write(text[start:end])
        head = text[start : min(edges[first], end)]
        tail = "" if last == len(ids) else text[max(edges[last], start) : end]
        return [*self._write(head), *ids[first:last], *self._write(tail)]

    def _write(self, text: str) -> list[int]:
        return self.inner.write(text) if text else []
