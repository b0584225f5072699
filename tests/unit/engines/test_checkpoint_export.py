"""A checkpoint of verl's with adapters is exported as the model that was trained."""

import json

import pytest
import torch

pytest.importorskip("peft", reason="needs the extra: pip install 'terrella[train]'")
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from terrella.core.errors import EngineError
from terrella.core.integrity import check_folder
from terrella.engines.verl.checkpoint_export import META, export_checkpoint
from terrella.engines.verl.verl_run import last_words

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def trained_model():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    lora = LoraConfig(r=4, lora_alpha=2, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(Qwen2ForCausalLM(config), lora).eval()


def write_checkpoint(model, folder, *, shard_size="1GB", names=str):
    """As verl's checkpoint manager writes it: PEFT's names, and a file with rank and alpha."""
    weights = {names(name): weight for name, weight in model.state_dict().items()}
    plain = model.get_base_model()
    plain.save_pretrained(
        folder / "huggingface",
        state_dict=weights,
        max_shard_size=shard_size,
        save_original_format=False,
    )
    (folder / META).write_text(json.dumps({"r": 4, "lora_alpha": 2, "task_type": "CAUSAL_LM"}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_exported_config_names_the_dtype_of_the_weights(tmp_path, dtype):
    """verl's names that of the starting model, and the attention that trained it."""
    plain = trained_model().merge_and_unload().to(dtype)
    plain.save_pretrained(tmp_path / "actor" / "huggingface")
    config = tmp_path / "actor" / "huggingface" / "config.json"
    verls = {"dtype": "float16", "attn_implementation": "flash_attention_2"}
    config.write_text(json.dumps({**json.loads(config.read_text()), **verls}))
    export_checkpoint(tmp_path / "actor", tmp_path / "model")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert written["dtype"] == str(dtype).removeprefix("torch.")
    assert "attn_implementation" not in written
    check_folder(tmp_path / "model")


@pytest.mark.parametrize("shard_size", ["1GB", "4KB"])
def test_the_exported_model_computes_what_the_trained_one_did(tmp_path, shard_size):
    model = trained_model()
    write_checkpoint(model, tmp_path / "actor", shard_size=shard_size)
    export_checkpoint(tmp_path / "actor", tmp_path / "model")
    check_folder(tmp_path / "model")
    if shard_size == "4KB":
        assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    exported, found = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not found["missing_keys"] and not found["unexpected_keys"]
    with torch.no_grad(), model.disable_adapter():
        untrained = model(IDS).logits
    with torch.no_grad():
        assert torch.allclose(exported(IDS).logits, model(IDS).logits, atol=1e-6)
        assert not torch.allclose(exported(IDS).logits, untrained, atol=1e-2)


def test_an_adapter_that_fits_no_layer_is_refused(tmp_path):
    def moved(name):
        return name.replace("layers.1.mlp.up_proj.lora", "layers.9.mlp.up_proj.lora")

    write_checkpoint(trained_model(), tmp_path / "actor", names=moved)
    with pytest.raises(EngineError, match=r"layers\.1\.mlp\.up_proj"):
        export_checkpoint(tmp_path / "actor", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_report_of_many_lines_is_told_by_the_line_that_names_the_error():
    report = 'Traceback:\n  File "a.py", line 3\nValueError: no such weight\n  (pid=3) see above'
    assert last_words(report) == "ValueError: no such weight"
    assert last_words("the node died\nat noon") == "the node died at noon"
