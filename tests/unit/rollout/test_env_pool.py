"""Seats: the same episodes wherever the world lives; a world that breaks costs its own episode."""

import asyncio
import logging
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from terrella.core.tokens import Task
from terrella.core.types import Status, Stop
from terrella.rollout.env_pool import EnvPool, EnvWorkerError
from terrella.worlds.counter import Counter

sys.path.append(str(Path(__file__).parent))
import troubled_worlds

RAY = pytest.mark.ray
PLACES = ["inline", "thread", pytest.param("ray", marks=RAY)]


@pytest.fixture(scope="module")
def two_workers():
    """One Ray for all tests here: hosts use the one there is."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        address="local",  # not one that another test has started
        _node_ip_address="127.0.0.1",
        object_store_memory=100_000_000,
    )
    yield
    ray.shutdown()


@pytest.fixture
def make_pool(request):
    made = []

    def make(world, place="ray", **config):
        if place == "ray":
            request.getfixturevalue("two_workers")
        made.append(EnvPool(EnvPool.Config(place=place, **config), world))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


async def one_episode(pool, seed, member=1, actions=("up", "up", "down")):
    async with pool.take() as worker:
        try:
            seen = [await worker.start(Task(seed=seed, noise_seed=5), member)]
            for action in actions:
                acted = await worker.act(action)
                seen.append(acted)
                if acted.over:
                    break
            return seen, await worker.finish(Stop.OUT_OF_TOKENS)
        except EnvWorkerError as lost:
            return lost


async def episodes(pool, count):
    return await asyncio.gather(*(one_episode(pool, seed) for seed in range(count)))


@pytest.mark.parametrize("place", PLACES)
def test_episodes_are_the_same_everywhere_and_in_every_event_loop(make_pool, place):
    expected = asyncio.run(episodes(make_pool(Counter.Config(), "inline"), 12))
    pool = make_pool(Counter.Config(), place, workers=2)
    for _ in range(2):  # chairs are used again, in another loop
        found = asyncio.run(episodes(pool, 12))
        assert [record for _, record in found] == [record for _, record in expected]
        assert [seen for seen, _ in found] == [seen for seen, _ in expected]


@pytest.mark.parametrize("place", PLACES)
def test_a_world_that_raises_is_named_and_costs_one_episode(make_pool, place):
    found = asyncio.run(episodes(make_pool(troubled_worlds.Rude.Config(), place), 8))
    lost = [seed for seed, result in enumerate(found) if isinstance(result, EnvWorkerError)]
    assert lost == [3, 7] and found[3].stop is Stop.WORLD_ERROR
    assert "world rude (seed 3" in str(found[3]) and "RuntimeError: the wheel came off" in str(
        found[3]
    )


def test_a_pool_closes_its_worlds_and_can_be_used_again(monkeypatch):
    """A world with a browser holds an open page until it is closed."""
    closed = []
    monkeypatch.setattr(Counter, "close", lambda world: closed.append(world.seed))
    pool = EnvPool(EnvPool.Config(), Counter.Config())
    for _ in range(2):
        asyncio.run(one_episode(pool, 3))
        pool.close()
    assert closed == [3, 3] and not pool.free


@RAY
def test_a_hung_world_is_named_and_left_behind(make_pool):
    pool = make_pool(troubled_worlds.Hanging.Config(), timeout=2.0)
    found = asyncio.run(episodes(pool, 8))
    failed = [seed for seed, result in enumerate(found) if isinstance(result, EnvWorkerError)]
    assert failed == [3, 7]
    assert found[7].stop is Stop.WORLD_TIMEOUT
    assert "world hanging (seed 7" in str(found[7])
    assert "did not answer 'act' within 2 s" in str(found[7])
    actors = pool.ray_pool.actors
    assert any(handle.hung for handle in actors.handles)
    assert actors.losses == []


def test_waiting_for_a_thread_is_not_hanging(make_pool):
    """Sixteen worlds that need 0.1 s for each answer, on two threads: the last wait for 0.7 s."""
    pool = make_pool(troubled_worlds.Slow.Config(), "thread", workers=2, timeout=0.5)
    found = asyncio.run(episodes(pool, 16))
    assert not [result for result in found if isinstance(result, EnvWorkerError)]


def test_hung_threads_are_replaced_and_their_seeds_named(make_pool):
    """Two threads, two hung worlds: the calls that wait go on, and so do later episodes."""
    pool = make_pool(troubled_worlds.Hanging.Config(), "thread", workers=2, timeout=0.3)
    asyncio.run(one_episode(pool, 40))  # a hung world of before would be named by this seed
    found = asyncio.run(episodes(pool, 8))
    failed = [seed for seed, result in enumerate(found) if isinstance(result, EnvWorkerError)]
    assert failed == [3, 7]
    for seed in failed:
        assert found[seed].stop is Stop.WORLD_TIMEOUT
        assert str(found[seed]) == (
            f"world hanging (seed {seed}, noise seed 6) did not answer 'act' within 0.3 s"
        )
    assert not isinstance(asyncio.run(one_episode(pool, 0)), EnvWorkerError)


def test_a_world_that_hangs_at_its_start_is_named_by_its_own_seed(make_pool, monkeypatch):
    pool = make_pool(Counter.Config(), "thread", timeout=0.2)
    asyncio.run(one_episode(pool, 40))
    monkeypatch.setattr(Counter, "reset", lambda *_, **__: time.sleep(3600))
    lost = asyncio.run(one_episode(pool, 5))
    assert "world counter (seed 5, noise seed 6) did not answer 'start'" in str(lost)


@pytest.mark.parametrize("place", ["inline", "thread"])
def test_a_timeout_of_the_world_itself_is_an_error_and_no_hang(make_pool, place):
    lost = asyncio.run(one_episode(make_pool(troubled_worlds.Impatient.Config(), place), 3))
    assert lost.stop is Stop.WORLD_ERROR
    assert str(lost).endswith("raised TimeoutError: no answer from the page")


def test_a_closed_pool_ends_its_threads(make_pool):
    pool = make_pool(Counter.Config(), "thread", workers=3)
    before = set(threading.enumerate())
    asyncio.run(episodes(pool, 4))
    mine = set(threading.enumerate()) - before
    assert len(mine) == 3
    pool.close()
    for thread in mine:
        thread.join(5)
    assert not any(thread.is_alive() for thread in mine)


@RAY
def test_a_host_with_too_many_hung_worlds_is_replaced(make_pool, monkeypatch, caplog):
    monkeypatch.setattr("terrella.rollout.ray_actors.HUNG_LIMIT", 1)
    pool = make_pool(troubled_worlds.Hanging.Config(), timeout=1.0, workers=1)
    asyncio.run(episodes(pool, 4))
    assert "worker 0 with 0 episodes of world hanging was lost: 1 of its worlds hang" in caplog.text
    assert not isinstance(asyncio.run(one_episode(pool, 0)), EnvWorkerError)


@RAY
def test_a_killed_host_is_replaced_and_its_episodes_are_played_again(make_pool, tmp_path, caplog):
    expected = asyncio.run(episodes(make_pool(Counter.Config(), "inline"), 8))
    pool = make_pool(troubled_worlds.Deadly.Config(once=str(tmp_path / "happened")), workers=1)
    with caplog.at_level(logging.WARNING, "terrella"):
        found = asyncio.run(episodes(pool, 8))
    assert [seen for seen, _ in found] == [seen for seen, _ in expected]
    # how many had begun when it died, and which of the two deadly ones got there first, is the
    # machine's to say
    assert re.search(r"worker 0 with [1-8] episodes of world deadly was lost", caplog.text)
    again = (
        r"world deadly \(seed (3, noise seed 6|7, noise seed 14)\) on worker 0 "
        r"is played again from its \d actions"
    )
    assert re.search(again, caplog.text)


@RAY
def test_a_world_that_kills_every_host_is_masked_and_the_others_go_on(make_pool, caplog):
    pool = make_pool(troubled_worlds.Deadly.Config(), workers=2)
    culprit = asyncio.run(one_episode(pool, 3))
    assert culprit.stop is Stop.WORLD_ERROR
    assert "world deadly (seed 3, noise seed 6) on worker" in str(
        culprit
    ) and "a second time" in str(culprit)
    assert not isinstance(asyncio.run(one_episode(pool, 0)), EnvWorkerError)


@RAY
def test_a_host_killed_from_outside_between_two_actions(make_pool, caplog):
    pool = make_pool(Counter.Config(), workers=1)

    async def play(kill):
        async with pool.take() as worker:
            await worker.start(Task(seed=2), 0)
            first = await worker.act("up")
            if kill:
                family = psutil.Process().children(recursive=True)
                (victim,) = (
                    p for p in family if p.cmdline() and p.cmdline()[0].startswith("ray::EnvActor")
                )
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait(10)
            return first, await worker.act("down"), await worker.finish(Stop.OUT_OF_TOKENS)

    assert asyncio.run(play(kill=True)) == asyncio.run(play(kill=False))
    assert len(pool.ray_pool.actors.losses) == 2


@RAY
def test_the_driver_samples_the_same_tokens_inline_and_on_ray(two_workers):
    pytest.importorskip("trl")
    from terrella.codecs.interleaved import InterleavedCodec
    from terrella.engines.local.local_sampler import LocalSampler
    from terrella.models.presets import load_model
    from terrella.rollout.rollout import Rollout

    model, tokenizer = load_model("tiny-0.3m", vocabulary=("up", "down"), seed=0)

    def tokens(place, world):
        pool = EnvPool.Config(place=place, timeout=2.0)
        limits = Rollout.Config(world=world, max_turns=4, turn_tokens=6, env_pool=pool)
        rollout = Rollout(limits, InterleavedCodec(tokenizer))
        try:
            return rollout.run(
                LocalSampler(model), [Task(seed=n) for n in range(4)], group_size=3, seed=0
            )
        finally:
            rollout.env_pool.close()

    inline, ray = tokens("inline", Counter.Config()), tokens("ray", Counter.Config())
    for one, other in zip(inline, ray, strict=True):
        assert (one.completion_ids, one.model_mask, one.turn_ends) == (
            other.completion_ids,
            other.model_mask,
            other.turn_ends,
        )
        assert (
            one.outcome == other.outcome and one.record == other.record and one.group == other.group
        )
        assert one.logprobs == pytest.approx(
            other.logprobs, abs=1e-5
        )  # batches differ, and with them the last bits
    hung = tokens("ray", troubled_worlds.Hanging.Config())
    assert [e.outcome.status for e in hung] == [Status.OK] * 9 + [Status.ENV_TIMEOUT] * 3


@RAY
def test_pools_of_many_worlds_share_the_workers(make_pool):
    """Ray has two CPUs: with actors of its own, the second pool would wait for them for ever."""
    configs = [Counter.Config(away=away) for away in (4, 5, 6)]
    pools = [make_pool(config, workers=2) for config in (*configs, configs[0])]

    async def all_at_once():
        return await asyncio.gather(*(episodes(pool, 4) for pool in pools))

    found = asyncio.run(asyncio.wait_for(all_at_once(), 60))
    expected = [asyncio.run(episodes(make_pool(config, "inline"), 4)) for config in configs]
    assert found == [*expected, expected[0]]
    assert len(pools[0].ray_pool.actors.handles) == 2

    pools[0].close()  # the last pool has the same world, and goes on
    assert asyncio.run(episodes(pools[3], 4)) == expected[0]
    assert pools[3].ray_pool.actors.losses == []
