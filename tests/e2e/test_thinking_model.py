"""A model that thinks, end to end: a stand-in of DeepSeek-R1's template, SFT, then RLVR."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.chat_templates import chat_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from terrella.codecs.chat import prediction_messages
from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.tokens import TrainExample
from terrella.engines.configs import EngineConfig, RlvrConfig, SftConfig
from terrella.engines.engine import make_engine
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.rollout.tasks import PredictionTasks
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

WORLD = Counter.Config(goals=4, away=3)
THOUGHT = "The action changes the value by one."


def stand_in(folder: Path) -> Path:
    tasks = PredictionTasks(WORLD)
    asked = [tasks(index) for index in range(20)]
    texts = [
        message["content"]
        for task in asked
        for message in prediction_messages(task.situation, task.transition.action, thinks=True)
    ]
    tokenizer = chat_tokenizer("r1", corpus=[*texts, THOUGHT] * 4)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def thoughtful_rows(codec: ChatCodec, count: int) -> list[TrainExample]:
    tasks, rows = PredictionTasks(WORLD, seed=1), []
    for index in range(count):
        task = tasks(index)
        reply = codec.answer_observation(task.transition.next_observation, thought=THOUGHT)
        prompt = codec.ask_observation(task.situation, task.transition.action)
        rows.append(
            TrainExample(prompt_ids=prompt, completion_ids=reply, mask=codec.targets(reply))
        )
    return rows


def reinforced(engine: Any, start: Path, out: Path, *, steps: int, turn_tokens: int) -> Any:
    source = EpisodeSource(
        rollout=Rollout.Config(world=WORLD, max_turns=1, turn_tokens=turn_tokens),
        tasks=WorldTasks(world=WORLD, ask="observation"),
    )
    config = RlvrConfig(steps=steps, groups=4, group_size=4, learning_rate=1e-3)
    return engine.rlvr(start, source, config, out, seed=0, progress=SilentProgress())


@pytest.mark.slow
def test_a_thinking_model_is_fitted_and_reinforced(tmp_path: Path):
    start = stand_in(tmp_path / "start")
    codec = ChatCodec(chat_tokenizer_of(start))
    assert codec.opens_thought
    rows = thoughtful_rows(codec, 320)
    for row in rows:
        assert all(row.mask)
        text = codec.text(row.completion_ids)
        assert text.startswith(f"{THOUGHT}\n</think>\n\n<answer>")
    with make_engine(EngineConfig(), work=tmp_path / "engine") as engine:
        config = SftConfig(epochs=8, batch_size=16, learning_rate=5e-3)
        engine.sft(start, rows, config, tmp_path / "sft", seed=0, progress=SilentProgress())
        run = reinforced(engine, tmp_path / "sft", tmp_path / "rl", steps=3, turn_tokens=64)
        cut = reinforced(engine, tmp_path / "sft", tmp_path / "cut", steps=1, turn_tokens=3)
    first = run.curve[0]
    expected = len(codec.write(f"{THOUGHT}\n</think>"))
    assert first["reply/format_errors"] < 0.5 and first["thought/truncated"] < 0.5
    assert abs(first["thought/tokens"] - expected) < 3 and first["reward"] > 0
    # A step whose groups have no spread trains nothing, and compares nothing.
    compared = [row["mismatch/max"] for row in run.curve if row["zero_variance"] < 1]
    assert compared and max(compared) < 1e-3
    assert cut.curve[0]["thought/truncated"] == cut.curve[0]["reply/truncated"] == 1.0
    assert cut.curve[0]["reply/format_errors"] == 1.0 and cut.curve[0]["reward"] == 0.0


def chat_tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
