"""A trained web agent that acts by scoring, in an evaluation: it plays as it did in its run.

The offered actions are scored by a learner behind one prompt, and episodes are played one after the
other. An agent that writes needs nothing of this: a rollout with its codec plays it.
    with scoring_play(learner, codec, world, mean_score=True, ...) as play:
        row = await play(asked)
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator

from terrella.codecs.web_prompt import WebCodec
from terrella.core.protocols import Learner
from terrella.core.types import Episode, Stop, Verdict
from terrella.core.world import World
from terrella.data.attempts import Attempt, PracticeTask
from terrella.data.train_steps import train_steps
from terrella.evals.agent_rows import AskedEpisode, EpisodeRow, make_row
from terrella.evals.reply_counts import ReplyCounts
from terrella.pipelines.webrl.language_player import ScoringPlayer
from terrella.policies.chat_client import Usage
from terrella.rollout.batch_rollout import BatchRollout, WorldSlot

Play = Callable[[AskedEpisode], Awaitable[EpisodeRow]]
WORLD = "world"
"""The only family that is played."""


class KeptEpisodes(BatchRollout):
    """Keeps the record of the last episode beside its attempt."""

    last: Episode | None = None

    def _finish(self, slot: WorldSlot) -> Attempt:
        self.last = slot.run.episode if slot.run is not None and slot.run.over else None
        return super()._finish(slot)


@contextlib.contextmanager
def scoring_play(
    learner: Learner,
    codec: WebCodec,
    world: World.Config,
    *,
    mean_score: bool,
    read_instruction: bool,
    temperature: float,
) -> Iterator[Play]:
    """Plays one episode at a time; at temperature 0 the best action is taken."""
    with KeptEpisodes({WORLD: world}, slots=1, read_instruction=read_instruction) as rollout:
        player = ScoringPlayer(
            rollout, learner, codec, mean_score=mean_score, temperature=temperature or 1.0
        )

        async def play(asked: AskedEpisode) -> EpisodeRow:
            noise = asked.task.noise_seed + asked.member
            task = PracticeTask(family=WORLD, seed=asked.task.seed, noise_seed=noise)
            split = asked.task.split
            (attempt,) = player.play([task], split=split, greedy=temperature == 0)
            return _row(asked, attempt, rollout.last, codec)

        yield play


def _row(
    asked: AskedEpisode, attempt: Attempt, record: Episode | None, codec: WebCodec
) -> EpisodeRow:
    """Every action is one that was offered, so every reply is well formed."""
    if record is None:
        outcome = Verdict.failed(Stop.WORLD_ERROR.status, "the world cannot be reset: see the log")
    else:
        outcome = record.outcome
    prompts = [codec.prompt(step.input) for step in train_steps(attempt, 0.0)]
    usage = Usage(
        requests=len(prompts),
        prompt_tokens=sum(map(len, prompts)),
        completion_tokens=sum(len(choice.reply_ids) for choice in attempt.choices),
    )
    replies = attempt.actions
    return make_row(
        asked,
        outcome,
        record,
        replies=replies,
        well_formed=len(replies),
        written=ReplyCounts(replies=len(replies)),
        usage=usage,
    )
