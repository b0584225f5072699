"""`terrella export`: a folder that transformers loads alone, with the same predictions."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
torch = pytest.importorskip("torch")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.tiny_chat import chat_model_folder

IDS = [[1, 5, 9, 30, 200]]


def terrella(*words, cwd, code=0):
    command = [sys.executable, "-m", "terrella.cli", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor(IDS)).logits.float()


def loaded(folder, **options):
    """As anybody loads it, without terrella."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoTokenizer.from_pretrained(folder).chat_template
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def adapter(folder, base):
    """An adapter with weights that change the predictions."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(loaded(base), config)
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    return logits(model.eval())


@pytest.mark.slow
def test_a_model_is_written_in_shards_of_the_asked_size_and_dtype(tmp_path):
    chat_model_folder(tmp_path / "run/model")
    settings = ("--set", "shard_gb=0.00002", "--set", "dtype=bfloat16")
    shown = terrella("export", "run", "--out", "out", *settings, cwd=tmp_path)
    assert "in bfloat16" in shown and "same; probabilities differ by" in shown
    files = list((tmp_path / "out").glob("model-*.safetensors"))
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert len(files) > 3 and set(index["weight_map"].values()) == {path.name for path in files}
    assert all(path.stat().st_size < 40_000 for path in files)
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    before, after = loaded(tmp_path / "run/model"), loaded(tmp_path / "out")
    assert after.dtype == torch.bfloat16
    assert (logits(before) - logits(after)).abs().max() < 0.05
    shown = terrella("export", "run", "--out", "out", cwd=tmp_path, code=2)
    assert "already holds something" in shown


@pytest.mark.slow
def test_an_adapter_is_merged_into_the_base_that_is_named(tmp_path):
    base = chat_model_folder(tmp_path / "base")
    adapted = adapter(tmp_path / "adapter", base)
    assert (logits(loaded(base)) - adapted).abs().max() > 0.1
    shown = terrella("export", "adapter", "--out", "out", cwd=tmp_path, code=2)
    assert "is an adapter of" in shown and "--base" in shown  # a file does not choose the base
    shown = terrella("export", "adapter", "--base", "base", "--out", "out", cwd=tmp_path)
    assert "merged adapters: 14 layers" in shown
    assert (logits(loaded(tmp_path / "out")) - adapted).abs().max() < 1e-4
    assert not (tmp_path / "out/adapter_config.json").exists()


@pytest.mark.slow
def test_an_adapter_that_does_not_fit_is_refused(tmp_path):
    base = chat_model_folder(tmp_path / "base")
    adapter(tmp_path / "adapter", base)
    path = tmp_path / "adapter/adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "target_modules": ["q_proj"]}))
    shown = terrella("export", "adapter", "--base", "base", "--out", "out", cwd=tmp_path, code=2)
    assert "of the base's layers take them" in shown and not any((tmp_path / "out").iterdir())


def test_a_folder_without_a_model_says_where_there_are_some(tmp_path):
    (tmp_path / "run/elsewhere/deep").mkdir(parents=True)
    (tmp_path / "run/elsewhere/deep/config.json").write_text("{}")
    shown = terrella("export", "run", "--out", "out", cwd=tmp_path, code=2)
    assert "elsewhere/deep" in shown and not (tmp_path / "out").exists()
    assert "no such folder" in terrella("export", "runn", "--out", "o", cwd=tmp_path, code=2)
