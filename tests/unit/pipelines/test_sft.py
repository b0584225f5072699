"""What `terrella sft` makes of its rows: which are held out, which are left out, and why."""

import dataclasses
import json

import pytest

pytest.importorskip("peft", reason="needs the extra: pip install 'terrella[train]'")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.fake_tinker import FakeEndpoint
from tests.support.made_episodes import EPISODES
from tests.support.tiny_chat import chat_model_folder, chat_tokenizer

from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.errors import ConfigError
from terrella.core.run_folder import check_spec
from terrella.core.types import Verdict
from terrella.data import store
from terrella.data.chat_rows import Columns
from terrella.data.example_file import ExampleFile
from terrella.data.parts import encode_part
from terrella.data.store import EpisodeStore
from terrella.engines.configs import EngineConfig, SftConfig, TinkerConfig
from terrella.engines.tinker.tinker_engine import TinkerEngine
from terrella.engines.trl import learner
from terrella.pipelines import base
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.sft.pipeline import Sft, _validation
from terrella.pipelines.sft.rows import ChatSource, RowCounts, RowWriter, StoreSource, is_held_out
from terrella.pipelines.store_examples import Scenes
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter


def chats(path, pairs):
    rows = [{"prompt": asked, "completion": answer} for asked, answer in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written(folder, source, **settings):
    writer = RowWriter(folder, **{"limit": 200, "share": 0.3} | settings)
    counts = RowCounts(source_sha256="", left_out={})
    return writer.write(source.rows(), counts, lambda _: None)


def prompts(folder):
    return {example.prompt_ids for example in ExampleFile(folder)}


def test_a_question_is_held_out_with_all_its_answers_whatever_else_is_in_the_file(tmp_path):
    pairs = [(f"q{n % 40}", f"answer {n}") for n in range(120)]
    tokenizer = chat_tokenizer()
    made = {}
    for name, rows in (("all", pairs), ("half", pairs[:60][::-1])):
        path = chats(tmp_path / f"{name}.jsonl", rows)
        source = ChatSource(path, Columns(), tokenizer, limit=200)
        counts = written(tmp_path / name, source)
        assert counts.train + counts.validation == counts.read == len(rows)
        made[name] = [prompts(tmp_path / name / part) for part in ("train", "validation")]
        assert made[name][1] and not made[name][0] & made[name][1]
    assert made["half"][1] <= made["all"][1] and made["half"][0] <= made["all"][0]


def test_about_the_asked_share_is_held_out_and_none_if_none_is_asked():
    assert sum(is_held_out(f"key {n}", 0.1) for n in range(2000)) == pytest.approx(200, abs=60)
    assert not any(is_held_out(f"key {n}", 0.0) for n in range(100))


def test_long_examples_are_counted_and_none_is_cut(tmp_path):
    pairs = [("q", "x" * size) for size in (5, 50, 500, 200_000)]
    path = chats(tmp_path / "a.jsonl", pairs)
    source = ChatSource(path, Columns(), chat_tokenizer(), limit=200)
    counts = written(tmp_path / "rows", source, share=0.0)
    assert counts.too_long == 2 and counts.train == 2 and counts.longest > 500
    lengths = [sum(example.mask) for example in ExampleFile(tmp_path / "rows/train")]
    assert lengths == [6, 51]


# --- stores ---------------------------------------------------------------------------------------


def stored(folder, *names):
    folder.mkdir()
    spec = check_spec(folder, {"config": {}})
    episodes = [EPISODES[name][0] for name in names]
    part = store.write_part(folder, encode_part(episodes, 0, spec))
    store.finish(folder, [part], {})
    return EpisodeStore.open(folder)


def source_of(episodes, world=None, learn="agent", **settings):
    codec = ChatCodec(chat_tokenizer())
    settings = {"learn": learn, "successful": False, "outcome": None} | settings
    return StoreSource(episodes, Scenes(world), codec, **settings)


def test_an_episode_is_written_as_a_rollout_writes_it(tmp_path):
    source = source_of(stored(tmp_path / "store", "text"))
    written(tmp_path / "rows", source, limit=1000, share=0.0)
    (example,) = ExampleFile(tmp_path / "rows/train")
    tokenizer = source.codec.tokenizer
    learnt = [n for n, on in zip(example.completion_ids, example.mask, strict=True) if on]
    assert tokenizer.decode(learnt) == (
        "<answer> light lamp </answer><|im_end|><answer> take apple </answer><|im_end|>"
    )
    assert "The lamp is on." in tokenizer.decode(example.completion_ids)


def test_a_world_model_learns_what_followed_each_step(tmp_path):
    source = source_of(stored(tmp_path / "store", "text"), learn="world-model")
    written(tmp_path / "rows", source, limit=1000, share=0.0)
    examples = ExampleFile(tmp_path / "rows/train")
    tokenizer = source.codec.tokenizer
    assert len(examples) == 2 and all(all(example.mask) for example in examples)
    assert "Action: take apple" in tokenizer.decode(examples[1].prompt_ids)
    assert "You carry: apple" in tokenizer.decode(examples[1].completion_ids)


def test_frames_and_another_world_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="its observations are frames"):
        list(source_of(stored(tmp_path / "frames", "frames")).rows())
    world = Counter.Config().build()
    with pytest.raises(ConfigError, match="shows something else"):
        list(source_of(stored(tmp_path / "text", "text"), world).rows())


