"""Exports and weight syncs: adapters are merged into copies, the trained model is unchanged."""

import socket

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from terrella.core.errors import ConfigError, StoreError
from terrella.models.export import MergedWeights, export_model
from terrella.models.presets import load_model

IDS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))


def logits(model):
    model.eval()
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture
def adapted():
    peft = pytest.importorskip("peft")
    model, tokenizer = load_model("tiny-0.3m")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    return adapted, tokenizer


def test_a_plain_model_comes_back_equal(tmp_path):
    model, tokenizer = load_model("tiny-0.3m", vocabulary=("Up",), seed=3)
    export_model(model, tokenizer, tmp_path / "model")
    loaded, loaded_tokenizer = load_model(str(tmp_path / "model"))
    assert logits(loaded).equal(logits(model))
    assert loaded_tokenizer.encode("Up_") == tokenizer.encode("Up_")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_adapters_are_merged_in_the_folder_and_not_in_the_model(adapted, tmp_path):
    model, tokenizer = adapted
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    expected = logits(model)
    export_model(model, tokenizer, tmp_path / "model")
    loaded, _ = load_model(str(tmp_path / "model"))
    assert (logits(loaded) - expected).abs().max() < 1e-5
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())


def test_weights_have_their_plain_names_and_tied_ones_come_once(adapted):
    model, _ = adapted
    names = [name for name, _ in MergedWeights(model)]
    plain, _ = load_model("tiny-0.3m")
    assert names == [name for name, _ in plain.named_parameters()] and "lm_head.weight" not in names


def test_an_export_replaces_an_older_one(tmp_path):
    for seed in (1, 2):
        model, tokenizer = load_model("tiny-0.3m", seed=seed)
        export_model(model, tokenizer, tmp_path / "model")
    assert logits(load_model(str(tmp_path / "model"))[0]).equal(logits(model))


def test_an_export_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "model.tmp").symlink_to(tmp_path / "mine")
    with pytest.raises(StoreError, match="is a link to"):
        export_model(*load_model("tiny-0.3m"), tmp_path / "model")
    assert not list((tmp_path / "mine").iterdir())


def test_a_folder_loads_without_a_network(tmp_path, monkeypatch):
    model, tokenizer = load_model("tiny-0.3m")
    export_model(model, tokenizer, tmp_path / "model")

    def no_network(*_):
        raise AssertionError("loading a local folder used the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert logits(load_model(str(tmp_path / "model"))[0]).equal(logits(model))


def test_an_unknown_model_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="tiny-1m"):
        load_model("tiny-2m")
