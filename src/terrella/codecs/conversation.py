"""Conversations as training examples: the tokens that a model is asked with, and its replies.

Each reply is trained after exactly the prompt that a server would ask with: the template's
rendering of the messages before it. Replies stay in one example as long as the next prompt begins
with all tokens so far. Where a template rewrites earlier turns (Qwen3 drops their thoughts), the
next reply begins an example of its own, so nothing is trained in a place where it is never written.
    examples = Conversation(ChatCodec(tokenizer)).examples(row.messages)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.chat import END_THINK, THINK, ChatMessage
from terrella.core.errors import StoreError
from terrella.core.tokens import TrainExample

EMPTY_THOUGHT = re.compile(rf"\s*(?:{THINK})?\s*{END_THINK}\s*")
EMPTY_TOKENS = 24
"""Tokens at the start of a reply that may be an empty thought."""


class Conversation:
    """Turns conversations of one model into examples."""

    def __init__(self, codec: ChatCodec) -> None:
        self.template = codec.template
        self.tokenizer: Any = codec.tokenizer
        self.thinks = codec.thinks
        self.stop = codec.stop_ids[0]
        self.empty_thoughts = 0
        """Replies without a thought, of a model that thinks."""

    def examples(self, messages: Sequence[ChatMessage]) -> list[TrainExample]:
        """The examples of a conversation; none if nothing in it is learnt."""
        found: list[_Example] = []
        for index, message in enumerate(messages):
            if not message.train:
                continue
            prompt = self._encode(self._render(messages[:index], ask=True))
            if not found or not found[-1].leads_to(prompt):
                found.append(_Example(prompt))
            reply = self._reply(messages[: index + 1], prompt)
            found[-1].add(prompt, reply, given=self._empty_thought(reply))
        return [example.made() for example in found]

    # --- replies ----------------------------------------------------------------------------------

    def _reply(self, messages: Sequence[ChatMessage], prompt: list[int]) -> list[int]:
        """The last message as the model writes it after the prompt, with the end of its turn."""
        content = messages[-1].content
        if not self.thinks:
            content = self._without_thought(content, prompt)
            messages = [*messages[:-1], replace(messages[-1], content=content)]
        whole = self._encode(self._render(messages, ask=False))
        written = self.template.continued(prompt, whole)
        if written is not None:
            thinks = END_THINK in content
            if not thinks or END_THINK in self.tokenizer.decode(written[:-1]):
                return written
        # The template renders a past turn differently from one that is being written.
        return [*self.template.write(self._after_prompt(content, prompt)), self.stop]

    def _after_prompt(self, content: str, prompt: list[int]) -> str:
        """The reply after a prompt that may have opened a thought already."""
        asked = self.tokenizer.decode(prompt[-16:])
        if not asked.rstrip().endswith(THINK):
            return content
        opened = content.lstrip()
        if opened.startswith(THINK):
            opened = opened.removeprefix(THINK)
            return opened.removeprefix("\n") if asked.endswith("\n") else opened
        if END_THINK in opened:
            return opened
        return f"{'' if asked.endswith(chr(10)) else chr(10)}{END_THINK}\n\n{opened}"

    def _without_thought(self, content: str, prompt: list[int]) -> str:
        """The reply after a prompt that closes the thought; one that holds a thought is refused.

        A model that has no thoughts may learn to write them: its prompt closes none.
        """
        closed = self.tokenizer.decode(prompt[-EMPTY_TOKENS:]).rstrip().endswith(END_THINK)
        if not closed or END_THINK not in content:
            return content
        empty = EMPTY_THOUGHT.match(content)
        answer = content[empty.end() :] if empty else content
        if END_THINK in answer:
            raise StoreError(
                "a reply",
                "holds a thought, and thinking=off closes it in the prompt",
                "set thinking=auto, or leave the thoughts out",
            )
        return answer

    def _empty_thought(self, reply: list[int]) -> int:
        """How many tokens of a reply are an empty thought: given, not learnt.

        A model that thinks would learn from them to think no more.
        """
        found = EMPTY_THOUGHT.match(self.tokenizer.decode(reply[:EMPTY_TOKENS]))
        if found is None:
            return 0
        self.empty_thoughts += 1
        lengths = (len(self.tokenizer.decode(reply[:n])) for n in range(EMPTY_TOKENS + 1))
        return max(n for n, length in enumerate(lengths) if length <= found.end())

    # --- the template -----------------------------------------------------------------------------

    def _render(self, messages: Sequence[ChatMessage], *, ask: bool) -> str:
        from jinja2 import TemplateError

        plain = [{"role": each.role, "content": each.content} for each in messages]
        try:
            return self.template.render(plain, ask=ask)
        except (TemplateError, ValueError, IndexError) as error:
            roles = ", ".join(each["role"] for each in plain[:8])
            what = f"refuses the roles {roles}: {str(error)[:200]}"
            raise StoreError("the chat template", what, "leave the row out") from error

    def _encode(self, text: str) -> list[int]:
        return self.template.encode(text)[0]


class _Example:
    """An example that grows reply by reply."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt
        self.ids = list(prompt)
        self.mask: list[bool] = []

    def leads_to(self, prompt: list[int]) -> bool:
        """Whether the prompt continues what was said so far, token by token."""
        return prompt[: len(self.ids)] == self.ids

    def add(self, prompt: list[int], reply: list[int], *, given: int) -> None:
        """Add the prompt's new tokens and the reply, whose first `given` tokens are not learnt."""
        forced = prompt[len(self.ids) :]
        self.ids += [*forced, *reply]
        self.mask += [False] * (len(forced) + given) + [True] * (len(reply) - given)

    def made(self) -> TrainExample:
        completion = self.ids[len(self.prompt) :]
        return TrainExample(
            prompt_ids=tuple(self.prompt), completion_ids=tuple(completion), mask=tuple(self.mask)
        )


def plain_example(tokenizer: Any, messages: Sequence[ChatMessage]) -> TrainExample:
    """A prompt and its completion without a template, for models that have none.

    The prompt begins as the tokenizer begins a text, and the completion ends with its EOS token. An
    empty prompt is the token that stands between two texts, from which the first one is predicted.
    """
    if len(messages) != 2 or not messages[1].train:
        raise StoreError(
            "conversation",
            "the model has no chat template, and this is more than a prompt and a completion",
            "choose a chat model",
        )
    prompt = tokenizer.encode(messages[0].content, add_special_tokens=True)
    if prompt and prompt[-1] == tokenizer.eos_token_id:  # some tokenizers end every text
        prompt = prompt[:-1]
    if not prompt:
        between = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        prompt = [token for token in between if token is not None][:1]
    reply = tokenizer.encode(messages[1].content, add_special_tokens=False)
    completion = (*reply, tokenizer.eos_token_id)
    return TrainExample(
        prompt_ids=tuple(prompt), completion_ids=completion, mask=(True,) * len(completion)
    )
