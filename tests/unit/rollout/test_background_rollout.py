"""Rollouts beside training: no group is too old, none is lost, every token knows its version."""

import asyncio
import random
import threading
import time

import pytest

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.tokens import Sampled, Task
from terrella.core.types import Split
from terrella.rollout.background_rollout import BackgroundRollout
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.rollout import Rollout
from terrella.worlds.counter import Counter

pytest.importorskip("tokenizers")
from terrella.models.characters import character_tokenizer

PER_STEP = 2


class SlowSampler:
    """Answers after a random time, so that groups finish out of order."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.rng = random.Random(0)
        self.at_work = 0

    async def sample(self, request):
        self.at_work += 1
        await asyncio.sleep(self.rng.random() * self.seconds)
        self.at_work -= 1
        return Sampled(token_ids=request.stop_ids[:1], logprobs=(-1.0,), stopped=True)

    def release(self, session):
        pass


def task(number):
    return Task(seed=number, noise_seed=number, split=Split.TRAIN)


class SlowCounter(Counter):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)


def playing(
    staleness, seconds=0.02, tasks=task, sampler=None, world=Counter, pool=None, total=10**6
):
    rollout = Rollout(
        Rollout.Config(
            world=world.Config(goals=3, max_steps=3),
            max_turns=3,
            turn_tokens=4,
            env_pool=pool or EnvPool.Config(),
        ),
        InterleavedCodec(character_tokenizer(())),
    )
    return BackgroundRollout(
        rollout,
        sampler or SlowSampler(seconds),
        tasks,
        lambda index: index,
        per_step=PER_STEP,
        group_size=2,
        staleness=staleness,
        total=total,
        seed=0,
    )


def test_no_group_is_started_that_the_run_does_not_take():
    asked, steps = [], 4
    with playing(2, tasks=lambda index: asked.append(index) or task(index), total=8) as rollouts:
        for _ in range(steps):
            assert len(rollouts.take()) == PER_STEP
            rollouts.publish(lambda: None)
        assert not rollouts.running and not rollouts.finished
    assert sorted(asked) == list(range(steps * PER_STEP))


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_no_group_is_older_than_the_bound_and_every_task_is_taken_once(staleness):
    taken, ages = [], []
    with playing(staleness) as rollouts:
        for version in range(25):
            for group in rollouts.take():
                taken.append(group.number)
                ages.append(version - group.oldest)
                for episode in group.episodes:
                    assert len(episode.versions) == len(episode.completion_ids)
                    assert max(episode.versions) <= version
            rollouts.publish(lambda: None)
    assert max(ages) <= staleness and max(ages) >= 1
    assert len(set(taken)) == len(taken) == 25 * PER_STEP
    late = [number for number in range(max(taken)) if number not in taken]
    assert len(late) <= (staleness + 1) * PER_STEP  # what was under way at the end


def test_an_episode_that_outlives_a_swap_has_tokens_of_both_versions():
    seen = set()
    with playing(staleness=3, seconds=0.1) as rollouts:
        for _ in range(100):  # on a busy machine, episodes may end between two swaps
            for group in rollouts.take():
                seen |= {len(set(episode.versions)) for episode in group.episodes}
            rollouts.publish(lambda: None)
            if max(seen) > 1:
                return
    pytest.fail("every episode has tokens of one version")


def test_weights_are_loaded_between_turns_only():
    sampler, at_work = SlowSampler(0.01), []
    with playing(staleness=1, sampler=sampler) as rollouts:
        for _ in range(10):
            rollouts.take()
            rollouts.publish(lambda: at_work.append(sampler.at_work))
    assert at_work == [0] * 10


def test_an_episode_that_ends_while_weights_are_loaded_waits_with_its_release():
    class Watched(SlowSampler):
        loading = False
        released = ()
        at_a_bad_time = ()

        def release(self, session):
            self.released = (*self.released, session)
            if self.loading:
                self.at_a_bad_time = (*self.at_a_bad_time, session)

    sampler = Watched(0.01)

    def load():
        sampler.loading = True
        time.sleep(0.03)
        sampler.loading = False

    pool = EnvPool.Config(place="thread", workers=32)
    with playing(staleness=1, sampler=sampler, world=SlowCounter, pool=pool) as rollouts:
        for _ in range(10):
            rollouts.take()
            rollouts.publish(load)
    assert len(sampler.released) >= 10 * PER_STEP * 2 and not sampler.at_a_bad_time


def test_a_resumed_run_plays_again_what_was_under_way_and_loses_nothing():
    first = playing(staleness=2)
    taken = []
    with first as rollouts:
        for _ in range(5):
            taken += [group.number for group in rollouts.take()]
            rollouts.publish(lambda: None)
        progress = rollouts.progress()
    second = playing(staleness=2)
    second.resume(progress)
    with second as rollouts:
        for _ in range(10):
            taken += [group.number for group in rollouts.take()]
            rollouts.publish(lambda: None)
    assert len(set(taken)) == len(taken) == 15 * PER_STEP
    assert set(range(5 * PER_STEP)) <= set(taken)  # those that the first run had started


def test_an_error_in_a_task_reaches_the_trainer():
    def broken(number):
        if number == 3:
            raise ValueError("no such task")
        return task(number)

    with playing(staleness=1, tasks=broken) as rollouts, pytest.raises(ValueError, match="no such"):
        for _ in range(5):
            rollouts.take()
            rollouts.publish(lambda: None)


def test_episodes_are_played_while_the_trainer_works():
    with playing(staleness=1, seconds=0.05) as rollouts:
        rollouts.take()
        rollouts.publish(lambda: None)
        end_of_step = time.monotonic() + 30.0
        while len(rollouts.finished) < PER_STEP and time.monotonic() < end_of_step:
            time.sleep(0.05)  # the trainer's step: nobody asks for episodes
        assert len(rollouts.finished) >= PER_STEP
    assert "rollout" not in {thread.name for thread in threading.enumerate()}
