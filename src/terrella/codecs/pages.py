"""Prompts about web pages for chat models: what changes, what to do, how near the goal is.

A page world model is told the language of changes, because no chat model knows ours. The page comes
before the action, so that questions about one page share their first tokens.
    codec = PageCodecConfig(form="changes").make(tokenizer)
    prompt = codec.ask_observation(situation, "click 3")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from terrella.codecs.answers import CLOSE, OPEN
from terrella.codecs.chat import Message, reply_form
from terrella.codecs.chat_template import Thinking
from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.choose import CodecConfig, one_action
from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.chat import END_THINK, THINK
from terrella.core.protocols import Codec
from terrella.core.tokens import History
from terrella.core.types import Situation, show_text

PageForm = Literal["changes", "sections"]
"""changes: ours, a line per change; sections: RLVR-World's lists of new, deleted, updated items."""
PageAsk = Literal["explained", "terse"]
"""Whether the prompt explains the language of changes, or leaves it to be learnt by SFT."""
SHOWN_ACTIONS = 40
"""Offered actions that an agent is shown; a page of a shop has hundreds."""
HIGHEST = 5
"""The best mark of a page, as in the published agent."""

TASK = "You predict what an action changes on a web page."
PAGE_FORM = (
    'The page has one element per line, indented by depth: [id] role "name" properties. Ids name '
    "elements in actions."
)
FORMS: dict[PageForm, str] = {
    "changes": (
        "Write only what changes, one line per change:\n"
        '^[3] value="kai" focused -checked   element 3 gains value and focused, loses checked\n'
        '~[3] button "Undo"   element 3 becomes this\n'
        "-[5]   element 5 is gone\n"
        '+[3] button "Ok"   a new element after element 3; [0] is the top; indent it by its depth\n'
        "=   nothing changes\n"
        "An element without an id is named by its line, counted from 0: -@4"
    ),
    "sections": (
        "Write three lists of elements, None where a list is empty:\n"
        "New items:\n[7] button 'Ok'\n"
        "Deleted items:\nNone\n"
        "Updated items:\n[3] textbox 'Name' value: 'kai' focused: 'true'\n"
        "A new or updated element is written as it will be, a deleted one as it was."
    ),
}


def change_messages(
    page: str, action: str, *, form: PageForm, ask: PageAsk, thinks: bool
) -> list[Message]:
    """The prompt of a page world model."""
    thought = f"{THINK}\nyour thoughts\n{END_THINK}\n" if thinks else ""
    told = [TASK]
    if ask == "explained":
        told += [PAGE_FORM, FORMS[form], f"Reply as:\n{thought}{OPEN}\nthe changes\n{CLOSE}"]
    return [
        {"role": "system", "content": "\n".join(told)},
        {"role": "user", "content": f"Page:\n{page}\nAction: {action}"},
    ]


def action_messages(situation: Situation, form: str) -> list[Message]:
    """The prompt of a web agent: the page, what was done, and what can be done here."""
    done = "; ".join(step.action for step in situation.history) or "nothing"
    offered = situation.actions[:SHOWN_ACTIONS]
    shown = "\n".join(("\nPossible actions:", *offered)) if offered else ""
    rules = (
        "You do the task on a web page, one action at a time. Elements are named by the number in "
        "brackets."
    )
    return [
        {"role": "system", "content": f"{rules}\nReply as: {form}"},
        {
            "role": "user",
            "content": f"Page:\n{show_text(situation.observation)}\nDone so far: {done}{shown}",
        },
    ]


def value_messages(situation: Situation, form: str) -> list[Message]:
    """Asks for a mark from 1 to 5: how near is the task to being done on this page?"""
    done = "; ".join(step.action for step in situation.history) or "nothing"
    rules = (
        "An agent does the task that the web page shows. Mark how near it is to the goal: "
        f"1 is no progress or a mistake, {HIGHEST} is done."
    )
    return [
        {"role": "system", "content": f"{rules}\nReply as: {form}"},
        {"role": "user", "content": f"Page:\n{show_text(situation.observation)}\nDone: {done}"},
    ]


def mark_form(*, thinks: bool) -> str:
    """The reply format of a mark."""
    thought = f"{THINK} your thoughts {END_THINK}" if thinks else ""
    return f"{thought}{OPEN} a number from 1 to {HIGHEST} {CLOSE}"


def read_mark(answers: Sequence[str]) -> float | None:
    """The mark in a reply's answer, from 0 to 1; None if there is none."""
    if len(answers) != 1 or answers[0] not in map(str, range(1, HIGHEST + 1)):
        return None
    return (int(answers[0]) - 1) / (HIGHEST - 1)


class PageChatCodec(ChatCodec):
    """A chat codec whose prompts speak of pages."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        page_form: PageForm = "changes",
        ask: PageAsk = "explained",
        thinking: Thinking = "auto",
    ) -> None:
        super().__init__(tokenizer, thinking=thinking)
        self.page_form = page_form
        self.ask = ask

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        messages = change_messages(
            show_text(situation.observation),
            action,
            form=self.page_form,
            ask=self.ask,
            thinks=self.thinks,
        )
        return self.template.prompt(messages)

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        return self.template.prompt(action_messages(situation, reply_form(thinks=self.thinks)))

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        """Earlier actions are in every prompt; earlier pages are in none."""
        return self.ask_action(situation)


class PagePlainCodec(InterleavedCodec):
    """The interleaved format, with the page alone in every prompt: so recorded steps are fitted."""

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        return self.ask_action(situation)


@dataclass(frozen=True, kw_only=True)
class PageCodecConfig(CodecConfig):
    """How a model is asked about pages; a model from scratch is asked in the interleaved format."""

    form: PageForm = "changes"
    ask: PageAsk = "explained"

    def make(self, tokenizer: Any) -> Codec:
        one_action(self)
        if getattr(tokenizer, "chat_template", None):
            return PageChatCodec(
                tokenizer, page_form=self.form, ask=self.ask, thinking=self.thinking
            )
        return PagePlainCodec(tokenizer)
