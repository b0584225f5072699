"""Collecting as a user does it: reproducible, resumable, extensible, and never silently broken."""

import itertools
import json
from dataclasses import dataclass

import pytest

from terrella.core.config import Configurable
from terrella.core.episode import play
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import locked
from terrella.core.integrity import read_sealed, write_sealed
from terrella.core.types import Split, Stop
from terrella.data.store import EpisodeStore
from terrella.pipelines.collect import pipeline as collect_pipeline
from terrella.pipelines.collect.pipeline import Collect, run
from terrella.policies.basic import Expert, Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

CONFIG = {"world": Counter.Config(), "policy": Random.Config(), "chunk_episodes": 20}


class Fragile(Counter):
    """Breaks in one of `every` episodes and stays broken until it is built again."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Counter.Config):
        every: int = 1
        at_reset: bool = False

    gone = False

    def reset(self, *, seed=None, options=None):
        self.fail_if(self.gone or (self.config.at_reset and seed % self.config.every == 0), seed)
        return super().reset(seed=seed, options=options)

    def _act(self, action):
        self.fail_if(self.seed % self.config.every == 0, self.seed)
        return super()._act(action)

    def fail_if(self, broken, seed):
        self.gone = self.gone or broken
        if broken:
            raise ConnectionError(f"browser is gone {seed}")


class Costly(Counter):
    """Counts what was paid for."""

    resets = 0

    def reset(self, **options):
        Costly.resets += 1
        return super().reset(**options)


class Babbler(Configurable):
    """A model that writes what UTF-8 cannot hold."""

    name = "babbler\udc80"

    def act(self, moment):
        return "up\ud800\x1a"


class StopAfter(SilentProgress):
    """An interruption in the middle of a run."""

    def __init__(self, reports):
        self.left = reports

    def advance(self, done, **metrics):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def collect(out, progress=None, **changes):
    return Collect(Collect.Config(out=out, **{**CONFIG, **changes})).run(
        progress or SilentProgress()
    )


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_episode_i_is_a_function_of_config_and_i(tmp_path):
    collect(tmp_path / "a", episodes=50, split=Split.TEST)
    collect(tmp_path / "b", episodes=50, split=Split.TEST, chunk_episodes=7)
    episodes = list(EpisodeStore.open(tmp_path / "a").episodes())
    assert episodes == list(EpisodeStore.open(tmp_path / "b").episodes())
    world, policy, one = Counter.Config().build(), Random.Config().build(), episodes[33]
    assert play(world, policy, seed=one.seed, noise_seed=one.noise_seed, split=Split.TEST) == one
    assert {episode.split for episode in episodes} == {Split.TEST} and len(
        {episode.seed for episode in episodes}
    ) == 50


def test_other_seeds_give_other_episodes(tmp_path):
    collect(tmp_path / "a", episodes=50)
    collect(tmp_path / "b", episodes=50, seed=1)
    seeds = [
        {episode.seed for episode in EpisodeStore.open(tmp_path / name).episodes()} for name in "ab"
    ]
    assert not seeds[0] & seeds[1]


def test_the_store_ends_with_the_episode_that_reaches_the_target(tmp_path):
    manifest = collect(tmp_path / "s", transitions=500)
    lengths = [len(episode.transitions) for episode in EpisodeStore.open(tmp_path / "s").episodes()]
    assert sum(lengths) >= 500 > sum(lengths[:-1])
    assert manifest["counts"]["transitions"] == sum(lengths) and manifest["counts"][
        "episodes"
    ] == len(lengths)


def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path):
    collect(tmp_path / "whole", transitions=2000)
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "cut", transitions=2000, progress=StopAfter(4))
    assert (
        0
        < len(list((tmp_path / "cut").glob("*.parquet")))
        < len(list((tmp_path / "whole").glob("*.parquet")))
    )
    with pytest.raises(StoreError, match="is incomplete"):
        EpisodeStore.open(tmp_path / "cut")
    collect(tmp_path / "cut", transitions=2000)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    EpisodeStore.open(tmp_path / "cut").verify()


def test_resuming_plays_only_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(collect_pipeline, "SHOW_EVERY", 1e9)  # one report per part, however slow
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, episodes=100, progress=StopAfter(4))
    there = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    stage = Collect(Collect.Config(out=tmp_path, episodes=100, **CONFIG))
    manifest = stage.run(SilentProgress())
    assert len(there) == 4 and all(path.stat().st_mtime_ns == time for path, time in there.items())
    assert stage.played == manifest["parts"][-1]["counts"]["transitions"]


@pytest.mark.parametrize(
    "targets", [("transitions", 700, 2000), ("episodes", 90, 250), ("episodes", 80, 90)]
)
def test_a_larger_target_extends_the_store_to_what_it_would_have_been(tmp_path, targets):
    kind, small, large = targets
    collect(tmp_path / "direct", **{kind: large})
    collect(tmp_path / "grown", **{kind: small})
    collect(tmp_path / "grown", **{kind: large})
    assert content(tmp_path / "grown") == content(tmp_path / "direct")


def test_while_it_is_extended_the_old_store_stays_whole(tmp_path):
    collect(tmp_path, transitions=700)
    before = list(EpisodeStore.open(tmp_path).episodes())
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, transitions=2000, progress=StopAfter(3))
    opened = EpisodeStore.open(tmp_path)
    opened.verify()
    assert list(opened.episodes()) == before
    again = collect(
        tmp_path, transitions=700
    )  # asking for what is there neither plays nor destroys the extension
    assert again == opened.manifest and len(list(tmp_path.glob("*.parquet"))) > len(opened.parts)


def test_a_smaller_target_is_refused_and_destroys_nothing(tmp_path):
    collect(tmp_path, transitions=2000)
    before = content(tmp_path)
    manifest = json.loads(before["manifest.json"])
    exactly_two_parts = sum(part["counts"]["transitions"] for part in manifest["parts"][:2])
    for target in ({"transitions": 700}, {"transitions": exactly_two_parts}, {"episodes": 5}):
        with pytest.raises(StoreError, match="already holds"):
            collect(tmp_path, **target)
    assert content(tmp_path) == before


def test_another_config_is_refused_by_the_keys_that_differ(tmp_path):
    collect(tmp_path, episodes=30)
    with pytest.raises(StoreError, match=r"config\.world\.max_steps is 10 there, 4 here") as error:
        collect(tmp_path, episodes=30, world=Counter.Config(max_steps=4))
    assert "seed" not in str(error.value)


def test_a_part_of_another_plan_is_not_taken_in(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "mine", episodes=100, progress=StopAfter(2))
    collect(tmp_path / "yours", episodes=100, seed=1)
    mine, yours = (min((tmp_path / name).glob("*.parquet")) for name in ("mine", "yours"))
    mine.unlink()
    yours.rename(tmp_path / "mine" / yours.name)
    with pytest.raises(StoreError, match=f"{yours.name}: was collected with another spec"):
        collect(tmp_path / "mine", episodes=100)


def test_no_episode_is_played_that_is_not_kept(tmp_path):
    manifest = collect(tmp_path, transitions=100, chunk_episodes=2000, world=Costly.Config())
    assert Costly.resets == manifest["counts"]["episodes"] < 30


def flip(path, at=0.5):
    """Flip one bit of a file, in place."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("finished", [True, False])
