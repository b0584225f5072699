"""The episode driver: thousands of live episodes feed one sampler; what comes out is what is trained on.

An agent's episode alternates the model's tokens and the world's; so does a world model's that predicts many steps:
there the world forces the actions. Both come out as a `TokenEpisode`. A world that raises, hangs or dies ends its own
episode, masked and named.
    episodes = Driver(config, codec).run(sampler, tasks, group_size=8, seed=0)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.instances import SAMPLE_STREAM, stream
from terrella.core.judge import judge_steps, mean_verdict
from terrella.core.protocols import Codec, RolloutCodec, Sampled, Sampler, Task, TokenEpisode, TokenRequest
from terrella.core.types import Episode, Observation, Situation, Status, Stop, Transition, Verdict
from terrella.core.world import World
from terrella.engines.episodes.seats import Seat, SeatLostError, Seats
from terrella.engines.episodes.watchdog import Watchdog, WatchedSeat

logger = logging.getLogger("terrella")


@dataclass(slots=True)
class Tape:
    """An episode's tokens as they are written: by the model, or forced by the world."""

    prompt_ids: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list[int])
    mask: list[bool] = field(default_factory=list[bool])
    logprobs: list[float] = field(default_factory=list[float])
    turn_ends: list[int] = field(default_factory=list[int])
    turn_rewards: list[float] = field(default_factory=list[float])

    def model_writes(self, sampled: Sampled) -> None:
        """Tokens the model sampled, exactly as sampled."""
        self.ids += sampled.token_ids
        self.mask += [True] * len(sampled.token_ids)
        self.logprobs += sampled.logprobs

    def world_writes(self, ids: Sequence[int]) -> None:
        """Tokens the world forces."""
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def end_turn(self, reward: float) -> None:
        """A turn ends after the last token so far."""
        self.turn_ends.append(len(self.ids))
        self.turn_rewards.append(reward)

    def episode(self, task: Task, outcome: Verdict, record: Episode | None) -> TokenEpisode:
        """The finished record."""
        return TokenEpisode(
            prompt_ids=self.prompt_ids, completion_ids=tuple(self.ids), model_mask=tuple(self.mask),
            logprobs=tuple(self.logprobs), turn_ends=tuple(self.turn_ends), turn_rewards=tuple(self.turn_rewards),
            outcome=outcome, group=f"{task.seed}/{task.noise_seed}", record=record,
        )  # fmt: skip


