"""Episodes of a model behind a chat endpoint: many at a time, all actions of each reply.

The conversation is kept as it was spoken: the model sees its own replies again, and the world
answers a reply when all its actions are done. This is what a rollout does with token ids. A
request that fails again and again masks its episode, with the reason. An episode that outgrows the
endpoint's context is judged as it stands, like one that outgrows `episode_tokens`.
    with ChatThreads(endpoint, 16) as threads, EndpointAgent(threads, config, form=None) as agent:
        row = await agent.play(asked, seed=0)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from terrella.codecs.chat import Message, chat_messages, reply_form, state_message
from terrella.codecs.tagged import ORDERS, Form, has_tags, tagged_reply_form
from terrella.core.errors import PolicyError
from terrella.core.seeds import SAMPLE_STREAM, stream
from terrella.core.types import Episode, Status, Stop, Verdict, show_text
from terrella.evals.agent_rows import AskedEpisode, EpisodeRow, make_row
from terrella.evals.reply_counts import ReplyCounts, of_chat
from terrella.policies.chat_client import ChatReply, ContextLengthError, Usage
from terrella.policies.endpoint import Endpoint, reply_actions
from terrella.rollout.env_pool import EnvPool, EnvWorker
from terrella.rollout.rollout import Rollout
from terrella.rollout.session import EnvWorkerError

CHARACTERS_PER_TOKEN = 4
"""Estimate for endpoints that report no tokens."""
MAX_SEED = 2**31
"""Endpoints read a seed as a signed number of 32 bits."""


class ChatThreads:
    """Asks an endpoint from threads, with a bound on the requests that are under way."""

    def __init__(self, endpoint: Endpoint, threads: int) -> None:
        self.endpoint = endpoint
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="endpoint")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.endpoint.client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def chat(self, messages: Sequence[Message], seed: int) -> ChatReply:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, self.endpoint.chat, list(messages), seed % MAX_SEED
        )


@dataclass(slots=True)
class _Conversation:
    """What was said so far, and what it cost."""

    messages: list[Message]
    prompt: int = 0
    """Messages before the first reply."""
    replies: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    first: Usage | None = None
    last: Usage = field(default_factory=Usage)
    well_formed: int = 0
    written: ReplyCounts = field(default_factory=ReplyCounts)

    def begin(self, messages: list[Message]) -> None:
        self.messages, self.prompt = messages, len(messages)

    def hears(self, reply: ChatReply, *, well_formed: bool) -> None:
        self.messages.append({"role": "assistant", "content": reply.text})
        self.replies.append(reply.text)
        self.reasoning.append(reply.reasoning)
        self.usage += reply.usage
        self.first, self.last = self.first or reply.usage, reply.usage
        self.well_formed += well_formed
        self.written += of_chat(reply)

    @property
    def tokens(self) -> int:
        """Tokens after the prompt, the world's included; an estimate if replies have no count.

        Thoughts that the next prompt leaves out count, too.
        """
        if self.first is None or self.usage.unreported:
            said = sum(len(message["content"]) for message in self.messages[self.prompt :])
            return said // CHARACTERS_PER_TOKEN
        seen = self.last.prompt_tokens + self.last.completion_tokens - self.first.prompt_tokens
        return max(self.usage.completion_tokens, seen)


class EndpointAgent:
    """Plays one world. Worlds live in an env pool, as they do in a rollout."""

    def __init__(
        self,
        threads: ChatThreads,
        config: Rollout.Config,
        *,
        form: Form | None,
        thinks: bool = True,
    ) -> None:
        """`config` has the world and the limits; `form` is that of a reply.

        The prompt asks for a thought unless the model does not think.
        """
        self.threads = threads
        self.config = config
        self.env_pool = EnvPool(config.env_pool, config.world)
        self.tags = ORDERS[form] if form else ()
        self.form = tagged_reply_form(form, thinks=thinks) if form else reply_form(thinks=thinks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.env_pool.close()

    async def play(self, asked: AskedEpisode, *, seed: int) -> EpisodeRow:
        """One episode; it is masked if the world or the endpoint fails."""
        talk = _Conversation([])
        record: Episode | None = None
        async with self.env_pool.take() as worker:
            try:
                stop = await self._play(worker, asked, talk, seed)
                record = await worker.finish(stop)
                outcome = record.outcome
            except EnvWorkerError as lost:
                outcome = Verdict.failed(lost.stop.status, str(lost))
            except PolicyError as failed:
                # The steps so far say nothing about the model: its next reply never came.
                outcome = Verdict.failed(Status.POLICY_ERROR, f"{failed.where}: {failed.what}")
        row = make_row(
            asked,
            outcome,
            record,
            replies=talk.replies,
            well_formed=talk.well_formed,
            written=talk.written,
            usage=talk.usage,
        )
        return dataclasses.replace(row, reasoning=talk.reasoning)

    async def _play(
        self, worker: EnvWorker, asked: AskedEpisode, talk: _Conversation, seed: int
    ) -> Stop:
        config, task = self.config, asked.task
        rng = stream(SAMPLE_STREAM, seed, task.seed, task.noise_seed, asked.member)
        seeds = [int(number) for number in rng.integers(2**62, size=config.max_turns)]
        situation = await worker.start(task, asked.member)
        talk.begin(chat_messages(situation, config.max_actions, self.form))
        for number in seeds:
            try:
                reply = await self.threads.chat(talk.messages, number)
            except ContextLengthError:
                if not talk.replies:
                    raise  # the prompt alone is too long: nothing was asked
                return Stop.OUT_OF_TOKENS
            actions = reply_actions(reply)[: config.max_actions]
            talk.hears(reply, well_formed=bool(actions) and has_tags(reply.text, self.tags))
            for action in actions or ("",):
                result = await worker.act(action)
                if result.over:
                    return Stop.TERMINATED
            situation = result.situation
            text = show_text(situation.observation)
            talk.messages.append(state_message(text, situation.steps_left))
            if talk.tokens >= config.episode_tokens:
                return Stop.OUT_OF_TOKENS
        return Stop.OUT_OF_STEPS