def test_only_successful_episodes_are_learnt_if_asked(tmp_path, monkeypatch):
    source = source_of(stored(tmp_path / "store", "text", "grid"), successful=True)
    assert written(tmp_path / "a", source, limit=2000, share=0.0).train == 2
    lost = dataclasses.replace(EPISODES["text"][0], outcome=Verdict.of(0.0))
    monkeypatch.setattr(source.store, "episodes", lambda: iter([lost]))
    counts = written(tmp_path / "b", source, limit=2000, share=0.0)
    assert counts.train == 0 and counts.left_out == {"not successful": 1}


def test_no_step_is_in_both_parts_and_the_first_held_out_ones_are_of_many_rows(tmp_path):
    """Two instances of the counter pass through the same situations."""
    config = Collect.Config(
        world=Counter.Config(), policy=Random.Config(), out=tmp_path / "store", transitions=600
    )
    Collect(config).run(SilentProgress())
    world = Counter.Config().build()
    source = source_of(EpisodeStore.open(tmp_path / "store"), world, learn="world-model")
    counts = written(tmp_path / "rows", source, limit=1000, share=0.2)
    assert not prompts(tmp_path / "rows/train") & prompts(tmp_path / "rows/validation")
    held_out = ExampleFile(tmp_path / "rows/validation")
    assert len(held_out) == counts.validation_examples and counts.asked_in_train > 0
    assert len(set(held_out.groups)) <= counts.validation
    assert len(set(held_out.groups[:16])) > 5
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == ["train", "validation"]


def test_steps_of_one_episode_are_one_value():
    found = _validation([1.0, 3.0, 2.0], [1.0, 1.0, 2.0], [0, 0, 1])
    assert found.before.n == 2 and found.before.mean == 2.0 and found.gain.mean == 0.5


# --- the pipeline ---------------------------------------------------------------------------------


def test_nothing_left_says_why_and_what_to_do(tmp_path):
    model = chat_model_folder(tmp_path / "small")
    path = chats(tmp_path / "a.jsonl", [("q", "x" * 300)] * 3)
    config = Sft.Config(
        data=path, model=str(model), max_tokens=100, validation_share=0.0, out=tmp_path / "out"
    )
    with pytest.raises(ConfigError, match="3 longer than 100 tokens") as caught:
        Sft(config).run(SilentProgress())
    assert "--set max_tokens=3" in caught.value.remedy and "another --out" in caught.value.remedy


