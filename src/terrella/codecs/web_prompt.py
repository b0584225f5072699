"""Prompts and replies of a web agent: the instruction, past actions without pages, the page.

    compact   page, what was done, steps left, in one text: few tokens, for small models
    chat      the model's template: a turn per past action, a few words in the place of its page
    webrl     the published text, for Llama-3 tokenizers (`data/webrl_formats.prompt_at`)
A reply is one action in one of the languages of `web_language.py`. A page that is too long loses
its end, never the question after it; where not even the past actions fit, the oldest are left out.
Special tokens in pages are spelt with a space.
    codec = WebCodecConfig(form="compact", language="named").make(tokenizer)
    codec.prompt(shown), codec.reply(codec.written("click 4", page))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from terrella.codecs.chat import Message
from terrella.codecs.chat_template import ChatTemplate, user
from terrella.codecs.choose import CodecConfig, one_action
from terrella.codecs.escape import PlainWriter
from terrella.codecs.web_language import Language, tell_actions, translate
from terrella.core.errors import ConfigError
from terrella.core.tokens import History
from terrella.core.types import Observation, Situation, show_text
from terrella.core.written_tasks import shown_task
from terrella.models.policy_input import PolicyInput

WebForm = Literal["compact", "chat", "webrl"]
EARLIER_PAGE = "** Simplified html **"
"""Stands for the page of a past action, as published."""
MAX_PAST_ACTIONS = 12
MAX_ACTION_CHARS = 200
"""Longest past action in the compact form: what a model wrote may be long and may be nonsense."""
HEADER, END = ("<|start_header_id|>", "<|end_header_id|>"), "<|eot_id|>"


@dataclass(frozen=True, kw_only=True)
class WebCodecConfig(CodecConfig):
    """How a web agent is asked and how it answers."""

    form: WebForm = "chat"
    language: Language = "webrl"
    prompt_tokens: int = 0
    """Longest prompt; a page is cut to fit. 0 sets no bound."""

    def make(self, tokenizer: Any) -> WebCodec:
        one_action(self)
        if self.thinking == "on":
            raise ConfigError(
                "thinking", "a web agent's reply is an action alone", "set auto or off"
            )
        return WebCodec(tokenizer, self)


class PlainText:
    """Text of a tokenizer without a chat template, for small models made from scratch."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.write = PlainWriter(tokenizer).write
        self.stop_ids: tuple[int, ...] = (int(tokenizer.eos_token_id),)

    def text(self, token_ids: Sequence[int]) -> str:
        plain = [token for token in token_ids if token not in self.stop_ids]
        text: str = self.tokenizer.decode(plain)
        return text


