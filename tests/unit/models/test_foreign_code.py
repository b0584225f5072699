"""Models are data: code in their folders is refused before a library sees it."""

import json
from pathlib import Path

import pytest

from terrella.core.errors import ConfigError
from terrella.models.foreign_code import refuse_code

LLAMA = {"model_type": "llama", "_attn_implementation": "sdpa", "auto_map": {}}


def folder_with(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    "files",
    [
        {"config": {"auto_map": {"AutoConfig": "evil.X"}}},
        {"tokenizer_config": {"auto_map": {"AutoTokenizer": ["evil.X", None]}}},
        {"preprocessor_config": {"auto_map": {"AutoProcessor": "someone/repo--evil.X"}}},
        {"config": {"text_config": {"auto_map": {"AutoModel": "evil.X"}}}},
        {"config": {"custom_pipelines": {"x": {"impl": "evil.X"}}}},
        {"adapter_config": {"auto_mapping": {"parent_library": "evil"}}},
        {"adapter_config": {"megatron_config": {"x": 1}, "megatron_core": "evil"}},
        {"config": {"_attn_implementation": "someone/kernel"}},
    ],
)
def test_code_is_refused_wherever_a_folder_names_it(tmp_path, files):
    with pytest.raises(ConfigError, match="names code that would be run"):
        refuse_code(folder_with(tmp_path, **files))


def test_an_honest_folder_passes(tmp_path):
    refuse_code(folder_with(tmp_path, config=LLAMA, tokenizer_config={}, generation_config={}))


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        refuse_code(tmp_path)


def test_a_path_is_a_folder_and_never_the_name_of_a_repository(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
    from terrella.models import presets

    monkeypatch.chdir(tmp_path)
    for load in (presets.load_model, presets.load_tokenizer, presets.load_config):
        with pytest.raises(ConfigError, match="no such model folder"):
            load(Path("lake/model"))


def test_nobody_is_asked_whether_to_run_code(tmp_path, monkeypatch):
    """Finding 9: transformers would ask "[y/N]", and run the file after a `y`."""
    pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
    from terrella.models import presets

    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.X", "AutoTokenizer": "evil.X"}}
    folder_with(tmp_path, config=config, tokenizer_config=config)
    for load in (presets.load_model, presets.load_tokenizer, presets.parameter_count):
        with pytest.raises(ConfigError, match="names code that would be run: auto_map"):
            load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_model_that_cannot_be_loaded_is_named_with_a_remedy(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
    from terrella.models import presets

    def offline(*_, **__):
        raise OSError("We couldn't connect to the hub.\nMore.")

    monkeypatch.setattr(presets, "refuse_code", lambda name: None)
    monkeypatch.setattr(presets.AutoConfig, "from_pretrained", offline)
    with pytest.raises(ConfigError, match="cannot be loaded from the hub: We couldn't") as error:
        presets.load_config("owner/no-such-model")
    assert "HF_TOKEN" in error.value.remedy and "More" not in error.value.what
    with pytest.raises(ConfigError, match="check the folder"):
        presets.load_config(tmp_path)
    (tmp_path / "model").mkdir()
    folder_with(tmp_path / "model", config=LLAMA)
    with pytest.raises(ConfigError, match=f"--set model={tmp_path / 'model'}"):
        presets.load_config(tmp_path)
