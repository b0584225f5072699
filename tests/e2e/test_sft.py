"""`terrella sft`, as a person runs it: conversations, stores, resume, what is left out."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.tiny_chat import chat_model_folder

from terrella.core.run_folder import read_manifest
from terrella.data.example_file import ExampleFile
from terrella.engines.engine import load_tokenizer

FAST = ["--set", "sft.learning_rate=1e-2", "--set", "sft.batch_size=8", "--set", "sft.epochs=4"]


def command(*words):
    return [sys.executable, "-m", "terrella.cli", *map(str, words)]


def terrella(*words, cwd, code=0):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    done = subprocess.run(command(*words), capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def sums(folder, count=80, long=0):
    """Chats about sums; the last `long` of them are far too long."""
    lines = []
    for number in range(count):
        a, b = divmod(number, 9)
        asked = f"What is {a} + {b}?" + " please" * (400 if number >= count - long else 0)
        messages = [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": f"It is {a + b}."},
        ]
        lines.append(json.dumps({"messages": messages}))
    path = folder / "sums.jsonl"
    path.write_text("\n".join(lines))
    return path


def text_of(example, tokenizer):
    learnt = [n for n, on in zip(example.completion_ids, example.mask, strict=True) if on]
    return tokenizer.decode(learnt)


@pytest.mark.slow
def test_a_file_of_chats_lowers_the_loss_on_rows_that_were_held_out(tmp_path):
    chat_model_folder(tmp_path / "small")
    sums(tmp_path, long=3)
    words = ("sft", "sums.jsonl", "--model", "small", "--out", "out", *FAST)
    words += ("--set", "validation_share=0.2", "--set", "max_tokens=256")
    shown = terrella(*words, cwd=tmp_path)
    assert "3 examples, left out" in shown and "held-out loss after" in shown
    result = read_manifest(tmp_path / "out").metrics
    rows, scored = result["rows"], result["validation"]
    assert rows["read"] == 80 and rows["too_long"] == 3 and rows["longest"] > 256
    assert rows["train"] + rows["validation"] == 77 and rows["validation"] > 5
    assert scored["gain"]["low"] > 0 and scored["after"]["mean"] < scored["before"]["mean"] / 2
    assert scored["after"]["n"] == rows["validation_examples"]
    tokenizer = load_tokenizer(tmp_path / "out/model")
    examples = ExampleFile(tmp_path / "out/examples/train")
    assert text_of(examples[0], tokenizer) == "It is 0.<|im_end|>"
    # A finished run answers from its folder; other data of the same name is no part of it.
    assert "held-out loss after" in terrella(*words, cwd=tmp_path)
    assert "other settings" in terrella(*words, "--set", "seed=1", cwd=tmp_path, code=2)


@pytest.mark.slow
def test_a_killed_run_continues_and_refuses_data_that_has_changed(tmp_path):
    chat_model_folder(tmp_path / "small")
    path = sums(tmp_path, count=300)
    words = ("sft", "sums.jsonl", "--model", "small", "--out", "out", *FAST)
    words += ("--set", "sft.save_every=5", "--set", "sft.epochs=40")
    killed = subprocess.Popen(
        command(*words), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(1200):
            if any((tmp_path / "out").glob("model-sft/checkpoint-*/manifest.json")):
                break
            time.sleep(0.1)
        else:
            pytest.fail("no checkpoint")
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert not (tmp_path / "out/manifest.json").exists()
    content = path.read_text()
    path.write_text(content.replace("It is", "That is"))
    assert "has changed since out read it" in terrella(*words, cwd=tmp_path, code=2)
    path.write_text(content)
    terrella(*words, cwd=tmp_path)
    result = read_manifest(tmp_path / "out").metrics
    assert result["validation"]["gain"]["low"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("learn", ["agent", "world-model"])
def test_a_store_teaches_actions_or_what_follows_them(tmp_path, learn):
    chat_model_folder(tmp_path / "small")
    collect = ("collect", "counter", "--policy", "expert", "--episodes", "40", "--out", "store")
    terrella(*collect, cwd=tmp_path)
    words = ("sft", "store", "--as", learn, "--model", "small", "--out", "out", *FAST)
    terrella(*words, "--set", "validation_share=0.2", cwd=tmp_path)
    result = read_manifest(tmp_path / "out").metrics
    assert result["rows"]["read"] == 40 and result["validation"]["gain"]["low"] > 0
    tokenizer = load_tokenizer(tmp_path / "out/model")
    example = ExampleFile(tmp_path / "out/examples/train")[0]
    learnt = text_of(example, tokenizer)
    assert learnt.startswith("<answer>") and learnt.endswith("</answer><|im_end|>")
    asked = tokenizer.decode(example.prompt_ids)
    assert ("Predict what is seen" in asked) == (learn == "world-model")
    assert (" up " in learnt or " down " in learnt) == (learn == "agent")


@pytest.mark.slow
def test_a_model_from_scratch_learns_a_store_in_the_format_of_the_pipelines(tmp_path):
    terrella(
        "collect", "counter", "--policy", "expert", "--episodes", "20", "--out", "s", cwd=tmp_path
    )
    words = ("sft", "s", "--as", "agent", "--model", "tiny-0.3m", "--out", "out", *FAST)
    terrella(*words, "--set", "validation_share=0.2", cwd=tmp_path)
    tokenizer = load_tokenizer(tmp_path / "out/model")
    example = ExampleFile(tmp_path / "out/examples/train")[0]
    assert text_of(example, tokenizer).endswith("<end>")


def test_what_cannot_be_learnt_is_refused_with_a_remedy(tmp_path):
    path = sums(tmp_path, count=3)
    assert "leave --as and --world out" in terrella(
        "sft", path, "--as", "agent", cwd=tmp_path, code=2
    )
    assert "did you mean smollm2" in terrella(
        "sft", path, "--model", "smolm2", cwd=tmp_path, code=2
    )
    terrella("collect", "counter", "--episodes", "3", "--out", "store", cwd=tmp_path)
    assert "add --as agent" in terrella("sft", "store", cwd=tmp_path, code=2)
    shown = terrella("sft", "store", "--as", "agent", "--dry-run", cwd=tmp_path)
    assert json.loads(shown)["world"]["class"].endswith(":Counter")
