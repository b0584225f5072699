"""A model that writes its actions is killed in the middle of practice, and goes on."""

import asyncio
from typing import ClassVar

import pytest

pytest.importorskip("transformers", reason="needs the extra: pip install 'terrella[train]'")

from terrella.codecs.web_prompt import WebCodecConfig
from terrella.core.tokens import Sampled
from terrella.core.types import Split
from terrella.data.attempt_journal import AttemptJournal
from terrella.data.attempts import PracticeTask, count_steps
from terrella.models.characters import character_tokenizer
from terrella.pipelines.webrl.language_player import WritingPlayer
from terrella.rollout.env_pool import EnvPool
from terrella.worlds.counter import Counter

CODEC = WebCodecConfig(form="compact", language="plain").make(character_tokenizer())
TASKS = [PracticeTask(family="count", seed=seed) for seed in range(10)]


class Kill(BaseException):
    """Stands for a kill: nothing catches it."""


class Steps(Counter):
    """Counts its steps, of all its worlds."""

    taken: ClassVar[list[int]] = []

    def step(self, action):
        self.taken.append(self.seed)
        return super().step(action)


class CrowdedSampler:
    """Its log-probabilities depend on what it samples beside, as the last bits of a model's do."""

    def __init__(self, replies):
        self.replies = replies
        self.beside = 0

    async def sample(self, request):
        self.replies -= 1
        if self.replies < 0:
            raise Kill
        self.beside += 1
        await asyncio.sleep(0)
        beside = self.beside
        await asyncio.sleep(0)
        self.beside -= 1
        reply = CODEC.reply(("up", "down", "nonsense")[request.seed % 3])
        return Sampled(token_ids=reply, logprobs=(-beside / 7,) * len(reply), stopped=True)

    def release(self, session):
        pass


def play(path, place, *, replies=10**6, budget=0):
    """The attempts, and the steps that worlds took for them."""
    Steps.taken.clear()
    player = WritingPlayer(
        {"count": Steps.Config(goals=6, max_steps=7)},
        CODEC,
        CrowdedSampler(replies),
        turn_tokens=16,
        at_once=4,
        env_pool=EnvPool.Config(place=place, workers=2),
        seed=0,
    )
    with AttemptJournal(path, patience=20) as journal:
        known = count_steps(journal.known(TASKS).values())
        attempts = player.play(TASKS, split=Split.TRAIN, max_env_steps=budget, journal=journal)
    return attempts, known, len(Steps.taken)


@pytest.mark.parametrize("budget", [0, 40])
@pytest.mark.parametrize("place", ["inline", "thread"])
def test_written_attempts_that_ended_before_a_kill_are_not_played_again(tmp_path, place, budget):
    wanted, _, steps = play(tmp_path / "whole", place, budget=budget)
    assert (len(wanted) < len(TASKS)) == bool(budget) and count_steps(wanted) == steps
    for replies in (1, steps // 3, steps // 2, steps - 1):
        path = tmp_path / f"kill-{replies}"
        with pytest.raises(Kill):
            play(path, place, replies=replies, budget=budget)
        attempts, known, taken = play(path, place, budget=budget)
        if place == "inline":  # a batch of worlds in step is played again as a whole: same bits
            assert attempts == wanted
            assert taken >= steps - known
        else:
            assert [each.actions for each in attempts] == [each.actions for each in wanted]
            assert taken == steps - known
    assert known >= steps / 2
