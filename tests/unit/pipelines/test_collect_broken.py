"""Episodes that break: the reason is shown, and they are played again after a repair."""

import pytest

from terrella.core.errors import StoreError
from terrella.core.integrity import write_sealed
from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect, run
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


def test_the_reason_of_masked_episodes_is_shown(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Mendable, "broken", (3, 5))
    for _ in range(2):  # the second run finds the store whole
        caplog.clear()
        run(config(tmp_path, 20), SilentProgress())
        (line,) = [one.getMessage() for one in caplog.records if "masked" in one.getMessage()]
        assert line.startswith("masked: 2 (env_error; the first: ")
        assert "RuntimeError: engine on fire" in line


def test_the_folder_of_another_run_is_refused_with_the_right_remedy(tmp_path):
    write_sealed(tmp_path / "manifest.json", {"config": {"class": "a:Rlvr"}})
    with pytest.raises(StoreError, match=r"is not an episode store\n.*choose another --out"):
        Collect(config(tmp_path, 20)).run(SilentProgress())
