"""Episodes can be rebuilt from JSON alone: the workers of a cluster get nothing else."""

from pathlib import Path

import pytest

from terrella.codecs.choose import CodecConfig, TaggedCodecConfig
from terrella.core.config import dump, rebuild
from terrella.core.files import read_json, write_json
from terrella.core.types import Split
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.video.pipeline import VideoModel
from terrella.recipes import find_recipe
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.worlds.counter import Counter

COUNTER = Counter.Config(goals=3)


def sources():
    spa = find_recipe("spa_frozen_lake")().arms["spa"]
    yield "rlvr", Rlvr(find_recipe("tiny_lake_model")()).validation_source()
    yield "spa", Spa(spa).episode_source()
    yield "video", VideoModel(find_recipe("video_quick")()).episode_source()
    yield (
        "own",
        EpisodeSource(rollout=Rollout.Config(world=COUNTER), tasks=WorldTasks(world=COUNTER)),
    )


@pytest.mark.parametrize(("name", "source"), list(sources()))
def test_a_source_survives_json(name, source, tmp_path):
    write_json(tmp_path / "source.json", dump(source))
    assert rebuild(read_json(tmp_path / "source.json")) == source


def test_a_rebuilt_source_asks_the_same_tasks_and_another_split_asks_others():
    source = Rlvr(find_recipe("tiny_lake_model")()).validation_source()
    again = rebuild(dump(source))
    for number in (0, 7, 100):
        assert source.tasks.make()(number) == again.tasks.make()(number)
    held_out = source.on(Split.VALIDATION)
    assert held_out.tasks.split is Split.VALIDATION and held_out.rollout == source.rollout
    assert held_out.tasks.make()(0).split is Split.VALIDATION


def test_reward_shaping_and_the_codec_of_a_method_travel_with_it():
    pytest.importorskip("transformers", reason="needs the extra: pip install 'terrella[train]'")
    from terrella.models.characters import character_tokenizer

    config = find_recipe("spa_frozen_lake")().arms["spa"]
    source = rebuild(dump(Spa(config).episode_source()))
    assert source.shaping == config.reward_shaping
    assert source.codec == TaggedCodecConfig(
        form=config.form, max_actions=config.max_actions, thinking=config.thinking
    )
    with source.make_rollout(character_tokenizer(())) as rollout:
        assert rollout.codec.form == config.form
        assert rollout.shaping.config == config.reward_shaping
    assert type(Rlvr(find_recipe("tiny_counter")()).validation_source().codec) is CodecConfig


def test_recorded_pages_are_read_from_their_store():
    from terrella.pipelines.web.page_model import RecordedTasks
    from terrella.pipelines.web.page_steps import StepSelection

    steps = StepSelection(store=Path("runs/pages/train"), model="smollm2", long_pages="cut")
    source = RecordedTasks(steps=steps, seed=3)
    assert rebuild(dump(source)) == source
