"""verl's workers as we start them: what a model, its adapters and its critic begin with."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.support.verl_cpu import environment, use, wide_model

use()
import ray
from tensordict import TensorDict
from tests.support.verl_cpu.one_worker import infer, make_job, make_worker, one_rank, train
from verl.single_controller.ray import RayClassWithInitArgs
from verl.single_controller.ray.base import create_colocated_worker_cls
from verl.utils import tensordict_utils as tu

from terrella.engines.configs import RlvrConfig
from terrella.engines.verl.compose import compose
from terrella.engines.verl.trainer import VerifiedTrainer
from terrella.engines.verl.verl_keys import verl_keys
from terrella.engines.verl.workers import ModelWorker, PolicyWorker
from terrella.rollout.rollout import Rollout
from terrella.worlds.counter import Counter

RECEIVED = """
import pickle, sys
pickle.loads(sys.stdin.buffer.read())
from verl.models.transformers import monkey_patch
from verl.utils import model
print(monkey_patch.is_trl_available(), model.load_valuehead_model.__name__)
"""
"""A process of Ray's that was sent a class."""
pytestmark = pytest.mark.filterwarnings("ignore")  # of verl's dependencies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("start")
    wide_model(place / "model")
    return place


def job(folder: Path, **changes: Any) -> Any:
    rollout = Rollout.Config(world=Counter.Config())
    return make_job(folder, RlvrConfig(steps=8, **changes), rollout)


def test_a_critic_starts_at_zero_with_the_attention_of_its_folder(folder: Path):
    asked = job(folder, algorithm="ppo", critic="separate")
    config = folder / "model" / "config.json"
    written = config.read_text()
    config.write_text(json.dumps({**json.loads(written), "_attn_implementation": "eager"}))
    try:
        worker = make_worker(asked, "critic")
    finally:
        config.write_text(written)
    module = worker.engine.module
    assert module.config._attn_implementation == "eager"
    head = {name: weight for name, weight in module.named_parameters() if "score" in name}
    assert len(head) == 2 and not any(weight.any() for weight in head.values())
    assert any(weight.any() for weight in module.model.parameters())


def test_a_critic_that_has_a_head_keeps_it(folder: Path, tmp_path: Path):
    from transformers import AutoConfig, AutoModelForTokenClassification

    from terrella.engines.verl.workers import load_value_model

    config = AutoConfig.from_pretrained(folder / "model", num_labels=1)
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path)
    model = load_value_model(str(tmp_path), torch.float32, config, trust_remote_code=False)
    assert model.score.weight.any() and model.config._attn_implementation == "sdpa"


def test_the_policys_worker_trains_with_ours(folder: Path):
    asked = job(folder)
    config = compose(verl_keys(asked), asked.verl.keys).actor_rollout_ref
    if "MASTER_PORT" not in os.environ:
        one_rank()
    worker = PolicyWorker(config=config, role="actor")
    worker.init_model()
    assert isinstance(worker.actor, ModelWorker)
    assert worker.actor.engine.module.config._attn_implementation == "sdpa"


def test_a_process_that_gets_the_workers_gets_what_they_replace(folder: Path):
    """Ray sends the class that holds the workers of a device; a node has no other preparation."""
    asked = job(folder, algorithm="ppo", critic="separate")
    trainer = object.__new__(VerifiedTrainer)
    trainer.config = compose(verl_keys(asked), asked.verl.keys)
    trainer._init_resource_pool_mgr()
    roles = {
        str(role): RayClassWithInitArgs(cls) for role, cls in trainer.role_worker_mapping.items()
    }
    assert len(roles) == 2
    sent = ray.cloudpickle.dumps(create_colocated_worker_cls(roles).cls.__ray_actor_class__)
    found = subprocess.run(
        [sys.executable, "-c", RECEIVED], env=environment(), input=sent, capture_output=True
    )
    assert found.stdout.decode().split()[-2:] == ["False", "load_value_model"], found.stderr


def test_packed_rows_do_not_see_each_other_with_sdpa(folder: Path):
    """verl packs rows unless it is told otherwise, and its own default is flash attention."""
    rows = [(torch.arange(3, 3 + n), torch.arange(20, 20 + m)) for n, m in ((5, 7), (9, 4), (3, 6))]
    columns = {
        "prompts": [prompt for prompt, _ in rows],
        "responses": [reply for _, reply in rows],
        "input_ids": [torch.cat(row) for row in rows],
        "position_ids": [torch.arange(len(prompt) + len(reply)) for prompt, reply in rows],
        "loss_mask": [torch.ones_like(reply) for _, reply in rows],
        "response_mask": [torch.ones_like(reply) for _, reply in rows],
    }
    batch = TensorDict(
        {
            name: torch.nested.as_nested_tensor(each, layout=torch.jagged)
            for name, each in columns.items()
        },
        batch_size=len(rows),
    )
    tu.assign_non_tensor(batch, temperature=1.0, calculate_entropy=True)
    asked, found = job(folder), []
    for packed in ("false", "true"):
        keys = (*asked.verl.keys, f"actor_rollout_ref.model.use_remove_padding={packed}")
        worker = make_worker(replace(asked, verl=replace(asked.verl, keys=keys)))
        assert worker.engine_config.use_remove_padding is (packed == "true")
        found.append(infer(worker, batch, "log_probs").values())
    assert torch.allclose(*found, atol=1e-5)


def adapters(asked: Any) -> list[Any]:
    weights = make_worker(asked).engine.module.named_parameters()
    return [weight.detach().clone() for name, weight in weights if "lora_A" in name]


def test_adapters_are_those_of_the_seed(folder: Path):
    asked = job(folder, lora_rank=2)
    first, again, other = (adapters(replace(asked, seed=seed)) for seed in (0, 0, 1))
    assert first and all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


def test_the_warm_up_counts_optimizer_steps(folder: Path):
    """verl's own counts batches of episodes, each of several steps."""
    worker = make_worker(job(folder, epochs=2, warmup_steps=4, learning_rate=1.0))
    rates = []

    def step(data: Any, loss_function: Any) -> dict[str, Any]:
        rates.append(worker.engine.optimizer.param_groups[0]["lr"])
        return {"loss": [0.0], "model_output": {}, "metrics": {"grad_norm": 0.0}}

    worker.engine.train_batch = step
    ids = torch.nested.as_nested_tensor([torch.arange(4)] * 2, layout=torch.jagged)
    batch = TensorDict({"input_ids": ids, "position_ids": ids}, batch_size=2)
    for _ in range(3):
        train(worker, batch, epochs=2)
    assert rates == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_step_without_signal_moves_neither_policy_nor_critic():
    trainer = object.__new__(VerifiedTrainer)  # without the workers, which it must not call
    trainer.has_signal = False
    metrics: dict[str, float] = {}
    assert trainer._update_critic("batch", metrics) == "batch"
    assert trainer._update_actor("batch", metrics) == "batch"
    assert metrics == {"actor/loss": 0.0, "actor/grad_norm": 0.0}
    trainer.has_signal = True
    with pytest.raises(AttributeError):
        trainer._update_actor("batch", metrics)