class WebCodec:
    """`core.protocols.TurnCodec` for agents: every turn has a prompt of its own."""

    def __init__(self, tokenizer: Any, config: WebCodecConfig) -> None:
        self.tokenizer = tokenizer
        self.config = config
        has_template = getattr(tokenizer, "chat_template", None) or config.form != "compact"
        self.template: ChatTemplate | PlainText = (
            ChatTemplate(tokenizer, thinking="off") if has_template else PlainText(tokenizer)
        )
        self.stop_ids: tuple[int, ...] = self.template.stop_ids
        if config.form == "webrl" and END not in tokenizer.get_vocab():
            raise ConfigError(
                "form", "the published template needs the tokens of Llama 3", "use form=chat"
            )

    # --- prompts ----------------------------------------------------------------------------------

    def prompt(self, shown: PolicyInput) -> tuple[int, ...]:
        """The prompt of a turn, within the limit."""
        past = self._past(shown)
        for oldest in range(len(past) + 1):
            ids = self._fitting(shown, past[oldest:])
            if ids is not None:
                return ids
        raise ConfigError(
            "prompt_tokens",
            f"{self.config.prompt_tokens} tokens do not hold the question itself",
            "allow longer prompts",
        )

    def _past(self, shown: PolicyInput) -> Sequence[str]:
        """Past actions as they were written; small models read the last ones, and their starts."""
        if self.config.form != "compact":
            return shown.past_actions
        return [each[:MAX_ACTION_CHARS] for each in shown.past_actions[-MAX_PAST_ACTIONS:]]

    def _fitting(self, shown: PolicyInput, past: Sequence[str]) -> tuple[int, ...] | None:
        """The prompt with as much of the page as fits; None if nothing of it does."""
        page, limit = shown.text, self.config.prompt_tokens
        ids = self._ask(shown, page, past)
        while limit and len(ids) > limit:
            words = self.template.write(page)
            keep = len(words) - (len(ids) - limit) - 1
            if keep <= 0:
                return None
            page = self.template.text(words[:keep])
            ids = self._ask(shown, page, past)
        return ids

    def _ask(self, shown: PolicyInput, page: str, past: Sequence[str]) -> tuple[int, ...]:
        if self.config.form == "compact":
            done = "; ".join(past) or "nothing"
            text = f"{page}\nDone: {done}\nSteps left: {shown.steps_left}\nAction:"
            return tuple(self.template.write(text))
        if self.config.form == "webrl":
            return self._published(shown, page, past)
        assert isinstance(self.template, ChatTemplate)
        return self.template.prompt(self._messages(shown, page, past))

    def _messages(self, shown: PolicyInput, page: str, past: Sequence[str]) -> list[Message]:
        rules = tell_actions(shown.instruction, self.config.language)
        messages = [{"role": "system", "content": rules}] if rules else []
        for action in past:
            messages += [user(EARLIER_PAGE), {"role": "assistant", "content": action}]
        return [*messages, user(page)]

    def _published(self, shown: PolicyInput, page: str, past: Sequence[str]) -> tuple[int, ...]:
        """`Task Instruction: ... Round 0 ...`; the task is the page's, or the instruction."""
        task = shown_task(page) or shown.instruction
        ids = list(self.tokenizer.encode("", add_special_tokens=True))
        ids += self.template.write(f"Task Instruction: {task}\n\n")
        asked = [EARLIER_PAGE if number else task for number in range(len(past))]
        for number, (question, answer) in enumerate(zip([*asked, page], [*past, ""], strict=True)):
            ids += self.template.write(f"Round {number}\n\n")
            ids += self._marks("user")
            ids += self.template.write(f"\n{question}\n\n")
            ids += self._marks("assistant")
            ids += self.template.write(f"\n{answer}\n\n" if answer else "\n")
        return tuple(ids)

    def _marks(self, role: str) -> list[int]:
        encode = self.tokenizer.encode
        return list(encode(f"{END}{HEADER[0]}{role}{HEADER[1]}", add_special_tokens=False))

    # --- replies ----------------------------------------------------------------------------------

    def written(self, action: str, page: str) -> str:
        """An action of any language as this agent writes it on a page."""
        return translate(action, self.config.language, page)

    def reply(self, written: str) -> tuple[int, ...]:
        """The tokens of a written action, to the end of the turn."""
        if self.config.form == "chat":
            assert isinstance(self.template, ChatTemplate)
            return self.template.reply(written)  # as past actions are rendered
        blank = " " if self.config.form == "compact" else ""
        return (*self.template.write(f"{blank}{written}"), self.stop_ids[0])

    # --- the codec of rollouts --------------------------------------------------------------------

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        return self.prompt(situation_input(situation))

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        """The prompt of any turn; `history` must be `actions`."""
        return self.prompt(situation_input(situation))

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        return self.reply(actions[0])

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The reply itself: worlds parse it (`parse_action`)."""
        text = self.text(token_ids)
        return (text,) if text else ()

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of a reply."""
        return self.template.text(token_ids).strip()

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> NoReturn:
        raise ConfigError("history", "each turn has a prompt of its own", "set history=actions")

    def ask_observation(self, situation: Situation, action: str) -> NoReturn:
        self._refuse_predictions()

    def answer_observation(self, observation: Observation) -> NoReturn:
        self._refuse_predictions()

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> NoReturn:
        self._refuse_predictions()

    def _refuse_predictions(self) -> NoReturn:
        raise ConfigError("codec", "a web agent predicts no pages", "use the chat codec")


def situation_input(situation: Situation) -> PolicyInput:
    """What an actor reads of a running episode."""
    return PolicyInput(
        show_text(situation.observation),
        tuple(situation.actions),
        tuple(step.action for step in situation.history),
        situation.steps_left,
        situation.instruction,
    )
