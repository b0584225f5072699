"""Workers on Ray: order, bounds, and what happens when one of them is killed."""

import itertools
import json
import logging
import math
import os
import signal
import sys

import psutil
import pytest

from terrella.core.errors import ConfigError, EngineError, MissingExtraError
from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.rollout.fanout import fan_out
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

CONFIG = {"world": Counter.Config(), "policy": Random.Config(), "chunk_episodes": 100}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def workers_of_ours():
    """The processes that Ray runs for this one."""
    family = psutil.Process().children(recursive=True)
    return [
        process
        for process in family
        if process.cmdline() and process.cmdline()[0].startswith("ray::Worker")
    ]


class KillsAWorker(SilentProgress):
    """Kills one busy worker after the first chunk."""

    killed = 0

    def advance(self, done, **metrics):
        if done and not self.killed:
            victim = workers_of_ours()[0]
            self.killed = victim.pid
            os.kill(victim.pid, signal.SIGKILL)


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_worker_loses_nothing_and_doubles_nothing(tmp_path, caplog):
    Collect(Collect.Config(out=tmp_path / "alone", transitions=20_000, **CONFIG)).run(
        SilentProgress()
    )
    stage = Collect(Collect.Config(out=tmp_path / "ray", transitions=20_000, workers=2, **CONFIG))
    killer = KillsAWorker()
    with caplog.at_level(logging.WARNING, "terrella"):
        stage.run(killer)
    assert killer.killed and not psutil.pid_exists(killer.killed) and stage.losses == 1
    (line,) = (
        record.getMessage() for record in caplog.records if "was lost during" in record.getMessage()
    )
    assert line.startswith("worker ") and "during episodes " in line and "try 2 of 3" in line
    assert content(tmp_path / "ray") == content(tmp_path / "alone")
    seeds = [episode.seed for episode in EpisodeStore.open(tmp_path / "ray").episodes()]
    assert seeds == list(range(len(seeds)))
    assert ("workers lost", "1") in stage.summary()
    assert workers_of_ours() == []  # what we started, we ended


@pytest.fixture(scope="module")
def two_workers():
    """One Ray for the small tests: fan_out uses the one there is."""
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
    yield 2
    ray.shutdown()


@pytest.mark.ray
def test_results_come_in_order_and_items_are_taken_only_as_needed(two_workers):
    taken, results = [], []

    def endless():
        for n in itertools.count():
            taken.append(n)
            yield f"item {n}", n

    stream = fan_out(math.sqrt, endless(), workers=two_workers, window=4)
    for result in itertools.islice(stream, 30):
        results.append(result)
        assert len(taken) - len(results) <= 4
    stream.close()
    assert results == [math.sqrt(n) for n in range(30)]


@pytest.mark.ray
def test_more_workers_than_the_cluster_has_room_for_are_refused_and_not_waited_for(two_workers):
    with pytest.raises(EngineError, match="3 workers need one CPU each, this Ray has 2"):
        next(fan_out(math.sqrt, [("a", 1)], workers=3))


@pytest.mark.ray
def test_what_the_function_raises_is_named_and_not_tried_again(two_workers):
    losses = []
    items = [("good", "{}"), ("bad page", "{"), ("never", "{}")]
    stream = fan_out(json.loads, items, workers=two_workers, on_loss=losses.append)
    assert next(stream) == {}
    with pytest.raises(
        EngineError, match="bad page: JSONDecodeError: Expecting property name"
    ) as error:
        list(stream)
    assert "in loads" in error.value.__notes__[0] and losses == []  # the traceback of the worker


@pytest.mark.ray
@pytest.mark.slow
def test_an_item_that_kills_three_workers_is_named(two_workers):
    losses = []
    with pytest.raises(EngineError, match="poison: killed its worker 3 times"):
        list(fan_out(os._exit, [("poison", 9)], workers=two_workers, on_loss=losses.append))
    assert [line.split(":")[0] for line in losses] == [
        f"worker {line.split()[1]} was lost during poison; try {n} of 3"
        for n, line in enumerate(losses, start=2)
    ] and len(losses) == 2


@pytest.mark.ray
def test_a_world_of_the_users_own_is_found_by_the_workers(two_workers, tmp_path, monkeypatch):
    (tmp_path / "my_own_world.py").write_text(
        "from terrella.worlds.counter import Counter\nclass Mine(Counter):\n    '''Mine.'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_world

    config = {**CONFIG, "world": my_own_world.Mine.Config(), "workers": 1}
    manifest = Collect(Collect.Config(out=tmp_path / "s", episodes=10, **config)).run(
        SilentProgress()
    )
    assert manifest["counts"]["episodes"] == 10 and manifest["counts"]["broken"] == 0


def test_in_this_process_the_same_rules_hold():
    assert list(fan_out(math.sqrt, [("a", 4), ("b", 9)])) == [2, 3]
    with pytest.raises(EngineError, match="b: ValueError: "):
        list(fan_out(math.sqrt, [("a", 4), ("b", -1)]))


def test_workers_cannot_be_given_what_they_cannot_import(tmp_path):
    with pytest.raises(EngineError, match="top of a module"):
        next(fan_out(lambda spec: spec, [("a", 1)], workers=1))
    mine = type("Mine", (Counter,), {"__module__": "__main__", "__doc__": "Mine."})
    with pytest.raises(ConfigError, match="__main__"):
        Collect(
            Collect.Config(
                out=tmp_path, episodes=10, **{**CONFIG, "world": mine.Config(), "workers": 1}
            )
        )


def test_without_ray_the_line_that_installs_it_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'terrella\[ray\]'"):
        next(fan_out(math.sqrt, [("a", 1)], workers=1))