def test_a_damaged_part_is_named_and_collected_again_to_the_same_bytes(tmp_path, caplog, finished):
    collect(tmp_path / "direct", episodes=60, chunk_episodes=20)
    collect(tmp_path / "hurt", episodes=60, chunk_episodes=20)
    victim = sorted((tmp_path / "hurt").glob("*.parquet"))[1]
    flip(victim)
    if not finished:  # as a killed run leaves it: only the part's name has its hash
        (tmp_path / "hurt/manifest.json").unlink()
    collect(tmp_path / "hurt", episodes=60, chunk_episodes=20)
    assert content(tmp_path / "hurt") == content(tmp_path / "direct")
    assert f"{victim.name} is damaged" in caplog.text


def test_a_damaged_manifest_is_written_again_from_the_parts(tmp_path, caplog):
    collect(tmp_path / "direct", transitions=300, chunk_episodes=20)
    collect(tmp_path / "hurt", transitions=300, chunk_episodes=20)
    for damage in ("", "{", None):
        path = tmp_path / "hurt/manifest.json"
        path.write_text(damage) if damage is not None else flip(path)
        with pytest.raises(StoreError, match=r"manifest\.json.*\n"):
            EpisodeStore.open(tmp_path / "hurt")
        collect(tmp_path / "hurt", transitions=300, chunk_episodes=20)
        assert content(tmp_path / "hurt") == content(tmp_path / "direct")
    assert "it is written again" in caplog.text


def test_an_edited_manifest_is_refused_when_it_is_opened(tmp_path):
    collect(tmp_path, episodes=30)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"episodes": 30', '"episodes": 31'))
    with pytest.raises(StoreError, match=r"manifest\.json: is damaged"):
        EpisodeStore.open(tmp_path)


def test_other_versions_may_read_but_not_add(tmp_path):
    collect(tmp_path, episodes=30)
    spec = read_sealed(tmp_path / "spec.json")
    spec["versions"]["numpy"] = "1.0"
    write_sealed(tmp_path / "spec.json", spec)
    assert collect(tmp_path, episodes=30)["counts"]["episodes"] == 30
    with pytest.raises(StoreError, match=r"versions\.numpy is '1\.0' there"):
        collect(tmp_path, episodes=60)


