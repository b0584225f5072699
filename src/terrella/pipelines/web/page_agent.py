"""A language model as a part of a web agent: it proposes actions and marks pages.

The model is sampled here, by the engine's sampler, or asked at an OpenAI-compatible endpoint; both
get the same words (`codecs/pages.py`). The actor of a WebRL run is asked as in its run. A model
from scratch only proposes.
    agent = AskedAgent(codec=PageCodecConfig(), turn_tokens=40).make(sampler, tokenizer)
    SampledProposals(agent, samples=8).propose([situation])
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from terrella.codecs.chat import Message, reply_form
from terrella.codecs.choose import CodecConfig
from terrella.codecs.pages import (
    PageChatCodec,
    action_messages,
    mark_form,
    read_mark,
    value_messages,
)
from terrella.codecs.web_language import parse_action, write_action
from terrella.codecs.web_prompt import WebCodec, situation_input
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.protocols import Codec, Sampler
from terrella.core.seeds import POLICY_STREAM, stream
from terrella.core.tokens import TokenRequest
from terrella.core.types import Situation, show_text
from terrella.evals.endpoint_agent import ChatThreads
from terrella.policies.chat_client import Usage
from terrella.policies.endpoint import reply_actions
from terrella.world_models.background import run_in_background
from terrella.world_models.planner_web import Proposals, page_of

Answers = list[tuple[str, ...]]
"""What each reply answers; empty for a reply without an answer that could be read."""
INTO_ELEMENT = ("type", "search")
FREE_TEXT = (*INTO_ELEMENT, "stop", "goto")
"""Verbs whose text a page cannot offer."""


class PageAgent(Protocol):
    """Answers questions about a page, several times."""

    async def actions(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        """What to do; the first reply is greedy where the model can be sampled greedily."""
        ...

    async def marks(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        """How near the goal is."""
        ...


class LocalPageAgent:
    """A model that the engine samples."""

    def __init__(
        self, sampler: Sampler, codec: Codec, *, turn_tokens: int, context_tokens: int = 0
    ) -> None:
        """`context_tokens` bounds prompt and reply together; 0 sets no bound."""
        self.sampler = sampler
        self.codec = codec
        self.turn_tokens = turn_tokens
        self.context_tokens = context_tokens

    async def actions(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        replies = await self._sample(self.ask_action(situation), samples, seed)
        return [self.codec.read_actions(ids) for ids in replies]

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """The prompt for an action."""
        return self.codec.ask_action(situation)

    async def marks(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        codec = self.codec
        if not isinstance(codec, PageChatCodec):
            raise ConfigError("value", "only a chat model can mark pages", "set value=reward")
        messages = value_messages(situation, mark_form(thinks=codec.thinks))
        replies = await self._sample(codec.template.prompt(messages), samples, seed)
        return [codec.read_actions(ids) for ids in replies]

    async def _sample(
        self, prompt: tuple[int, ...], samples: int, seed: int
    ) -> list[tuple[int, ...]]:
        needed = len(prompt) + self.turn_tokens
        if self.context_tokens and needed > self.context_tokens:
            raise PolicyError(
                "page agent",
                f"a page needs {needed} tokens with its reply, the context has "
                f"{self.context_tokens}",
                "set a larger context_tokens, or play a world with shorter pages",
            )
        requests = [
            TokenRequest(
                prompt_ids=prompt,
                max_new_tokens=self.turn_tokens,
                seed=seed + number,
                temperature=1.0 if number else 0.0,
                stop_ids=self.codec.stop_ids,
            )
            for number in range(samples)
        ]
        sampled = await asyncio.gather(*map(self.sampler.sample, requests))
        return [each.token_ids for each in sampled]


class WebRlPageAgent(LocalPageAgent):
    """The actor of a WebRL run: in its run's prompts, with its past actions in its own language."""

    codec: WebCodec

    def __init__(
        self, sampler: Sampler, codec: WebCodec, *, read_instruction: bool, **limits: int
    ) -> None:
        """`read_instruction` puts the world's instruction before the page, as its run may do."""
        super().__init__(sampler, codec, **limits)
        self.read_instruction = read_instruction

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        shown = situation_input(situation)
        text = f"{shown.instruction}\n{shown.text}" if self.read_instruction else shown.text
        past = tuple(
            self.codec.written(step.action, show_text(step.observation))
            for step in situation.history
        )
        return self.codec.prompt(replace(shown, text=text, past_actions=past))


