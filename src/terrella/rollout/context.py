"""The tokens of a running episode, and what an agent sees of them at each turn.

With `history="sampled"` the world's tokens are appended to the conversation, and what was sampled
stays as it is. Otherwise each turn has a prompt of its own, written from the situation alone: so
the prompts of a recorded episode can be written again.
    context = AgentContext(limits, codec)
    context.begin(buffer, situation); ...; context.go_on(buffer, situation, cut_off=False)
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec, TurnCodec
from terrella.core.tokens import History, ReplyFacts, Sampled, Task, TokenEpisode
from terrella.core.types import Episode, Situation, Verdict


class PromptTooLongError(Exception):
    """The first prompt of an episode leaves no room for a reply."""


class Limits(Protocol):
    """The settings that are read here; `Rollout.Config` has them."""

    @property
    def turn_tokens(self) -> int: ...
    @property
    def episode_tokens(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def history(self) -> History: ...


@dataclass(slots=True)
class TokenBuffer:
    """The tokens of a running episode, written by the model or forced by the world."""

    prompt_ids: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list[int])
    mask: list[bool] = field(default_factory=list[bool])
    logprobs: list[float] = field(default_factory=list[float])
    turn_ends: list[int] = field(default_factory=list[int])
    turn_rewards: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    replies: list[ReplyFacts] = field(default_factory=list[ReplyFacts])
    turn_prompts: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """The prompt of each turn, where each has its own."""

    @property
    def seen(self) -> tuple[int, ...]:
        """What the model sees at its next turn."""
        if self.turn_prompts:
            return self.turn_prompts[-1]
        return (*self.prompt_ids, *self.ids)

    @property
    def seen_tokens(self) -> int:
        return (
            len(self.turn_prompts[-1])
            if self.turn_prompts
            else len(self.prompt_ids) + len(self.ids)
        )

    def ask(self, prompt_ids: tuple[int, ...]) -> None:
        """Begin a turn with a prompt of its own."""
        if not self.turn_prompts:
            self.prompt_ids = prompt_ids
        self.turn_prompts.append(prompt_ids)

    def model_writes(self, sampled: Sampled) -> None:
        self.ids += sampled.token_ids
        self.mask += [True] * len(sampled.token_ids)
        self.logprobs += sampled.logprobs
        self.versions += [sampled.version] * len(sampled.token_ids)

    def world_writes(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += self.versions[-1:] * len(ids)

    def end_turn(self, reward: float) -> None:
        self.turn_ends.append(len(self.ids))
        self.turn_rewards.append(reward)

    def episode(self, task: Task, outcome: Verdict, record: Episode | None) -> TokenEpisode:
        return TokenEpisode(
            prompt_ids=self.prompt_ids,
            completion_ids=tuple(self.ids),
            model_mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            turn_ends=tuple(self.turn_ends),
            turn_rewards=tuple(self.turn_rewards),
            outcome=outcome,
            group=f"{task.seed}/{task.noise_seed}",
            record=record,
            versions=tuple(self.versions),
            replies=tuple(self.replies),
            world=task.world,
            turn_prompts=tuple(self.turn_prompts),
        )


class AgentContext:
    """Writes what the model sees before each of its replies, within the limits."""

    def __init__(self, limits: Limits, codec: Codec, *, readable: int = 0) -> None:
        """`readable` are the tokens that the sampler can read; 0 sets no bound."""
        self.limits = limits
        self.codec = codec
        self.context_tokens = limits.context_tokens or readable
        if readable and self.context_tokens > readable:
            raise ConfigError(
                "context_tokens",
                f"{limits.context_tokens}, but the model or its server reads {readable}",
                f"set context_tokens={readable} or less, or a larger vllm.max_model_len",
            )
        if limits.history != "sampled" and not isinstance(codec, TurnCodec):
            raise ConfigError(
                "history",
                f"{type(codec).__name__} cannot write the prompt of a turn from the situation",
                "set history=sampled",
            )

    def within(self, readable: int) -> AgentContext:
        """The same limits for a sampler that can read so many tokens."""
        return AgentContext(self.limits, self.codec, readable=readable)

    def begin(self, buffer: TokenBuffer, situation: Situation) -> None:
        """Write the prompt of the first turn."""
        if self.limits.history == "sampled":
            buffer.prompt_ids = self.codec.ask_action(situation)
        else:
            buffer.ask(self._turn_prompt(situation))
        self.check(buffer)

    def check(self, buffer: TokenBuffer) -> None:
        """Refuse a first prompt that leaves no room for a reply."""
        if not self.fits(len(buffer.prompt_ids)):
            raise PromptTooLongError(
                f"the first prompt has {len(buffer.prompt_ids)} tokens, "
                f"context_tokens is {self.context_tokens}"
            )

    def go_on(self, buffer: TokenBuffer, situation: Situation, *, cut_off: bool) -> bool:
        """Write what the model sees before its next reply; False if there is no room for it."""
        if self.limits.history != "sampled":
            prompt = self._turn_prompt(situation)
            if len(buffer.ids) >= self.limits.episode_tokens or not self.fits(len(prompt)):
                return False
            buffer.ask(prompt)
            return True
        forced = self.codec.world_turn(situation, cut_off=cut_off)
        if len(buffer.ids) + len(forced) >= self.limits.episode_tokens:
            return False
        if not self.fits(buffer.seen_tokens + len(forced)):
            return False
        buffer.world_writes(forced)
        return True

    def room(self, buffer: TokenBuffer) -> int:
        """The most tokens that the next reply may have."""
        rooms = [self.limits.turn_tokens, self.limits.episode_tokens - len(buffer.ids)]
        if self.context_tokens:
            rooms.append(self.context_tokens - buffer.seen_tokens)
        return max(1, min(rooms))

    def fits(self, tokens: int) -> bool:
        """Whether at least one token can be written after these."""
        return not self.context_tokens or tokens < self.context_tokens

    def _turn_prompt(self, situation: Situation) -> tuple[int, ...]:
        """The prompt with the longest history that leaves room for a whole reply."""
        assert isinstance(self.codec, TurnCodec)
        codec, history = self.codec, tuple(situation.history)

        def without(dropped: int) -> tuple[int, ...]:
            left = dataclasses.replace(situation, history=history[dropped:])
            return codec.ask_turn(left, self.limits.history)

        prompt = without(0)
        most = self.context_tokens - self.limits.turn_tokens
        if not self.context_tokens or len(prompt) <= most:
            return prompt
        fits = bisect_left(range(len(history)), True, key=lambda n: len(without(n)) <= most)
        return without(fits)
