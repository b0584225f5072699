"""A limit into which no right reply fits is refused before anything is trained or sampled."""

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from tests.support.tiny_chat import chat_model_folder

from terrella.cli.memory_plan import dry_run_config
from terrella.core.errors import ConfigError
from terrella.engines.configs import RlvrConfig
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.text_games.pipeline import TextGameModel
from terrella.pipelines.turn_limits import check_turn_limits
from terrella.pipelines.world_model import TrainWorldModel
from terrella.show.progress import SilentProgress
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.miniwob import MiniWob

RL = RlvrConfig(steps=2)
CONFIGS = [
    Rlvr.Config(world=Counter.Config()),
    Rlvr.Config(world=Counter.Config(), ask="observation"),
    TrainWorldModel.Config(world=FrozenLake.Config(), rlvr=RL),
    Spa.Config(world=FrozenLake.Config()),
    TextGameModel.Config(world=ByteSized32.Config(), rlvr=RL),
]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    return str(chat_model_folder(tmp_path_factory.mktemp("model") / "small"))


def refusal(config):
    """The number of tokens that is said to be needed."""
    with pytest.raises(ConfigError, match="it would be cut off") as caught:
        config.build().check_settings()
    assert caught.value.where == "turn_tokens"
    return int(caught.value.remedy.removeprefix("set turn_tokens=").removesuffix(" or more"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).owner.__name__)
def test_the_limit_that_is_named_is_enough_and_half_of_it_is_not(config, chat_model):
    config = config.replace(model=chat_model, turn_tokens=1)
    needed = refusal(config)
    config.replace(turn_tokens=needed).build().check_settings()
    assert refusal(config.replace(turn_tokens=needed // 2)) == needed


def test_a_reply_that_is_read_although_it_is_cut_off_fits(chat_model):
    config = CONFIGS[0].replace(model=chat_model, turn_tokens=1)
    needed = refusal(config)
    # The last token ends the reply, the one before it the answer.
    config.replace(turn_tokens=needed - 1).build().check_settings()
    refusal(config.replace(turn_tokens=needed - 2))


def test_a_dry_run_says_so_and_a_run_leaves_no_folder(chat_model, tmp_path):
    config = CONFIGS[0].replace(model=chat_model, turn_tokens=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="it would be cut off"):
        dry_run_config(config)
    with pytest.raises(ConfigError, match="it would be cut off"):
        config.build().run(SilentProgress())
    assert not (tmp_path / "run").exists()


def test_a_model_from_scratch_is_checked_by_the_run_only(tmp_path):
    """Its tokenizer needs transformers, which a dry run does not import."""
    config = CONFIGS[0].replace(turn_tokens=1, out=tmp_path / "run")
    dry_run_config(config)
    with pytest.raises(ConfigError, match="2 tokens or more with the model tiny"):
        config.build().run(SilentProgress())
    assert not (tmp_path / "run").exists()


def test_what_is_not_here_is_not_fetched_to_check(monkeypatch):
    monkeypatch.setattr("terrella.pipelines.turn_limits.load_tokenizer", pytest.fail)
    limits = CONFIGS[0].build().turn_limits()
    check_turn_limits("nobody/has-this-model", limits, here=True)


def test_nothing_is_checked_where_no_turn_is_rewarded_or_a_browser_would_open():
    assert not TrainWorldModel.Config(world=Counter.Config()).build().turn_limits()
    assert not Rlvr.Config(world=MiniWob.Config()).build().turn_limits()
    assert not CONFIGS[-1].replace(model="no_change").build().turn_limits()
