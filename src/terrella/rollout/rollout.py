"""Rollouts: thousands of live episodes share one sampler, and become training data.

An agent's episode alternates tokens of the model and of the world. So does a world model's that
predicts several steps: there the actions are forced. Both become a `TokenEpisode`. A world that
raises, hangs or dies ends only its own episode, which is masked with the reason.
    episodes = Rollout(config, codec).run(sampler, tasks, group_size=8, seed=0)
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from terrella.core.bounds import check_least
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.judge import judge_steps, mean_verdict
from terrella.core.protocols import (
    BoundedSampler,
    Codec,
    RolloutCodec,
    Sampler,
    ThoughtReader,
    Verifier,
)
from terrella.core.seeds import SAMPLE_STREAM, stream
from terrella.core.tokens import History, ReplyFacts, Sampled, Task, TokenEpisode, TokenRequest
from terrella.core.types import Observation, Situation, Status, Stop, Transition, Verdict
from terrella.core.world import World
from terrella.rollout.context import AgentContext, PromptTooLongError, TokenBuffer
from terrella.rollout.env_pool import EnvPool, EnvWorker
from terrella.rollout.reward_shaping import RewardShaping
from terrella.rollout.session import EnvWorkerError
from terrella.rollout.watchdog import Watchdog, WatchedEnvWorker

logger = logging.getLogger("terrella")


class Rollout(Configurable):
    """Plays tasks in groups: members of a group share a task and differ in their noise."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        world: World.Config
        max_turns: int = 10
        max_actions: int = 1
        """Actions taken from one reply; further ones are ignored."""
        turn_tokens: int = 64
        episode_tokens: int = 4096
        """Most tokens of an episode after its prompt, the world's included."""
        context_tokens: int = 0
        """Most tokens that the model sees at once, its reply included; 0 is all it can read.

        Where each turn has its own prompt, the oldest turns are left out until it fits. Otherwise
        the episode ends. An episode whose first prompt does not fit is masked.
        """
        history: History = "sampled"
        """What an agent sees of earlier turns."""
        temperature: float = 1.0
        env_pool: Local[EnvPool.Config] = field(default_factory=EnvPool.Config)

        def __post_init__(self) -> None:
            """Refuse episodes in which nothing can be said."""
            check_least(self, max_turns=1, max_actions=1, turn_tokens=1, episode_tokens=1)
            check_least(self, context_tokens=0)

        @property
        def max_model_tokens(self) -> int:
            """The most tokens that the model can write in an episode."""
            return min(self.max_turns * self.turn_tokens, self.episode_tokens)

    config: Config

    def __init__(
        self,
        config: Config,
        codec: Codec,
        *,
        verifier: Verifier | None = None,
        shaping: RewardShaping | None = None,
    ) -> None:
        """Worlds are built when they are first needed. The verifier is the world's unless given."""
        super().__init__(config)
        self.codec = codec
        self.context = AgentContext(config, codec)
        self.env_pool = EnvPool(config.env_pool, config.world)
        self.verifier = verifier or config.world.build().verifier
        self.shaping = shaping
        self.worlds: tuple[str, ...] = ()
        """The names of the worlds, where there are several (`rollout/mixed.py`)."""
        self.watchdog: Watchdog | None = None
        self._episodes = itertools.count()
        self.env_steps = 0
        """Actions carried out in real worlds so far; step budgets count them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.env_pool.close()

    def run(
        self, sampler: Sampler, tasks: Sequence[Task], *, group_size: int, seed: int
    ) -> list[TokenEpisode]:
        """All members of all groups, group by group. `seed` is for sampling only."""
        return asyncio.run(self.run_async(sampler, tasks, group_size=group_size, seed=seed))

    async def run_async(
        self, sampler: Sampler, tasks: Sequence[Task], *, group_size: int, seed: int
    ) -> list[TokenEpisode]:
        """`run` inside an event loop."""
        pairs = [(task, member) for task in tasks for member in range(group_size)]
        return await asyncio.gather(
            *(self.run_one(sampler, task, member, seed) for task, member in pairs)
        )

    async def run_one(self, sampler: Sampler, task: Task, member: int, seed: int) -> TokenEpisode:
        """One member of a group: the same episode, whatever runs beside it."""
        rng = stream(SAMPLE_STREAM, seed, task.seed, task.noise_seed, member)
        seeds = [int(number) for number in rng.integers(2**62, size=self.config.max_turns)]
        if task.transition is not None:
            return await self._predict(sampler, task, member, seeds)
        episode = await self._act(sampler, task, member, seeds)
        if episode.record is not None:
            self.env_steps += len(episode.record.transitions)
        if self.shaping is None:
            return episode
        return self.shaping.shape(episode, self.codec, max_actions=self.config.max_actions)

    def _too_long(self, buffer: TokenBuffer, task: Task, error: PromptTooLongError) -> TokenEpisode:
        logger.warning("masked: seed %d: %s", task.seed, error)
        return buffer.episode(task, Verdict.failed(Status.POLICY_ERROR, str(error)), None)

    # --- world models -----------------------------------------------------------------------------

    async def _predict(
        self, sampler: Sampler, task: Task, member: int, seeds: Sequence[int]
    ) -> TokenEpisode:
        if task.transition is None or task.situation is None:
            raise ValueError("a prediction task needs its situation and its transition")
        steps = (task.transition, *task.following)
        if len(steps) > len(seeds):
            raise ConfigError(
                "max_turns", f"{len(steps)} steps are asked for, {len(seeds)} turns allowed"
            )
        buffer = TokenBuffer(self.codec.ask_observation(task.situation, task.transition.action))
        writer = self._writer(sampler, task, member, keep=len(steps) > 1)
        try:
            writer.context.check(buffer)
        except PromptTooLongError as error:
            return self._too_long(buffer, task, error)
        with writer:
            written = await self._write_steps(writer, buffer, steps, seeds)
        predicted = self._read_steps(task.situation, [each.token_ids for each in written], steps)
        unwritten = [None] * (len(steps) - len(written))
        verdicts = judge_steps(self.verifier, [*predicted, *unwritten], steps)
        for sampled, verdict in zip(written, verdicts, strict=False):
            readable = verdict.status is not Status.UNPARSABLE
            buffer.replies.append(reply_facts(self.codec, sampled, readable=readable))
        buffer.turn_rewards = [verdict.value or 0.0 for verdict in verdicts[: len(written)]]
        return buffer.episode(task, mean_verdict(verdicts), None)

    async def _write_steps(
        self,
        writer: _Writer,
        buffer: TokenBuffer,
        steps: Sequence[Transition],
        seeds: Sequence[int],
    ) -> list[Sampled]:
        """The model's prediction of each step, the next action forced in between.

        Steps that the model cannot read any more are not predicted.
        """
        written: list[Sampled] = []
        for index, (step, seed) in enumerate(zip(steps, seeds, strict=False)):
            if index:
                forced = self._rollout_codec.go_on(step.action)
                if not writer.context.fits(buffer.seen_tokens + len(forced)):
                    break
                buffer.world_writes(forced)
            written.append(await writer.write(buffer, seed))
            buffer.end_turn(0.0)
        return written

    def _read_steps(
        self, situation: Situation, replies: Sequence[tuple[int, ...]], steps: Sequence[Transition]
    ) -> list[Observation | None]:
        if isinstance(self.codec, RolloutCodec):
            return self.codec.read_rollout(situation, replies)
        return [self.codec.read_observation(replies[0], like=steps[0].next_observation)]

    @property
    def _rollout_codec(self) -> RolloutCodec:
        if not isinstance(self.codec, RolloutCodec):
            raise ConfigError("codec", f"{type(self.codec).__name__} predicts one step at a time")
        return self.codec

    # --- agents -----------------------------------------------------------------------------------

    async def _act(
        self, sampler: Sampler, task: Task, member: int, seeds: Sequence[int]
    ) -> TokenEpisode:
        buffer = TokenBuffer()
        writer = self._writer(sampler, task, member, keep=True)
        async with self.env_pool.take() as taken:
            worker = self._watched(taken, task, member)
            try:
                with writer:
                    stop = await self._play(writer, worker, buffer, task, member, seeds)
                    record = await worker.finish(stop)
            except PromptTooLongError as error:
                return self._too_long(buffer, task, error)
            except EnvWorkerError as lost:
                logger.warning("masked: %s", lost)
                return buffer.episode(task, Verdict.failed(lost.stop.status, str(lost)), None)
        return buffer.episode(task, record.outcome, record)

    def _watched(self, worker: EnvWorker, task: Task, member: int) -> EnvWorker:
        if self.watchdog is None:
            return worker
        name = f"{self.config.world.owner.__name__} (seed {task.seed}, member {member})"
        return WatchedEnvWorker(worker, self.watchdog, name)

    async def _play(
        self,
        writer: _Writer,
        worker: EnvWorker,
        buffer: TokenBuffer,
        task: Task,
        member: int,
        seeds: Sequence[int],
    ) -> Stop:
        """Alternate model and world; returns why the episode stops if the world goes on."""
        situation = await worker.start(task, member)
        writer.context.begin(buffer, situation)
        for turn, seed in enumerate(seeds, 1):
            sampled = await writer.write(buffer, seed)
            over, situation = await self._carry_out(worker, buffer, sampled)
            if over or turn == len(seeds):
                break
            # Of several stop ids, the first one ends a turn.
            ended = tuple(sampled.token_ids[-1:]) == tuple(self.codec.stop_ids[:1])
            if not writer.context.go_on(buffer, situation, cut_off=not ended):
                return Stop.OUT_OF_TOKENS
        return Stop.OUT_OF_STEPS

    async def _carry_out(
        self, worker: EnvWorker, buffer: TokenBuffer, sampled: Sampled
    ) -> tuple[bool, Situation]:
        """Carry out the actions of one reply. A reply without one costs an invalid step."""
        actions = self.codec.read_actions(sampled.token_ids)[: self.config.max_actions]
        buffer.replies.append(reply_facts(self.codec, sampled, readable=bool(actions)))
        reward = 0.0
        for action in actions or ("",):
            result = await worker.act(action)
            reward += result.step.reward
            if result.over:
                break
        buffer.end_turn(reward)
        return result.over, result.situation

    def _writer(self, sampler: Sampler, task: Task, member: int, *, keep: bool) -> _Writer:
        """The model of one episode; `keep` opens a session, which is for several turns.

        Sessions are numbered, because a task may be played twice at once.
        """
        readable = sampler.context_tokens if isinstance(sampler, BoundedSampler) else 0
        world = f"{task.world}/" if task.world else ""
        name = f"{world}{task.seed}/{task.noise_seed}/{member}#{next(self._episodes)}"
        return _Writer(
            sampler=sampler,
            codec=self.codec,
            context=self.context.within(readable),
            temperature=self.config.temperature,
            session=name if keep else None,
        )


def reply_facts(codec: object, sampled: Sampled, *, readable: bool) -> ReplyFacts:
    """The form of a reply; a codec without thoughts reads none."""
    thought = None
    if isinstance(codec, ThoughtReader):
        thought = codec.read_thought(sampled.token_ids)
    tokens, truncated = thought or (None, False)
    return ReplyFacts(readable, not sampled.stopped, tokens, truncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """The model of one episode; what its sampler keeps for it is released at the end."""

    sampler: Sampler
    codec: Codec
    context: AgentContext
    temperature: float
    session: str | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.session:
            self.sampler.release(self.session)

    async def write(self, buffer: TokenBuffer, seed: int) -> Sampled:
        """The model's next reply, added to the buffer."""
        allowed = self.codec.allowed_ids if isinstance(self.codec, RolloutCodec) else None
        request = TokenRequest(
            prompt_ids=buffer.seen,
            max_new_tokens=self.context.room(buffer),
            seed=seed,
            stop_ids=self.codec.stop_ids,
            temperature=self.temperature,
            session=self.session,
            allowed_ids=allowed,
        )
        sampled = await self.sampler.sample(request)
        buffer.model_writes(sampled)
        return sampled