@dataclass(frozen=True, kw_only=True)
class AskedAgent:
    """How a model that is sampled here is asked for actions."""

    codec: CodecConfig
    turn_tokens: int
    context_tokens: int = 0
    read_instruction: bool = False
    """The world's instruction stands before the page, as for the actor of a WebRL run."""

    def make(self, sampler: Sampler, tokenizer: Any) -> LocalPageAgent:
        codec = self.codec.make(tokenizer)
        limits = {"turn_tokens": self.turn_tokens, "context_tokens": self.context_tokens}
        if isinstance(codec, WebCodec):
            return WebRlPageAgent(sampler, codec, read_instruction=self.read_instruction, **limits)
        return LocalPageAgent(sampler, codec, **limits)


class EndpointPageAgent:
    """A model behind an OpenAI-compatible endpoint. Its thoughts, if any, are not read."""

    def __init__(self, chat: ChatThreads) -> None:
        self.chat = chat
        self.usage = Usage()

    async def actions(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        return await self._ask(action_messages(situation, reply_form(thinks=True)), samples, seed)

    async def marks(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        return await self._ask(value_messages(situation, mark_form(thinks=True)), samples, seed)

    async def _ask(self, messages: Sequence[Message], samples: int, seed: int) -> Answers:
        asked = (self.chat.chat(messages, seed + number) for number in range(samples))
        replies = await asyncio.gather(*asked)
        self.usage = sum((reply.usage for reply in replies), self.usage)
        return [reply_actions(reply) for reply in replies]


class RandomPageAgent:
    """Draws from what a page offers: the control for every other proposer."""

    async def actions(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        page = zlib.crc32(show_text(situation.observation).encode())
        rng = stream(POLICY_STREAM, seed, page, len(situation.history))
        drawn = rng.integers(len(situation.actions), size=samples)
        return [(situation.actions[int(index)],) for index in drawn]

    async def marks(self, situation: Situation, *, samples: int, seed: int) -> Answers:
        raise ConfigError("value", "random play values nothing", "set value=reward")


class SampledProposals:
    """Asks a model `samples` times about each page; the most frequent action comes first."""

    def __init__(self, agent: PageAgent, *, samples: int = 8, seed: int = 0) -> None:
        self.agent = agent
        self.samples = samples
        self.seed = seed
        self.calls = 0
        self.unread = 0
        """Replies without an action that the page allows."""

    @property
    def calls_per_page(self) -> int:
        return self.samples

    def propose(self, situations: Sequence[Situation]) -> list[Proposals]:
        """(action, fraction of the readable replies) for each page."""
        return run_in_background(self._propose_all(situations)).result()

    async def _propose_all(self, situations: Sequence[Situation]) -> list[Proposals]:
        return list(await asyncio.gather(*map(self._propose_one, situations)))

    async def _propose_one(self, situation: Situation) -> Proposals:
        self.calls += self.samples
        answers = await self.agent.actions(situation, samples=self.samples, seed=self.seed * 1000)
        first = [as_offered(actions[0], situation) for actions in answers if actions]
        counts = Counter(action for action in first if is_possible(action, situation))
        self.unread += self.samples - counts.total()
        if not counts:  # no reply is a possible action: the first candidate is as good as any
            counts.update(situation.actions[:1])
        total = counts.total()
        return [(action, count / total) for action, count in counts.most_common()]


def as_offered(action: str, situation: Situation) -> str:
    """An action of any web language in the plain one, in which pages offer theirs."""
    parsed = None if action in situation.actions else parse_action(action)
    return action if parsed is None else write_action(parsed, "plain")


def is_possible(action: str, situation: Situation) -> bool:
    """Whether an action is offered, or gives a text of its own to an element of the page."""
    if action in situation.actions:
        return True
    parsed = parse_action(action)
    if parsed is None or parsed.verb not in FREE_TEXT:
        return False
    ids = {node.id for node in page_of(situation.observation) if node.id}
    return parsed.verb not in INTO_ELEMENT or parsed.id in ids


class ModelValue:
    """A language model's marks as the value of a page: the mean of those that can be read."""

    def __init__(self, agent: PageAgent, *, samples: int = 4, seed: int = 0) -> None:
        self.agent = agent
        self.samples = samples
        self.seed = seed
        self.calls = 0
        self.unread = 0
        """Replies without a mark; they count as 0, as in the published agent."""

    @property
    def calls_per_page(self) -> int:
        return self.samples

    def value(self, situations: Sequence[Situation]) -> list[float]:
        return run_in_background(self._value_all(situations)).result()

    async def _value_all(self, situations: Sequence[Situation]) -> list[float]:
        return list(await asyncio.gather(*map(self._value_one, situations)))

    async def _value_one(self, situation: Situation) -> float:
        self.calls += self.samples
        answers = await self.agent.marks(situation, samples=self.samples, seed=self.seed * 1000)
        marks = [read_mark(answer) for answer in answers]
        self.unread += marks.count(None)
        return sum(mark or 0.0 for mark in marks) / len(marks)
