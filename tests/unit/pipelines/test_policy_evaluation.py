"""Policies in video models and in their worlds: task by task, over seeds, resumed after a kill."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.listed_shards import ListedShards
from tests.support.little_videos import film_episode, little_codec

from terrella.core.errors import ConfigError, StoreError
from terrella.core.run_folder import Manifest
from terrella.models.configs import FrameTokenizerConfig
from terrella.pipelines.evaluate import policies
from terrella.pipelines.evaluate.policies import (
    PolicyEvaluation,
    check_frames,
    task_scores,
    window_of,
)
from terrella.pipelines.video import recorded
from terrella.pipelines.video.clips import ClipExamples
from terrella.pipelines.video.pipeline import VideoModel
from terrella.pipelines.video.tokenizer import TrainTokenizer
from terrella.show.progress import SilentProgress
from terrella.trust.ranking import compare_rankings
from terrella.worlds.tabletop import Tabletop


def comparison(*, right, seed):
    """Three policies on eight starts; a wrong model ranks them the other way round."""
    real = (np.arange(8)[None] < np.array([[1], [4], [7]])).astype(float)
    imagined = real if right else real[::-1]
    return {
        **compare_rankings(["a", "b", "c"], real, imagined, seed=seed),
        "safe_horizon": 3 + seed,
    }


def test_means_are_over_seeds_and_never_over_tasks():
    scores = task_scores([comparison(right=True, seed=0), comparison(right=False, seed=1)], "")
    assert scores.pearson.mean == pytest.approx(0.0) and scores.pearson.seeds == 2
    assert scores.pearson.low < -1 < 1 < scores.pearson.high  # two seeds that disagree say nothing
    assert [each.real.mean for each in scores.policies] == pytest.approx([1 / 8, 4 / 8, 7 / 8])
    assert [each.imagined.mean for each in scores.policies] == pytest.approx([0.5] * 3)
    assert scores.mean_absolute_error.mean == pytest.approx(0.25) and scores.safe_horizon == [3, 4]
    constant = comparison(right=True, seed=0)
    constant["spearman"] = {"value": None, "low": None, "high": None}
    assert task_scores([constant], "").spearman is None


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two finished runs, and a comparison that is counted instead of played."""
    (tmp_path / "films/tokenizer").mkdir(parents=True)
    tokenizer = FrameTokenizerConfig(size=32)
    videos = TrainTokenizer.Config(out=tmp_path / "films")
    videos = videos.replace(trainer=videos.trainer.replace(tokenizer=tokenizer))
    config = VideoModel.Config(world=Tabletop.Config(), videos=videos)
    monkeypatch.setattr(policies, "is_run", lambda folder: "model" in folder.name)
    monkeypatch.setattr(recorded, "load", lambda recorded, here: config)
    monkeypatch.setattr(policies, "read_manifest", lambda folder: _manifest(folder, videos.out))
    played = []

    class Counted:
        class Config:
            def __init__(self, **settings):
                self.__dict__.update(settings)

        def __init__(self, config):
            self.config = config

        def run(self):
            assert self.config.window == 6, "of the model: horizon 7, window 0"
            played.append((self.config.world.task, self.config.model.parent.name))
            return comparison(right=True, seed=self.config.seed)

    monkeypatch.setattr(policies, "EvaluatePolicies", Counted)
    return tmp_path, played


def _manifest(folder, videos):
    return Manifest(
        format="",
        schema=3,
        config={"videos": {"out": str(videos)}},
        metrics={},
        versions={},
        seconds=0.0,
        files={"model": folder.name},
    )


def test_every_task_is_played_with_every_model_once(runs):
    folder, played = runs
    config = PolicyEvaluation.Config(
        models=(folder / "model-0", folder / "model-1"),
        worlds={
            "push": Tabletop.Config(task="push", size=32),
            "reach": Tabletop.Config(task="reach", size=32),
        },
        videos=folder / "films",
        out=folder / "out",
    )
    result = PolicyEvaluation(config).run(SilentProgress())
    assert played == [(t, m) for t in ("push", "reach") for m in ("model-0", "model-1")]
    assert result.tasks["reach"].pearson.mean == pytest.approx(1.0)
    shown = dict(PolicyEvaluation(config).summary(result))
    assert shown["push: safe horizon, seed by seed"] == "3, 4" and "push: pearson" in shown
    assert shown["push: imagination holds for"].startswith("3 of 16 steps, not to the end")
    (folder / "out/manifest.json").unlink()  # killed at the end
    assert PolicyEvaluation(config).run(SilentProgress()) == result and len(played) == 4