@pytest.mark.parametrize("max_tokens", [128, 4096])
def test_rows_beyond_what_the_model_reads_are_not_mended_by_a_higher_limit(tmp_path, max_tokens):
    model = chat_model_folder(tmp_path / "small", positions=128)
    path = chats(tmp_path / "a.jsonl", [("q", "x" * 300)] * 3)
    config = Sft.Config(
        data=path, model=str(model), max_tokens=max_tokens, validation_share=0.0, out=tmp_path / "o"
    )
    with pytest.raises(ConfigError, match="3 longer than 128 tokens") as caught:
        Sft(config).run(SilentProgress())
    assert "the model reads no more than 128 tokens" in caught.value.remedy
    assert "--set max_tokens" not in caught.value.remedy


@pytest.mark.parametrize(("size", "wanted"), [(300, 256), (200_000, 256)])
def test_a_higher_limit_is_never_more_than_the_model_reads(tmp_path, size, wanted):
    model = chat_model_folder(tmp_path / "small", positions=256)
    path = chats(tmp_path / "a.jsonl", [("q", "x" * size)])
    config = Sft.Config(
        data=path, model=str(model), max_tokens=100, validation_share=0.0, out=tmp_path / "o"
    )
    with pytest.raises(ConfigError, match="1 longer than 100 tokens") as caught:
        Sft(config).run(SilentProgress())
    assert caught.value.remedy.endswith(f"--set max_tokens={wanted}")


def test_on_a_tinker_endpoint_the_adapter_is_trained_and_no_loss_is_made_up(tmp_path, monkeypatch):
    model = chat_model_folder(tmp_path / "small")
    path = chats(tmp_path / "a.jsonl", [(f"q{n}", "yes") for n in range(24)])
    settings = EngineConfig(
        engine="tinker", tinker=TinkerConfig(url="http://127.0.0.1:1", lora_rank=4, batch_rows=8)
    )
    endpoint = FakeEndpoint()

    def connected(config, *, work, **_):
        return TinkerEngine(settings, work, connect=lambda url: endpoint)

    monkeypatch.setattr(base, "make_engine", connected)
    config = Sft.Config(
        data=path,
        model=str(model),
        engine="tinker",
        tinker=settings.tinker,
        sft=SftConfig(batch_size=8, learning_rate=1e-2, epochs=3),
        out=tmp_path / "out",
    )
    result = Sft(config).run(SilentProgress())
    assert result.validation is None and result.loss[-1] < result.loss[0]
    assert (tmp_path / "out/model/model.safetensors").exists()


def test_a_store_is_learnt_by_models_that_can_be_asked(tmp_path):
    with pytest.raises(ConfigError, match="neither a chat template nor the tokens"):
        Sft(Sft.Config(data=tmp_path))._codec(chat_tokenizer(""))


def test_a_loss_is_computed_with_the_weights_fixed_that_training_keeps_fixed(tmp_path, monkeypatch):
    """DDP makes room for the gradients of all others: a large model would not fit."""
    model = chat_model_folder(tmp_path / "small")
    path = chats(tmp_path / "a.jsonl", [(f"q{n}", "yes") for n in range(24)])
    trained, made = [], learner._trainable

    def counted(*arguments):
        found = made(*arguments)
        trained.append(sum(each.numel() for each in found.parameters() if each.requires_grad))
        return found

    monkeypatch.setattr(learner, "_trainable", counted)
    losses = []
    for rank in (0, 2):
        config = Sft.Config(
            data=path,
            model=str(model),
            validation_share=0.3,
            sft=SftConfig(batch_size=8, lora_rank=rank, lora_alpha=rank),
            out=tmp_path / f"rank-{rank}",
        )
        losses.append(Sft(config).run(SilentProgress()).validation.before.mean)
    whole, adapters = trained[0], trained[2]
    assert trained == [whole, whole, adapters, adapters] and adapters < whole / 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
