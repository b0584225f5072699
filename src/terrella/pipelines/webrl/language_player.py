"""Playing with a language model: by scoring the offered actions, or by writing one.

Scoring asks a learner for the log-probabilities of all offered actions behind one shared prompt.
Writing goes through the engine's sampler and the rollout's env pool: worlds are stepped while other
episodes think. Both give attempts.
    player = WritingPlayer(families, codec, sampler, turn_tokens=96, at_once=8, ...)
    attempts = player.play(tasks, split=Split.TRAIN)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from terrella.codecs.web_prompt import WebCodec
from terrella.core.protocols import Learner, Sampler
from terrella.core.tokens import Task, TokenEpisode, TrainExample
from terrella.core.types import Episode, Situation, Split, Stop, show_text
from terrella.core.world import World
from terrella.data.attempt_journal import AttemptJournal
from terrella.data.attempts import Attempt, Choice, PracticeTask, count_steps
from terrella.models.policy_input import PolicyInput
from terrella.rollout.batch_rollout import (
    BatchRollout,
    Chosen,
    Watch,
    WorldSlot,
    draw_index,
    unwatched,
)
from terrella.rollout.env_pool import EnvPool, EnvWorker
from terrella.rollout.rollout import Rollout
from terrella.rollout.session import StepResult

EPISODE_TOKENS = 1_000_000
"""No bound: each turn has a prompt of its own, and turns are bounded by the world's steps."""


class ScoringPlayer:
    """See `agent.Player`: acts by the probabilities of the offered actions."""

    def __init__(
        self,
        rollout: BatchRollout,
        learner: Learner,
        codec: WebCodec,
        *,
        mean_score: bool,
        temperature: float = 1.0,
    ) -> None:
        self.rollout = rollout
        self.learner = learner
        self.codec = codec
        self.mean_score = mean_score
        self.temperature = temperature

    def play(
        self,
        tasks: Sequence[PracticeTask],
        *,
        split: Split,
        max_env_steps: int = 0,
        greedy: bool = False,
        watch: Watch = unwatched,
        journal: AttemptJournal | None = None,
    ) -> list[Attempt]:
        def choose(inputs: Sequence[PolicyInput], slots: Sequence[WorldSlot]) -> list[Chosen]:
            chosen = []
            for scored, slot in zip(self._scores(inputs), slots, strict=True):
                best = max(each.score for each in scored)
                weights = [math.exp((each.score - best) / self.temperature) for each in scored]
                taken = draw_index(weights, slot.rng, greedy=greedy)
                found = scored[taken]
                chosen.append(Chosen(taken, found.logprob, found.written, found.reply))
            return chosen

        return self.rollout.play(
            choose, tasks, split=split, max_env_steps=max_env_steps, watch=watch, journal=journal
        )

    def _scores(self, inputs: Sequence[PolicyInput]) -> list[list[ScoredAction]]:
        """All offered actions of all situations, in one call: each prompt is read once."""
        asked = [
            [self.codec.written(action, shown.text) for action in shown.offered] for shown in inputs
        ]
        replies = [[self.codec.reply(written) for written in each] for each in asked]
        data = [
            TrainExample(prompt_ids=prompt, completion_ids=reply, mask=[True] * len(reply))
            for prompt, each in zip(map(self.codec.prompt, inputs), replies, strict=True)
            for reply in each
        ]
        totals = iter([sum(logprobs) for logprobs in self.learner.forward(data)])
        return [
            [self._scored(*pair, next(totals)) for pair in zip(texts, each, strict=True)]
            for texts, each in zip(asked, replies, strict=True)
        ]

    def _scored(self, written: str, reply: tuple[int, ...], logprob: float) -> ScoredAction:
        score = logprob / len(reply) if self.mean_score else logprob
        return ScoredAction(written, reply, logprob, score)


@dataclass(frozen=True, slots=True)
class ScoredAction:
    """An offered action: its text, its tokens, their log-probability, and what it is chosen by."""

    written: str
    reply: tuple[int, ...]
    logprob: float
    score: float


# --- writing --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """What an episode showed: the situations before each action, and the last one."""

    situations: list[Situation] = field(default_factory=list[Situation])


class SeeingWorker:
    """An env worker that keeps the situations of its episode."""

    def __init__(self, worker: EnvWorker, seen: Seen) -> None:
        self.worker = worker
        self.seen = seen

    async def start(self, task: Task, member: int) -> Situation:
        situation = await self.worker.start(task, member)
        self.seen.situations.append(situation)
        return situation

    async def act(self, action: str) -> StepResult:
        result = await self.worker.act(action)
        self.seen.situations.append(result.situation)
        return result

    async def finish(self, stop: Stop) -> Episode:
        return await self.worker.finish(stop)


class SeeingRollout(Rollout):
    """A rollout that keeps the situations of each task."""

    class Config(Rollout.Config):
        """The fields of any rollout."""

    def __init__(self, config: Rollout.Config, codec: WebCodec) -> None:
        super().__init__(config, codec)
        self.seen: dict[tuple[int, int], Seen] = {}

    def _watched(self, worker: EnvWorker, task: Task, member: int) -> EnvWorker:
        seen = self.seen[task.seed, task.noise_seed] = Seen()
        return SeeingWorker(super()._watched(worker, task, member), seen)


