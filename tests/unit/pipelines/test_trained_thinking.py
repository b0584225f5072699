"""A model that can think is fitted, trained with rewards and sampled with one and the same prompt.

Recorded steps hold no thoughts, so the prompt closes the thought before the answer that is learnt.
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.chat_templates import QWEN3, chat_tokenizer
from tests.support.manifests import write_manifest
from tests.support.tiny_chat import chat_model_folder

from terrella.codecs.choose import CodecConfig
from terrella.core.config import dump
from terrella.core.errors import ConfigError
from terrella.core.predictive import Query
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import Sampled
from terrella.core.types import Situation, Split, Text
from terrella.data.store import EpisodeStore
from terrella.engines.configs import RlvrConfig
from terrella.pipelines import world_model
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.sft.pipeline import Sft
from terrella.pipelines.text_games import pipeline as text_games
from terrella.pipelines.text_games.examples import bundle_examples, bundles
from terrella.pipelines.text_games.pipeline import TextGameModel
from terrella.pipelines.text_games.teacher import Teacher
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.world_models.language import load_world_model
from terrella.worlds import world_config
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.sources import VARIABLE
from terrella.worlds.counter import Counter

CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
COUNTER = Counter.Config(max_steps=6)
STEPS = RlvrConfig(steps=1)
HERE = Situation(
    instruction="Go.", observation=Text("P_"), actions=("Up",), history=(), steps_left=3
)


@pytest.fixture
def model(tmp_path):
    """An untrained model with Qwen3's template and its switch for thoughts."""
    return qwen3(tmp_path / "model")


def qwen3(folder):
    chat_model_folder(folder, "qwen3")
    (folder / "chat_template.jinja").write_text(QWEN3)
    return folder


class Spy:
    """An engine that keeps what it would train, and a sampler that keeps what it is asked."""

    def __init__(self):
        self.examples, self.asked = [], []

    def sft(self, start, examples, *_, **__):
        for each in examples:
            self.examples += each if isinstance(each, list) else [each]

    def sampler(self, _):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    async def sample(self, request):
        self.asked.append(tuple(request.prompt_ids))
        return Sampled(token_ids=(0,), logprobs=(0.0,), stopped=True)

    def release(self, session):
        """Nothing is kept."""


def text(tokenizer, example, *, learnt):
    """What precedes the first learnt token, or what is learnt."""
    ids = [*example.prompt_ids, *example.completion_ids]
    mask = [False] * len(example.prompt_ids) + list(example.mask)
    first = mask.index(True)
    kept = [n for n, on in zip(ids, mask, strict=True) if on] if learnt else ids[:first]
    return tokenizer.decode(kept)


def check_examples(tokenizer, examples):
    assert examples
    for example in examples:
        asked = text(tokenizer, example, learnt=False)
        assert asked.endswith(CLOSED) and "your thoughts" not in asked
        learnt = text(tokenizer, example, learnt=True)
        assert learnt.startswith("<answer>") and "think>" not in learnt


def rl_prompt(source, tokenizer):
    """What RLVR asks first."""
    spy = Spy()
    with source.make_rollout(tokenizer) as rollout:
        rollout.run(spy, [source.tasks.make()(0)], group_size=1, seed=0)
    return tokenizer.decode(list(spy.asked[0]))


def begun(pipeline):
    pipeline.engine = Spy()
    return RunFolder(pipeline.config.out, pipeline.config, progress=SilentProgress())


def captured(module, monkeypatch):
    """The episodes that a pipeline gives to RLVR."""
    found = []

    def keep(run, engine, start, source, *_, **__):
        found.append(source)
        return SimpleNamespace(before=None, after=None, reward=[])

    monkeypatch.setattr(module, "rl_finetune", keep)
    return found


def test_a_world_model_is_fitted_and_trained_after_a_closed_thought(model, tmp_path, monkeypatch):
    sources = captured(world_model, monkeypatch)
    pipeline = TrainWorldModel(
        TrainWorldModel.Config(
            world=COUNTER, model=str(model), transitions=24, rlvr=STEPS, out=tmp_path / "run"
        )
    )
    with begun(pipeline) as run:
        pipeline.fit(run, pipeline.collect(run), run / "fitted")
        pipeline.rl_finetune(run, run / "fitted")
    tokenizer = world_model.load_tokenizer(model)
    check_examples(tokenizer, pipeline.engine.examples)
    assert rl_prompt(sources[0], tokenizer).endswith(CLOSED)


def test_a_model_of_text_games_is_fitted_trained_and_tested_after_a_closed_thought(
    model, tmp_path, monkeypatch
):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(text_games, "read_curve", lambda _: [])
    sources = captured(text_games, monkeypatch)
    pipeline = TextGameModel(
        TextGameModel.Config(
            world=ByteSized32.Config(focus="varying"),
            model=str(model),
            states=3,
            actions=3,
            rlvr=STEPS,
            out=tmp_path / "run",
        )
    )
    with begun(pipeline) as run:
        pipeline._fit(run, run / "fitted")
        pipeline.rl_finetune(run, run / "fitted")
    tokenizer = text_games.load_tokenizer(model)
    check_examples(tokenizer, pipeline.engine.examples)
    assert rl_prompt(sources[0], tokenizer).endswith(CLOSED)
    records = pipeline.config.world.build().pools[Split.TEST][:2]
    pipeline.marks(model, records)
    assert len(pipeline.engine.asked) == 2
    assert all(tokenizer.decode(list(ids)).endswith(CLOSED) for ids in pipeline.engine.asked)


