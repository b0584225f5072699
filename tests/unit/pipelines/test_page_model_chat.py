"""The page-model pipeline with a chat model: long pages cut, SFT, RLVR, every part measured."""

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

import tests.support.quiet_trl  # noqa: F401  before anything imports trl
from tests.support.made_pages import write_pages
from tests.support.page_world import Buttons
from tests.support.tiny_chat import chat_model_folder

from terrella.core.run_folder import read_part
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.evaluate.models import weights_of
from terrella.pipelines.web.page_model import PageModel
from terrella.pipelines.web.planning import asked_pages
from terrella.show.progress import SilentProgress


class Unbuildable(Buttons):
    """A world whose sites are not running: recorded pages must not need them."""

    def __init__(self, config):
        raise AssertionError("training on recorded pages built the world")


def test_a_chat_model_goes_through_sft_and_rlvr_on_pages_that_are_cut(tmp_path):
    stores = {
        name: write_pages(tmp_path / name, count=count, lines=40)
        for name, count in (("train", 10), ("test", 3))
    }
    config = PageModel.Config(
        world=Unbuildable.Config(),
        **stores,
        model=str(chat_model_folder(tmp_path / "model", positions=2048)),
        form="sections",
        context_tokens=1100,
        long_pages="cut",
        turn_tokens=160,
        score_before=True,
        most_test_steps=3,
        evaluate_on=2,
        sft=SftConfig(batch_size=4, pack_tokens=4096),
        rlvr=RlvrConfig(steps=1, groups=2, group_size=2, learning_rate=1e-6, pack_tokens=4096),
        out=tmp_path / "run",
    )
    result = PageModel(config).run(SilentProgress())
    assert result.selection["train"].cut == result.train_steps == 20
    assert result.selection["test"].longest_prompt <= 1100 - 160
    for scores in (result.before, result.sft, result.rlvr):
        assert scores.all.n == 3 and scores.all.well_formed.n == 3
    assert result.baselines["no_change"].changed.f1.mean == 0.0
    assert result.baselines["no_change"].all.well_formed.mean == 1.0
    assert result.rl.before.n == 2 and result.rl.before.masked == 0
    rows = read_part(tmp_path / "run" / "sft_rows.json")
    assert [row["action"] for row in rows] == ["type 2 0", "type 2 1", "type 2 2"]
    # `terrella plan` asks the model as it was trained
    assert asked_pages(str(tmp_path / "run")).codec.form == "sections"
    assert weights_of(str(tmp_path / "run")).endswith("rl/model")