class WritingPlayer:
    """See `agent.Player`: the model writes its actions."""

    def __init__(
        self,
        families: Mapping[str, World.Config],
        codec: WebCodec,
        sampler: Sampler,
        *,
        turn_tokens: int,
        at_once: int,
        env_pool: EnvPool.Config,
        seed: int,
    ) -> None:
        """`at_once` episodes are in flight; the next ones start when all of them have ended.

        So which tasks are started follows from the attempts before them, in the order of the tasks,
        and not from which of them ended first.
        """
        self.codec = codec
        self.sampler = sampler
        self.at_once = at_once
        self.seed = seed
        self.in_step = env_pool.place == "inline"
        """Whether a batch computes the same bits each time: worlds answer in order."""
        self.limits = {
            name: Rollout.Config(
                world=world,
                max_turns=world.max_steps,
                turn_tokens=turn_tokens,
                episode_tokens=EPISODE_TOKENS,
                history="actions",
                env_pool=env_pool,
            )
            for name, world in families.items()
        }

    def play(
        self,
        tasks: Sequence[PracticeTask],
        *,
        split: Split,
        max_env_steps: int = 0,
        greedy: bool = False,
        watch: Watch = unwatched,
        journal: AttemptJournal | None = None,
    ) -> list[Attempt]:
        kept = journal.known(tasks) if journal else {}
        ended: dict[int, Attempt] = {}

        def end(index: int, attempt: Attempt) -> None:
            ended[index] = attempt
            if journal and index not in kept:
                journal.keep(index, attempt)
            watch(count_steps(ended.values()), len(ended))

        numbered = list(enumerate(tasks))
        with self._rollouts(tasks, greedy=greedy) as rollouts:
            for start in range(0, len(tasks), self.at_once):
                if 0 < max_env_steps <= count_steps(ended.values()):
                    break
                batch = numbered[start : start + self.at_once]
                known = self._known(batch, kept)
                for index, attempt in known.items():
                    end(index, attempt)
                missing = [item for item in batch if item[0] not in known]
                asyncio.run(self._play(rollouts, missing, split, end))
        return [ended[index] for index in sorted(ended)]

    @contextlib.contextmanager
    def _rollouts(
        self, tasks: Sequence[PracticeTask], *, greedy: bool
    ) -> Iterator[dict[str, SeeingRollout]]:
        """A rollout for each family; their worlds are closed at the end."""
        temperature = 0.0 if greedy else 1.0
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(
                    SeeingRollout(self.limits[name].replace(temperature=temperature), self.codec)
                )
                for name in dict.fromkeys(task.family for task in tasks)
            }

    def _known(
        self, batch: Sequence[tuple[int, PracticeTask]], kept: Mapping[int, Attempt]
    ) -> dict[int, Attempt]:
        """What is not played again of a batch.

        A batch that computes the same bits each time is played again as a whole: the last bits of a
        log-probability depend on what is sampled beside it.
        """
        known = {index: kept[index] for index, _ in batch if index in kept}
        return {} if self.in_step and len(known) < len(batch) else known

    async def _play(
        self,
        rollouts: Mapping[str, SeeingRollout],
        missing: Sequence[tuple[int, PracticeTask]],
        split: Split,
        end: Callable[[int, Attempt], None],
    ) -> None:
        """Play these at once; each is kept as soon as it has ended, a batch in step as a whole."""

        async def play(index: int, task: PracticeTask) -> tuple[int, Attempt]:
            rollout, asked = rollouts[task.family], _asked(task, split)
            episode = await rollout.run_one(self.sampler, asked, 0, self.seed)
            attempt = _attempt(task, rollout.seen.pop((task.seed, task.noise_seed)), episode)
            if not self.in_step:
                end(index, attempt)
            return index, attempt

        played = await asyncio.gather(*(play(*item) for item in missing))
        for item in played if self.in_step else ():
            end(*item)


def _asked(task: PracticeTask, split: Split) -> Task:
    return Task(
        seed=task.seed,
        noise_seed=task.noise_seed,
        split=split,
        world=task.family,
        written=task.written,
    )


def _attempt(task: PracticeTask, seen: Seen, episode: TokenEpisode) -> Attempt:
    """An episode without a record broke: its attempt is masked."""
    record, shown = episode.record, seen.situations
    instruction = shown[0].instruction if shown else ""
    if record is None:
        return Attempt(
            task=task,
            instruction=instruction,
            choices=(),
            last="",
            success=None,
            stop=str(Stop.WORLD_ERROR),
        )
    # Situations of workers in this process share one growing history; observations are their own.
    choices = tuple(
        Choice(
            observation=show_text(step.observation),
            offered=tuple(before.actions),
            taken=-1,
            logprob=sum(episode.logprobs[turn]),
            steps_left=before.steps_left,
            written=step.action,
            reply_ids=episode.completion_ids[turn],
        )
        for step, before, (_, turn) in zip(
            record.transitions, shown, episode.sequences, strict=False
        )
    )
    value = record.outcome.value
    return Attempt(
        task=task,
        instruction=instruction,
        choices=choices,
        last=show_text(shown[-1].observation),
        success=None if value is None else value == 1.0,
        stop=str(record.stop),
        instance=record.instance,
    )