@pytest.mark.parametrize("learn", ["agent", "world-model"])
def test_sft_on_a_store_is_fitted_after_a_closed_thought(learn, model, tmp_path):
    collect = Collect.Config(
        world=COUNTER, policy=Random.Config(), out=tmp_path / "store", transitions=24
    )
    Collect(collect).run(SilentProgress())
    config = Sft.Config(data=tmp_path / "store", world=COUNTER, learn=learn, model=str(model))
    tokenizer = chat_tokenizer("qwen3")
    store = EpisodeStore.open(tmp_path / "store")
    rows = Sft(config)._store_source(store, tokenizer).rows()
    check_examples(tokenizer, [example for row in rows for example in row.examples])
    thoughtful = Sft(config.replace(thinking="auto"))._store_source(store, tokenizer).rows()
    (example, *_) = next(iter(thoughtful)).examples
    assert "your thoughts" in tokenizer.decode(list(example.prompt_ids))


def test_a_run_records_how_sft_asked(tmp_path):
    """Of conversations, whose replies may hold thoughts, as the template says."""
    store, chats = Sft.Config(data=tmp_path, learn="agent"), Sft.Config(data=tmp_path)
    assert dump(Sft(store).config)["thinking"] == "off"
    assert dump(Sft(chats).config)["thinking"] == "auto"
    assert dump(Sft(chats.replace(thinking="off")).config)["thinking"] == "off"


def test_an_empty_thought_is_not_learnt_where_records_are_fitted_to_a_model_that_thinks(
    monkeypatch,
):
    monkeypatch.delenv(VARIABLE, raising=False)
    world = ByteSized32.Config(focus="varying").build()
    codec = CodecConfig(thinking="on").make(chat_tokenizer("qwen3"))
    (records,) = bundles(world, states=1, actions=3, share=1.0, seed=0)
    for example in bundle_examples(world, codec, records):
        assert text(codec.tokenizer, example, learnt=True).startswith("<answer>")


def test_a_teacher_needs_a_model_that_may_think():
    with pytest.raises(ConfigError, match="thoughts of a teacher") as caught:
        TextGameModel.Config(world=ByteSized32.Config(), teacher=Teacher.Config())
    assert "thinking=auto" in caught.value.remedy


# --- whoever loads the model later ----------------------------------------------------------------


def prompt_of(folder):
    model = load_world_model(folder)
    return model.tokenizer.decode(list(model.prompt(Query(HERE, "Up"))))


def test_a_world_model_is_asked_as_its_run_recorded(tmp_path):
    """`certify`, `plan` and `serve` load it here, and a run may be made again in its folder."""
    folder = tmp_path / "run"
    weights = qwen3(folder / "model")
    assert "your thoughts" in prompt_of(weights)  # of no run: as the template says
    write_manifest(folder, dump(TrainWorldModel.Config(world=COUNTER)), {})
    assert prompt_of(weights).endswith(CLOSED) and "your thoughts" not in prompt_of(weights)
    for thinking, closed in (("on", False), ("off", True), ("auto", False)):
        config = Rlvr.Config(world=COUNTER, ask="observation", thinking=thinking)
        write_manifest(folder, dump(config), {})
        assert prompt_of(weights).endswith(CLOSED) == closed


@pytest.mark.parametrize(
    ("recorded", "limit"), [(200, 200), (64, 128), (None, 128), ("200", 128), (True, 128)]
)
def test_a_prediction_may_be_as_long_as_its_run_recorded(recorded, limit, tmp_path):
    weights = qwen3(tmp_path / "run/model")
    assert load_world_model(weights).turn_tokens == 128  # of no run
    config = dump(TrainWorldModel.Config(world=COUNTER)) | {"turn_tokens": recorded}
    write_manifest(tmp_path / "run", config, {})
    assert load_world_model(weights).turn_tokens == limit


def test_a_limit_that_cuts_the_predictions_is_refused_before_the_fit(tmp_path):
    world = world_config("sokoban:two_box").replace(view="grid_coordinates")
    config = TrainWorldModel.Config(world=world, transitions=20, out=tmp_path / "run")
    pipeline = TrainWorldModel(config)
    with begun(pipeline) as run:
        data = pipeline.collect(run)
        with pytest.raises(ConfigError, match="longer than 128 tokens") as caught:
            pipeline.fit(run, data, run / "fitted")
    assert caught.value.remedy.startswith("set turn_tokens=131,")
    assert pipeline.engine.examples == []
    pipeline = TrainWorldModel(config.replace(turn_tokens=131, out=tmp_path / "longer"))
    with begun(pipeline) as run:
        pipeline.fit(run, pipeline.collect(run), run / "fitted")
    assert pipeline.engine.examples


@pytest.mark.parametrize("told", ["loud", ["off"], {"class": "os:system"}, None])
def test_a_manifest_may_only_name_one_of_the_known_choices(told, tmp_path):
    folder = tmp_path / "run"
    weights = qwen3(folder / "model")
    config = dump(TrainWorldModel.Config(world=COUNTER)) | {"thinking": told}
    write_manifest(folder, config, {})
    assert "your thoughts" in prompt_of(weights)