class Driver(Configurable):
    """Plays tasks in groups: the members of a group get the same question and noise of their own."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Limits of an episode, and where its world lives."""

        world: World.Config
        max_turns: int = 10
        max_actions: int = 1
        """Actions carried out of one reply; further ones are ignored."""
        turn_tokens: int = 64
        episode_tokens: int = 4096
        """An episode that has written this many tokens, the world's included, is out of tokens."""
        temperature: float = 1.0
        seats: Seats.Config = field(default_factory=Seats.Config)

    config: Config

    def __init__(self, config: Config, codec: Codec) -> None:
        """Worlds are made when they are first needed."""
        super().__init__(config)
        self.codec = codec
        self.seats = Seats(config.seats, config.world)
        self.verifier = config.world.build().verifier
        self.watchdog: Watchdog | None = None

    def run(self, sampler: Sampler, tasks: Sequence[Task], *, group_size: int, seed: int) -> list[TokenEpisode]:
        """All members of all groups, group by group. `seed` is the sampling seed: tasks carry the worlds' own."""
        return asyncio.run(self.run_async(sampler, tasks, group_size=group_size, seed=seed))

    async def run_async(
        self, sampler: Sampler, tasks: Sequence[Task], *, group_size: int, seed: int
    ) -> list[TokenEpisode]:
        """As `run`, inside an event loop."""
        pairs = [(task, member) for task in tasks for member in range(group_size)]
        return await asyncio.gather(*(self.run_one(sampler, task, member, seed) for task, member in pairs))

    async def run_one(self, sampler: Sampler, task: Task, member: int, seed: int) -> TokenEpisode:
        """One member of a group: the same episode, whoever asks for it and whatever runs beside it."""
        rng = stream(SAMPLE_STREAM, seed, task.seed, task.noise_seed, member)
        seeds = [int(number) for number in rng.integers(2**62, size=self.config.max_turns)]
        if task.transition is not None:
            return await self._predict(sampler, task, member, seeds)
        return await self._act(sampler, task, member, seeds)

    # --- world models: a question, an answer, and on from there --------------------------------------------------

    async def _predict(self, sampler: Sampler, task: Task, member: int, seeds: Sequence[int]) -> TokenEpisode:
        if task.transition is None or task.situation is None:
            raise ValueError("a prediction task needs its situation and its transition")
        steps = (task.transition, *task.following)
        if len(steps) > len(seeds):
            raise ConfigError("max_turns", f"{len(steps)} steps are asked for, {len(seeds)} turns allowed")
        tape = Tape(self.codec.ask_observation(task.situation, task.transition.action))
        session = f"{task.seed}/{task.noise_seed}/{member}" if task.following else None
        try:
            replies = await self._write_steps(sampler, tape, steps, seeds, session)
        finally:
            if session:
                sampler.release(session)
        verdicts = judge_steps(self.verifier, self._read_steps(task.situation, replies, steps), steps)
        tape.turn_rewards = [verdict.value or 0.0 for verdict in verdicts]
        return tape.episode(task, mean_verdict(verdicts), None)

    async def _write_steps(
        self, sampler: Sampler, tape: Tape, steps: Sequence[Transition], seeds: Sequence[int], session: str | None
    ) -> list[tuple[int, ...]]:
        """The model's prediction of each step, the next action forced in between."""
        replies = []
        for place, (step, seed) in enumerate(zip(steps, seeds, strict=False)):
            if place:
                tape.world_writes(self._rolling.go_on(step.action))
            sampled = await sampler.sample(self._request(tape, seed, session))
            tape.model_writes(sampled)
            tape.end_turn(0.0)
            replies.append(sampled.token_ids)
        return replies

    def _read_steps(
        self, situation: Situation, replies: Sequence[tuple[int, ...]], steps: Sequence[Transition]
    ) -> list[Observation | None]:
        if isinstance(self.codec, RolloutCodec):
            return self.codec.read_rollout(situation, replies)
        return [self.codec.read_observation(replies[0], like=steps[0].next_observation)]

    @property
    def _rolling(self) -> RolloutCodec:
        if not isinstance(self.codec, RolloutCodec):
            raise ConfigError("codec", f"{type(self.codec).__name__} predicts one step at a time")
        return self.codec

    # --- agents: turn by turn ------------------------------------------------------------------------------------

    async def _act(self, sampler: Sampler, task: Task, member: int, seeds: Sequence[int]) -> TokenEpisode:
        tape, session = Tape(), f"{task.seed}/{task.noise_seed}/{member}"
        async with self.seats.take() as taken:
            seat = self._watched(taken, task, member)
            try:
                stop = await self._play(sampler, seat, tape, task, member, seeds, session)
                record = await seat.finish(stop)
            except SeatLostError as lost:
                logger.warning("masked: %s", lost)
                status = Status.TIMEOUT if lost.stop is Stop.WORLD_TIMEOUT else Status.ERROR
                return tape.episode(task, Verdict.failed(status, str(lost)), None)
            finally:
                sampler.release(session)
        return tape.episode(task, record.outcome, record)

    def _watched(self, seat: Seat, task: Task, member: int) -> Seat:
        if self.watchdog is None:
            return seat
        name = f"{self.config.world.owner.__name__} (seed {task.seed}, member {member})"
        return WatchedSeat(seat, self.watchdog, name)

    async def _play(
        self, sampler: Sampler, seat: Seat, tape: Tape, task: Task, member: int, seeds: Sequence[int], session: str
    ) -> Stop:
        """Alternate until the world, the turns or the tokens end it; says what ended it if the world did not."""
        situation = await seat.start(task, member)
        tape.prompt_ids = self.codec.ask_action(situation)
        for turn, seed in enumerate(seeds, 1):
            sampled = await sampler.sample(self._request(tape, seed, session))
            tape.model_writes(sampled)
            over, situation = await self._carry_out(seat, tape, sampled)
            if over or turn == len(seeds):
                break
            forced = self.codec.world_turn(situation, cut_off=not sampled.stopped)
            if len(tape.ids) + len(forced) >= self.config.episode_tokens:
                return Stop.OUT_OF_TOKENS
            tape.world_writes(forced)
        return Stop.OUT_OF_STEPS

    async def _carry_out(self, seat: Seat, tape: Tape, sampled: Sampled) -> tuple[bool, Situation]:
        """The actions of one reply. One without any is the empty action: it costs a step, and is invalid."""
        actions = self.codec.read_actions(sampled.token_ids)[: self.config.max_actions] or ("",)
        reward = 0.0
        for action in actions:
            acted = await seat.act(action)
            reward += acted.step.reward
            if acted.over:
                break
        tape.end_turn(reward)
        return acted.over, acted.situation

    def _request(self, tape: Tape, seed: int, session: str | None = None) -> TokenRequest:
        room = max(1, min(self.config.turn_tokens, self.config.episode_tokens - len(tape.ids)))
        return TokenRequest(
            prompt_ids=(*tape.prompt_ids, *tape.ids), max_new_tokens=room, seed=seed, stop_ids=self.codec.stop_ids,
            temperature=self.config.temperature, session=session,
            allowed_ids=self.codec.allowed_ids if isinstance(self.codec, RolloutCodec) else None,
        )  # fmt: skip
