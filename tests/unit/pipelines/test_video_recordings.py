"""Recordings that do not fit a video model are refused by name, before a run has a folder."""

import importlib.util
import re

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.recorded_store import fill_store
from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.video.pipeline import VideoModel
from terrella.pipelines.video.recordings import check_recordings, held
from terrella.policies.basic import Mixture
from terrella.recipes.video import rt1_multi_step, rt1_single_step, video_quick
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter
from terrella.worlds.tabletop import Tabletop


def filled(folder, *shapes, numbers=2):
    """A store with an episode of each size."""

    def recording(number):
        video = np.full((3, *shapes[number], 3), 90, np.uint8)
        actions = np.ones((3, numbers))
        return recorded_episode(
            Recording(source="robot", number=number, video=video, actions=actions)
        )

    fill_store(folder, {}, lambda first: map(recording, range(first, len(shapes))))
    return folder


def asked(config, tmp_path, **videos):
    return config.replace(videos=config.videos.replace(**videos), out=tmp_path / "run")


def refused(config):
    with pytest.raises(ConfigError) as caught:
        VideoModel(config).run(SilentProgress())
    assert not config.out.exists(), "the corrected command would meet the refused settings"
    return str(caught.value)


def test_frames_of_another_size_say_both_sizes_and_both_ways_out(tmp_path):
    store = filled(tmp_path / "robot", (64, 48))
    message = refused(asked(video_quick(), tmp_path, stores=(store,), worlds=()))
    assert "its frames are 64 x 48; the tokenizer of this config takes 32 x 32" in message
    assert str(store) in message and "--set size=32,32" in message
    (change,) = re.findall(r"set (videos\.trainer\.tokenizer\.size=64 \S+columns=48)", message)
    assert len(change.split()) == 2
    mixed = filled(tmp_path / "mixed", (32, 32), (64, 64))
    message = refused(asked(video_quick(), tmp_path, stores=(mixed,), worlds=()))
    assert "32 x 32 and 64 x 64" in message and "tokenizer.size" not in message


def test_worlds_that_a_recipe_brings_are_named_where_their_frames_do_not_fit(tmp_path):
    store = filled(tmp_path / "robot", (64, 64))
    config = asked(video_quick(), tmp_path, stores=(store,))
    trainer = config.videos.trainer
    trainer = trainer.replace(tokenizer=trainer.tokenizer.replace(size=64))
    message = refused(asked(config, tmp_path, trainer=trainer))
    assert "draw frames of 32 x 32" in message and "--set videos.worlds=" in message


@pytest.mark.parametrize("recipe", [rt1_multi_step, rt1_single_step])
def test_rt1_with_six_of_its_thirteen_numbers_is_refused(recipe, tmp_path):
    config = asked(recipe(), tmp_path, stores=(filled(tmp_path / "rt1", (256, 320), numbers=6),))
    with pytest.raises(ConfigError, match=r"6 numbers; those of videos\.action_numbers have 13"):
        config.videos.build().preflight()
    whole = filled(tmp_path / "whole", (256, 320), numbers=13)
    asked(config, tmp_path, stores=(whole,)).videos.build().preflight()


def test_ranges_are_as_many_as_the_numbers_of_an_action(tmp_path):
    config = rt1_multi_step().replace(action_ranges=((-1.0, 1.0),) * 6)
    with pytest.raises(ConfigError, match="6 ranges; an action has 13"):
        VideoModel(config).check_settings()


# Not imported here: the world says first how to draw.
@pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="pip install 'terrella[video]'")
def test_recordings_of_two_robots_do_not_mix(tmp_path):
    one = filled(tmp_path / "one", (32, 32))
    two = filled(tmp_path / "two", (32, 32), numbers=3)
    check_recordings([one, one], frame=(32, 32))
    with pytest.raises(ConfigError, match=r"two: .*3 numbers; those of .*one have 2"):
        check_recordings([one, two], frame=(32, 32))
    worlds = (Tabletop.Config(task="push", size=32, max_steps=2),)
    config = asked(video_quick(), tmp_path, stores=(two,), worlds=worlds, out=tmp_path / "films")
    with pytest.raises(ConfigError, match=r"films/data/.*2 numbers; those of .*two have 3"):
        config.videos.build().run(SilentProgress())


def test_a_store_without_frames_or_numbers_is_named(tmp_path):
    collect = Collect.Config(
        world=Counter.Config(),
        policy=Mixture.Config(share=1.0),
        out=tmp_path / "texts",
        episodes=2,
        split=Split.TRAIN,
    )
    Collect(collect).run(SilentProgress())
    assert len(EpisodeStore.open(tmp_path / "texts")) == 2
    with pytest.raises(ConfigError, match=r"texts.*(is not numbers|without an RGB frame)"):
        held(tmp_path / "texts")


def test_more_clips_than_verl_can_hold_are_refused_before_anything_is_read():
    config = rt1_multi_step().replace(engine="verl")
    with pytest.raises(ConfigError, match="held in memory") as caught:
        VideoModel(config).check_settings(ranks=8)
    assert caught.value.where == "clips" and "engine=trl" in caught.value.remedy
    VideoModel(config.replace(clips=300_000)).check_settings(ranks=8)
    VideoModel(rt1_multi_step()).check_settings(ranks=8)
