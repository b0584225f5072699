"""Episodes that break: they are played again once the world is mended."""

import pytest

from terrella.core.errors import StoreError
from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter


class Mendable(Counter):
    """Breaks in the episodes with these seeds."""

    broken = frozenset()

    def reset(self, *, seed=None, options=None):
        if seed in self.broken:
            raise RuntimeError("engine on fire")
        return super().reset(seed=seed, options=options)


def config(out, episodes, chunk=20):
    return Collect.Config(
        out=out,
        episodes=episodes,
        chunk_episodes=chunk,
        world=Mendable.Config(),
        policy=Random.Config(),
    )


@pytest.mark.parametrize(("episodes", "chunk"), [(10, 20), (200, 20)])
def test_a_mended_world_is_played_again(tmp_path, monkeypatch, episodes, chunk):
    monkeypatch.setattr(Mendable, "broken", range(1000))
    with pytest.raises(StoreError, match="the same command plays these episodes again"):
        Collect(config(tmp_path, episodes, chunk)).run(SilentProgress())
    assert not list(tmp_path.glob("*.parquet"))
    monkeypatch.setattr(Mendable, "broken", ())
    manifest = Collect(config(tmp_path, episodes, chunk)).run(SilentProgress())
    assert manifest["counts"]["broken"] == 0 and manifest["counts"]["episodes"] == episodes


def test_parts_without_a_broken_episode_and_a_finished_store_are_kept(tmp_path, monkeypatch):
    Collect(config(tmp_path, 20)).run(SilentProgress())
    monkeypatch.setattr(Mendable, "broken", range(40, 120))
    with pytest.raises(StoreError, match="episodes broke"):
        Collect(config(tmp_path, 120)).run(SilentProgress())
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    EpisodeStore.open(tmp_path).verify()
    monkeypatch.setattr(Mendable, "broken", ())
    assert Collect(config(tmp_path, 120)).run(SilentProgress())["counts"]["broken"] == 0
