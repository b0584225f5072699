"""Codec for agents that write a line per action, with what the action will change.

    Up > P21 ice
    Left > P20 hole
The form `steps` of SPA for language models. An episode is one short reply: the model states the
result of each action as it goes, as a forward model does, and only the lines of a state that the
action changes. `steps_predicted` puts the prediction in front of the action, as SPA published it.
A reply that was cut off has no actions: if it had, RL would learn to write up to the limit.
Prompts are the state alone, without rules: length decides what a CPU can train.
    codec = StepsCodec(BriefChatCodec(tokenizer))
    ids, spans = codec.answer(("Up",), ["P31\nG10", "P21\nG10"])    # Up > P21
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from terrella.codecs.answers import MAX_REPLY_CHARS
from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.tagged import Span, TaggedCodec, TextCodec, TextRange, TrueStates
from terrella.core.tokens import History
from terrella.core.types import Situation, show_text

ARROW = " >"
"""Between an action and what it changes; no action and no state contains it."""
UNCHANGED = "same"


def change(before: str, after: str) -> str:
    """The lines of a state that differ from the state before."""
    old = before.split("\n")
    new = after.split("\n")
    if len(old) != len(new):
        return "; ".join(new)
    changed = [line for line, was in zip(new, old, strict=True) if line != was]
    return "; ".join(changed) or UNCHANGED


class _Line(NamedTuple):
    """Where a line of a reply begins, and where its parts stand."""

    line: int
    action: TextRange
    state: TextRange


class BriefChatCodec(ChatCodec):
    """A chat codec whose messages are states alone, for models that are fitted to them."""

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        # An empty system message: without one, some templates write a default of their own.
        system = {"role": "system", "content": ""}
        return self.template.prompt([system, _user(situation)])

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        """The state now says everything: earlier turns are left out."""
        return self.ask_action(situation)

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        end, *rest = self.template.after_reply([_user(situation)])
        return (end, *rest) if cut_off else tuple(rest)


class StepsCodec(TaggedCodec):
    """`core.protocols.Codec` over a text codec; a reply is a line per action."""

    def __init__(self, inner: TextCodec, *, prediction_first: bool = False) -> None:
        super().__init__(inner, form="steps_predicted" if prediction_first else "steps")
        self.prediction_first = prediction_first

    @property
    def states_in_replies(self) -> bool:
        return True

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        return self.answer(actions, [""] * (len(actions) + 1))[0]

    def answer(
        self, actions: Sequence[str], states: Sequence[str]
    ) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        ids: list[int] = []
        spans: list[Span] = []
        for number, action in enumerate(actions):
            line_end = "\n" if number else ""
            state = change(*states[number : number + 2])
            if self.prediction_first:
                pieces = [(line_end, Span.TEXT), (state, Span.PREDICTION)]
                pieces.append((f"{ARROW} {action}", Span.TEXT))
            else:
                pieces = [(f"{line_end}{action}{ARROW}", Span.TEXT), (f" {state}", Span.PREDICTION)]
            for text, span in pieces:
                written = self._write(text)
                ids += written
                spans += [span] * len(written)
        return (*ids, self.stop_ids[0]), (*spans, Span.TEXT)

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions of a finished reply, up to the first line that is not of the form."""
        return tuple(action for action, _ in self.predicted_changes(token_ids))

    def true_states(self, token_ids: Sequence[int], states: Sequence[str]) -> TrueStates:
        """Whether each executed action's change is the true one."""
        written = [text for _, text in self.predicted_changes(token_ids)]
        true = [change(*states[number : number + 2]) for number in range(len(states) - 1)]
        # A reply without an action costs an invalid step, of which it says nothing.
        written += [""] * (len(true) - len(written))
        return TrueStates(
            observation=None,
            predictions=tuple(text == wanted for text, wanted in zip(written, true, strict=False)),
        )

    def well_formed(self, token_ids: Sequence[int]) -> bool:
        """Whether the reply has ended, and each of its lines is an action with its change."""
        lines = self.predicted_changes(token_ids)
        return bool(lines) and len(lines) == self.inner.text(token_ids).count("\n") + 1

    def with_states(
        self, token_ids: Sequence[int], states: Sequence[str] | None
    ) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """Put the true changes in; lines after the episode's end are left out.

        A reply that was cut off did nothing: it stays as it is.
        """
        if states is None or not self._ended(token_ids):
            return super().with_states(token_ids, None)
        ids, spans = super().with_states(token_ids, states)
        lines = self._ranges(self.inner.text(self._without_stop(ids)[0]))
        executed = len(states) - 1
        if len(lines) <= executed:
            return ids, spans
        text = self.inner.text(ids)
        body, _ = self._without_stop(ids)
        end = lines[executed].line - 1
        kept = self._cut(body, self._edges(body), text, 0, end)
        return (*kept, self.stop_ids[0]), (*spans[: len(kept)], Span.TEXT)

    def _state_ranges(
        self, text: str, states: Sequence[str] | None
    ) -> list[tuple[TextRange, Span, str | None]]:
        found: list[tuple[TextRange, Span, str | None]] = []
        blank = "" if self.prediction_first else " "
        for number, line in enumerate(self._ranges(text)):
            known = states is not None and number + 1 < len(states)
            new = f"{blank}{change(*states[number : number + 2])}" if states and known else None
            found.append((line.state, Span.PREDICTION, new))
        return found

    def predicted_changes(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Each action of a finished reply with the change that is stated after it."""
        if not self._ended(token_ids):
            return []
        text = self.inner.text(self._without_stop(token_ids)[0])
        return [
            (
                text[line.action.start : line.action.end].strip(),
                text[line.state.start : line.state.end].strip(),
            )
            for line in self._ranges(text)
        ]

    def _ranges(self, text: str) -> list[_Line]:
        """The lines up to the first one that is not of the form."""
        found: list[_Line] = []
        start = 0
        for line in text[:MAX_REPLY_CHARS].split("\n"):
            left, arrow, right = line.partition(ARROW)
            if not (left.strip() and arrow and right.strip()):
                break
            halves = (
                TextRange(start, start + len(left)),
                TextRange(start + len(left) + len(arrow), start + len(line)),
            )
            state, action = halves if self.prediction_first else halves[::-1]
            found.append(_Line(start, action, state))
            start += len(line) + 1
        return found


def _user(situation: Situation) -> dict[str, str]:
    return {"role": "user", "content": show_text(situation.observation)}
