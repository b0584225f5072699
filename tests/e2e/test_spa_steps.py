"""The recipe of SPA with SmolLM2 runs from its format to its test, with a small stand-in."""

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.chat_templates import chat_tokenizer
from tests.support.stand_in import small_model

from terrella.models.export import export_model
from terrella.pipelines.spa.pipeline import Spa
from terrella.recipes.spa.smollm2 import spa_smollm2_lake
from terrella.show.progress import make_progress


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