def test_the_manifest_says_what_was_done_and_not_where_or_how_fast(tmp_path):
    manifest = collect(tmp_path / "s", episodes=30, policy=Expert.Config())
    assert manifest["counts"]["successes"] == 30 and manifest["counts"]["stops"] == {
        "terminated": 30
    }
    assert manifest["config"]["policy"]["class"] == "terrella.policies.basic:Expert"
    assert set(manifest["versions"]) == {"terrella", "numpy", "pyarrow", "gymnasium"}
    assert not {"out", "workers"} & set(manifest["config"]) and str(tmp_path) not in json.dumps(
        manifest
    )


def test_a_world_that_always_breaks_stops_the_run_with_its_own_words(tmp_path):
    for at_reset in (False, True):
        out = tmp_path / str(at_reset)
        with pytest.raises(
            StoreError,
            match=r"of 100 episodes broke; the first: .*ConnectionError: browser is gone 0",
        ):
            collect(
                out, episodes=5000, chunk_episodes=2000, world=Fragile.Config(at_reset=at_reset)
            )
        assert [path.name for path in out.iterdir()] == ["spec.json"]


def test_small_chunks_and_short_runs_are_judged_too(tmp_path):
    with pytest.raises(StoreError, match="100 of 100 episodes broke"):
        collect(tmp_path / "chunks", transitions=5000, world=Fragile.Config())
    with pytest.raises(StoreError, match="10 of 10 episodes broke"):
        collect(tmp_path / "short", episodes=10, world=Fragile.Config())
    assert not (tmp_path / "short/manifest.json").exists()


@pytest.mark.parametrize("at_reset", [False, True])
def test_one_broken_episode_in_ten_is_masked_and_counted(tmp_path, at_reset):
    manifest = collect(tmp_path, episodes=200, world=Fragile.Config(every=10, at_reset=at_reset))
    assert manifest["counts"]["broken"] == 20 and manifest["counts"]["masked"] == {"env_error": 20}
    episodes = list(EpisodeStore.open(tmp_path).episodes())
    broken = [episode for episode in episodes if episode.stop is Stop.WORLD_ERROR]
    assert [episode.seed for episode in broken] == list(range(0, 200, 10)) and len(episodes) == 200
    assert all(
        episode.outcome.masked and f"gone {episode.seed}" in episode.error for episode in broken
    )


def test_text_that_utf8_cannot_hold_is_stored_and_comes_back(tmp_path):
    collect(tmp_path, episodes=3, policy=Babbler.Config())
    step = next(EpisodeStore.open(tmp_path).transitions())
    assert step.action == "up\ud800\x1a" and step.info["valid"] is False


def test_a_whole_store_is_left_as_it_is(tmp_path):
    first = collect(tmp_path, episodes=30)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert collect(tmp_path, episodes=30) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times


def test_a_folder_that_is_being_written_is_refused(tmp_path):
    with locked(tmp_path), pytest.raises(StoreError, match="another process"):
        collect(tmp_path, episodes=30)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"episodes": 1, "transitions": 1},
        {"episodes": -1},
        {"episodes": 1, "seed": -1},
        {"episodes": 1, "chunk_episodes": 0},
        {"episodes": 1, "workers": -1},
    ],
)
def test_a_config_without_meaning_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigError):
        collect(tmp_path, **wrong)


def test_a_world_that_cannot_be_built_fails_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="no view 'braille'"):
        collect(tmp_path / "s", episodes=1, world=Counter.Config(view="braille"))
    assert not (tmp_path / "s").exists()


def test_progress_is_told_how_far_the_run_is(tmp_path):
    class Record(SilentProgress):
        reports = []

        def advance(self, done, **metrics):
            self.reports.append((done, metrics))

    record = Record()
    collect(tmp_path, episodes=100, progress=record)
    done = [one for one, _ in record.reports]
    assert done[0] == 0 and done[-1] == 100 and all(a <= b for a, b in itertools.pairwise(done))
    assert set(record.reports[-1][1]) == {"success", "masked"}


def test_the_summary_has_the_figures_a_person_asks_for(tmp_path, capsys):
    config = Collect.Config(out=tmp_path, episodes=40, **{**CONFIG, "policy": Expert.Config()})
    run(config, SilentProgress())
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert (
        lines["episodes"] == "40"
        and lines["masked"] == "0"
        and lines["rate"].endswith("transitions/s")
    )
    assert lines["success"] == "1.0000 [0.9124, 1.0000] (95%, n=40)"
    run(config, SilentProgress())
    assert "nothing was left to play" in capsys.readouterr().out
