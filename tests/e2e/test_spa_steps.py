"""SPA from its format to its test: SmolLM2's recipe with a stand-in, and two worlds."""

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.chat_templates import chat_tokenizer
from tests.support.stand_in import small_model

from terrella.core.files import read_json_lines
from terrella.data.train_examples import read_examples
from terrella.models.export import export_model
from terrella.pipelines.several_worlds import OtherWorld
from terrella.pipelines.spa.pipeline import Spa
from terrella.recipes.spa.smollm2 import spa_smollm2_lake
from terrella.recipes.spa.tiny import spa_frozen_lake
from terrella.show.progress import SilentProgress, make_progress
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_part_of_an_arm(tmp_path):
    tokenizer = chat_tokenizer("chatml", corpus=["P01\nG22\nH10", "Up > P11 ice\nLeft > same"] * 8)
    tokenizer.pad_token = tokenizer.eos_token
    model = small_model("HuggingFaceTB/SmolLM2-135M-Instruct", tokenizer)
    export_model(model, tokenizer, tmp_path / "start")
    spa = spa_smollm2_lake().arms["spa"]
    sft = spa.format_sft.replace(learning_rate=3e-3)  # a model from scratch
    config = spa.replace(
        model=str(tmp_path / "start"),
        format_examples=1200,
        format_sft=sft,
        self_play=spa.self_play.replace(trajectories=64, sft=sft),
        rlvr=spa.rlvr.replace(steps=1, groups=4, group_size=4),
        test=spa.test.replace(instances=8, samples=2),
        validation=spa.validation.replace(instances=8, samples=2),
        base_cache=tmp_path / "bases",
        out=tmp_path / "run",
    )
    with make_progress() as progress:
        result = Spa(config).run(progress)
    assert result.base.well_formed > 0.5, "the stand-in did not learn the form"
    assert result.self_play.examples > 32
    assert result.rl.env_steps > result.self_play.env_steps
    assert result.test.true_predictions is not None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_model_plays_two_worlds(tmp_path):
    """Each world has its limits, its share of the examples, and scores of its own."""
    few = {"instances": 4, "samples": 2}
    tiny = spa_frozen_lake().arms["spa"]
    config = tiny.replace(
        world=FrozenLake.Config(size=3, view="coordinates"),
        max_turns=4,
        turn_tokens=12,
        others=(OtherWorld(world=Counter.Config(), share=3, max_turns=6, max_actions=2),),
        format_examples=100,
        self_play=tiny.self_play.replace(trajectories=32, keep="all"),
        rlvr=tiny.rlvr.replace(steps=1, groups=8, group_size=4),
        max_env_steps=0,
        test=tiny.test.replace(**few),
        validation=tiny.validation.replace(**few),
        base_cache=tmp_path / "bases",
        out=tmp_path / "run",
    )
    pipeline = Spa(config)
    result = pipeline.run(SilentProgress())
    for scores in (
        result.base_by_world,
        result.self_play.validation_by_world,
        result.test_by_world,
    ):
        assert list(scores) == ["frozen_lake", "counter"]
    assert result.test == result.test_by_world["frozen_lake"]
    assert result.self_play.episodes == 32
    assert len(read_examples(config.out / "self_play.parquet")) == 32
    curve = read_json_lines(config.out / "curve.jsonl")
    assert all({"reward/frozen_lake", "reward/counter"} <= set(point) for point in curve)
    summary = dict(pipeline.summary(result))
    assert "test pass@1, counter" in summary and "test pass@1, frozen_lake" in summary