def test_other_models_policies_or_videos_are_never_answered_with_old_scores(runs):
    folder, played = runs
    for name in ("pixels", "others"):
        (folder / name).mkdir()
        (folder / name / "a.safetensors").write_text(name)
    config = PolicyEvaluation.Config(
        models=(folder / "model-0",),
        worlds={"push": Tabletop.Config(task="push", size=32)},
        policies=folder / "pixels",
        videos=folder / "films",
        out=folder / "out",
    )
    result = PolicyEvaluation(config).run(SilentProgress())
    shutil.copytree(folder / "pixels", folder / "moved")
    same = config.replace(policies=folder / "moved")
    assert PolicyEvaluation(same).run(SilentProgress()) == result
    for finished in (True, False):
        if not finished:
            (folder / "out/manifest.json").unlink()
        with pytest.raises(StoreError, match="other models than"):
            PolicyEvaluation(config.replace(models=(folder / "model-1",))).run(SilentProgress())
        for policies_folder in (folder / "others", None):
            with pytest.raises(StoreError, match="other policies than"):
                other = config.replace(policies=policies_folder)
                PolicyEvaluation(other).run(SilentProgress())
        (folder / "films/actions.json").write_text("other bins")
        with pytest.raises(StoreError, match="other videos than"):
            PolicyEvaluation(config).run(SilentProgress())
        (folder / "films/actions.json").unlink()
    assert len(played) == 1


def test_frames_of_another_size_and_folders_without_a_run_are_named(runs):
    folder, _ = runs
    worlds = {"push": Tabletop.Config(task="push", size=64)}
    config = PolicyEvaluation.Config(
        models=(folder / "model-0",), worlds=worlds, videos=folder / "films", out=folder / "out"
    )
    with pytest.raises(ConfigError, match=r"(?s)of 64 x 64; .* of 32 x 32.*world\.size=32"):
        PolicyEvaluation(config).run(SilentProgress())
    with pytest.raises(ConfigError, match="not a finished run"):
        PolicyEvaluation(config.replace(models=(folder / "x",), out=folder / "b")).run(
            SilentProgress()
        )


def test_a_world_of_squares_is_refused_for_a_model_of_wide_frames():
    wide = FrameTokenizerConfig(size=256, columns=320, stride=32)
    with pytest.raises(ConfigError, match=r"(?s)256 x 256; .*256 x 320.*draws squares only"):
        check_frames(Tabletop.Config(size=256), wide)
    check_frames(Tabletop.Config(size=256), wide.replace(columns=256))


def test_a_manifest_does_not_choose_the_folder_of_the_tokenizer(runs):
    folder, played = runs
    config = PolicyEvaluation.Config(
        models=(folder / "model-0",),
        worlds={"push": Tabletop.Config(task="push", size=32)},
        out=folder / "out",
    )
    with pytest.raises(ConfigError, match=r"--set videos=FOLDER \(where it was trained: .*films"):
        PolicyEvaluation(config).run(SilentProgress())
    assert not played


@pytest.mark.parametrize("horizon, window, fitted", [(7, 0, 6), (4, 0, 3), (1, 3, 3), (2, 3, 4)])
def test_a_model_sees_as_many_frames_as_it_was_fitted_to(horizon, window, fitted):
    world, videos = Tabletop.Config(), TrainTokenizer.Config()
    model = VideoModel.Config(world=world, videos=videos, horizon=horizon, window=window)
    assert window_of(model, None) == fitted and window_of(model, 1) == 1
    with pytest.raises(ConfigError, match=rf"is {fitted + 1}; the model was fitted to {fitted} "):
        window_of(model, fitted + 1)
    codec, shards = little_codec(window), ListedShards([film_episode(frames=20)])
    examples = ClipExamples(shards, codec, horizon=horizon, count=40, seed=0)
    longest = max(len(each.prompt_ids) + len(each.completion_ids) for each in examples)
    frame, action, beside = codec.frame_tokens, 1, 2  # beside frames: the start and the context
    assert longest - beside - frame == (fitted + 1) * (frame + action)


def test_how_far_imagination_holds_is_that_of_the_worst_seed(tmp_path):
    config = PolicyEvaluation.Config(models=(), worlds={}, instances=40)
    held = PolicyEvaluation(config).held
    assert held([7, 2, 16], 16).startswith(
        "2 of 16 steps, not to the end of an episode (worst of 3"
    )
    assert held([16, 16], 16).startswith("16 of 16 steps, to the end of an episode")
    assert held([7], 16).endswith("mean error at most 0.1 at 95% confidence; no certificate)")
    short = PolicyEvaluation(config.replace(depth=12)).held
    assert "not measured beyond step 12" in short([12, 13], 16)
    assert "not to the end" in short([11, 12], 16)
    few = PolicyEvaluation(config.replace(instances=9)).held
    assert few([0], 16) == "not known: 9 starts, of 29 that are needed"


def test_a_model_without_hashes_is_refused(tmp_path, monkeypatch):
    """Two of them would have one name, and the second would get the first one's numbers."""
    monkeypatch.setattr(policies, "read_manifest", lambda folder: SimpleNamespace(files={}))
    with pytest.raises(StoreError, match="no hashes"):
        policies._model_sha256(tmp_path)
