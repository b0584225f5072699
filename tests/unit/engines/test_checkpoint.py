"""A run that was stopped and resumed ends with the same bits as an uninterrupted one."""

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")
import tests.support.quiet_trl  # noqa: F401, I001  before anything else imports TRL

import torch
from safetensors.torch import load_file, save_file

from terrella.core.errors import EngineError
from terrella.core.tokens import Task, TokenEpisode, TokenRequest, TrainExample
from terrella.core.types import Verdict
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.checkpoints import newest_complete, write_manifest
from terrella.engines.trl.checkpoint_files import random_states, restore_random_states
from terrella.engines.trl.rlvr_trainer import RlvrTrainer
from terrella.engines.trl.sft_trainer import SftTrainer
from terrella.models.presets import load_model
from terrella.rollout.rollout import Rollout
from terrella.worlds.counter import Counter
from tests.support.fsdp_on_cpu import FSDP2

PICKLED = {".pt", ".pth", ".bin", ".pkl", ".ckpt"}


class EvenTokens:
    """Stands in for a rollout: the reward is the share of even tokens in a reply.

    Records the seeds of the tasks it was given.
    """

    config = Rollout.Config(world=Counter.Config(), turn_tokens=4)
    codec = None
    worlds = ()

    def __init__(self):
        self.task_seeds = []

    def run(self, sampler, tasks, *, group_size, seed):
        self.task_seeds.append([task.seed for task in tasks])
        return asyncio.run(self._run(sampler, tasks, group_size, seed))

    async def _run(self, sampler, tasks, group_size, seed):
        members = [(task, member) for task in tasks for member in range(group_size)]
        return await asyncio.gather(
            *(self._answer(sampler, task, member + seed) for task, member in members)
        )

    async def _answer(self, sampler, task, member):
        prompt = (3, 4, 5 + task.seed % 7)
        request = TokenRequest(prompt_ids=prompt, max_new_tokens=4, seed=task.seed * 100 + member)
        sampled = await sampler.sample(request)
        even = sum(token % 2 == 0 for token in sampled.token_ids) / len(sampled.token_ids)
        return TokenEpisode(
            prompt_ids=prompt,
            completion_ids=sampled.token_ids,
            model_mask=(True,) * len(sampled.token_ids),
            logprobs=sampled.logprobs,
            turn_ends=(len(sampled.token_ids),),
            turn_rewards=(even,),
            outcome=Verdict.of(even),
            group=str(task.seed),
        )


class Stop(BaseException):
    """Ends a run abruptly: no code of ours catches it."""


def stop_at(step):
    from transformers import TrainerCallback

    class StopAt(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == step:
                raise Stop

    return StopAt()


def task_of(index):
    return Task(seed=index)


def rlvr(out, *, stop=None, callbacks=(), **changes):
    settings = RlvrConfig(
        steps=6, groups=2, group_size=4, learning_rate=1e-2, warmup_steps=4, save_every=2
    )
    model, tokenizer = load_model("tiny-0.3m", vocabulary=("up", "down"), seed=0)
    rollout = EvenTokens()
    callbacks = [*callbacks, stop_at(stop)] if stop is not None else list(callbacks)
    trainer = RlvrTrainer(
        model, tokenizer, settings.replace(**changes), rollout, task_of, out, callbacks, seed=0
    )
    return trainer, rollout


def train(trainer):
    try:
        trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
    except Stop:
        return None
    return {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def curve(trainer):
    """The logged metrics without timings."""
    entries = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    return [{k: v for k, v in entry.items() if "seconds" not in k} for entry in entries]


def checkpoints(out):
    return sorted(path.name for path in out.glob("checkpoint-*"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora_rank": 2},
        {"top_layers": 1},
        {"epochs": 3, "save_every": 3, "algorithm": "dr_grpo"},
        {"mini_batches": 2, "kl": 0.1},
        {"epochs": 2, "algorithm": "ppo", "critic": "separate", "lora_rank": 2},
        {"algorithm": "ppo", "kl": 0.1, "refill": 1},
    ],
    ids=[
        "plain",
        "adapter",
        "top layer",
        "three epochs",
        "mini-batches",
        "adapter with a critic",
        "critic, reference, refill",
    ],
)
def test_resumed_rlvr_is_bit_identical(tmp_path, changes):
    whole, rollout = rlvr(tmp_path / "whole", **changes)
    expected = train(whole)
    first, _ = rlvr(tmp_path / "cut", stop=5, **changes)
    start = {name: tensor.clone() for name, tensor in first.policy.state_dict().items()}
    assert train(first) is None and not same_bits(start, expected)
    torch.manual_seed(123)  # another process would have another random state
    second, resumed_rollout = rlvr(tmp_path / "cut", **changes)
    resumed = train(second)
    assert same_bits(resumed, expected)
    seeds = resumed_rollout.task_seeds
    assert seeds and seeds == rollout.task_seeds[-len(seeds) :]
    assert curve(second) == curve(whole)
    third, unused_rollout = rlvr(tmp_path / "cut", **changes)
    assert same_bits(train(third), expected)
    assert unused_rollout.task_seeds == [], "a finished run stays finished"
    assert curve(third) == curve(whole)


def test_optimizer_and_schedule_are_restored(tmp_path):
    """Without the optimizer state the result differs: the test above can fail."""
    whole, _ = rlvr(tmp_path / "whole")
    expected = train(whole)
    first, _ = rlvr(tmp_path / "cut", stop=5)
    train(first)
    folder = tmp_path / "cut/checkpoint-4"
    state = json.loads((folder / "scheduler.json").read_text())
    assert state["last_epoch"] == 4
    tensors = load_file(folder / "optimizer.safetensors")
    assert {name.rpartition("/")[2] for name in tensors} >= {"step", "exp_avg", "exp_avg_sq"}
    for name in tensors:
        tensors[name] = torch.zeros_like(tensors[name])
    save_file(tensors, folder / "optimizer.safetensors")
    write_manifest(folder, 4)
    second, _ = rlvr(tmp_path / "cut")
    assert not same_bits(train(second), expected)


def test_there_is_no_pickle_two_checkpoints_stay_and_every_file_is_hashed(tmp_path):
    trainer, _ = rlvr(tmp_path, save_every=1)
    train(trainer)
    assert checkpoints(tmp_path) == ["checkpoint-5", "checkpoint-6"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in PICKLED]
    manifest = json.loads((tmp_path / "checkpoint-6/manifest.json").read_text())
    names = {path.name for path in (tmp_path / "checkpoint-6").iterdir()}
    assert set(manifest["files"]) == names - {"manifest.json"} and manifest["step"] == 6


def test_adapters_are_saved_alone(tmp_path):
    trainer, _ = rlvr(tmp_path, lora_rank=2, steps=1, save_every=1)
    train(trainer)
    names = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert "adapter_model.safetensors" in names and "model.safetensors" not in names


def test_leftovers_are_removed_and_damage_is_named(tmp_path, caplog):
    for step in (2, 4):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"right")
        write_manifest(folder, step)
    (tmp_path / "checkpoint-6").mkdir()
    (tmp_path / "checkpoint-6/weights").write_bytes(b"ri")
    assert newest_complete(tmp_path) == 4 and checkpoints(tmp_path) == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    (tmp_path / "checkpoint-4/weights").write_bytes(b"wrong")
    assert newest_complete(tmp_path) == 2 and checkpoints(tmp_path) == ["checkpoint-2"]
    assert "checkpoint-4 is damaged" in caplog.text
    assert "weights differs from its hash" in caplog.text
    (tmp_path / "checkpoint-2/weights").unlink()
    assert newest_complete(tmp_path) == 0 and checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    "manifest",
    ["", "{", "[]", '{"files": {}}', '{"files": {"weights": "0"}}', None],
    ids=["empty", "truncated", "a list", "no files", "unsealed", "one bit"],
)
def test_a_damaged_manifest_is_named_and_the_checkpoint_before_is_used(tmp_path, caplog, manifest):
    for step in (2, 4):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"right")
        write_manifest(folder, step)
    path = tmp_path / "checkpoint-4/manifest.json"
    text = path.read_text() if manifest is None else manifest
    path.write_text(text.replace('"step": 4', '"step": 5'))
    assert newest_complete(tmp_path) == 2 and checkpoints(tmp_path) == ["checkpoint-2"]
    assert "checkpoint-4 is damaged" in caplog.text and "manifest.json" in caplog.text


def test_only_listed_files_are_loaded(tmp_path):
    trainer, _ = rlvr(tmp_path / "whole")
    expected = train(trainer)
    stopped, _ = rlvr(tmp_path / "cut", stop=3)
    train(stopped)
    weights = load_file(tmp_path / "cut/checkpoint-2/model.safetensors")
    unlisted = tmp_path / "cut/checkpoint-2/trained.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in weights.items()}, unlisted)
    resumed, _ = rlvr(tmp_path / "cut")
    assert same_bits(train(resumed), expected)


def test_random_states_come_back_through_json():
    before = json.loads(json.dumps(random_states()))
    numbers = random.random(), np.random.random(), torch.rand(2).tolist()
    restore_random_states(before)
    assert (random.random(), np.random.random(), torch.rand(2).tolist()) == numbers


def test_a_checkpoint_of_fewer_processes_is_refused(tmp_path):
    trainer, _ = rlvr(tmp_path, stop=3)
    train(trainer)
    (tmp_path / "checkpoint-2/random-0.json").rename(tmp_path / "checkpoint-2/random-7.json")
    write_manifest(tmp_path / "checkpoint-2", 2)
    again, _ = rlvr(tmp_path)
    with pytest.raises(EngineError, match="as many processes as before"):
        train(again)


def sft(out, *, stop=None, **changes):
    examples = [
        TrainExample(
            prompt_ids=(3, 4), completion_ids=(5 + n % 20, 6, 7 + n % 3), mask=(True, False, True)
        )
        for n in range(22)
    ]
    settings = SftConfig(epochs=2, batch_size=4, warmup_steps=3, learning_rate=1e-2, save_every=2)
    model, tokenizer = load_model("tiny-0.3m", vocabulary=("up", "down"), seed=0)
    seen = []

    class Seen(SftTrainer):
        policy = property(lambda self: self.model)

        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.append([item["index"] for item in inputs])
            return super().training_step(model, inputs, num_items_in_batch)

    callbacks = [stop_at(stop)] if stop is not None else []
    settings = settings.replace(**changes)
    return Seen(model, tokenizer, settings, examples, out, callbacks, seed=0), seen


@pytest.mark.parametrize("stop", [3, 7, 11])
def test_resumed_sft_is_bit_identical_in_any_epoch(tmp_path, stop):
    whole, order = sft(tmp_path / "whole")
    expected = train(whole)
    assert len(order) == 12 and order[:6] != order[6:], "each epoch has an order of its own"
    first, _ = sft(tmp_path / "cut", stop=stop)
    assert train(first) is None
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    second, rest = sft(tmp_path / "cut")
    assert same_bits(train(second), expected)
    assert rest == order[-len(rest) :]
    assert curve(second) == curve(whole), "a mean over ten steps includes the steps before the stop"


TWO = """
import random, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
from safetensors.torch import save_file
sys.path[:0] = {folders!r}
from tests.support.fsdp_on_cpu import allow_fsdp_on_cpu
from terrella.engines.ranks import end_rank
import test_checkpoint as t

def run(out, stop=None):
    trainer, _ = t.rlvr(Path(out), stop=stop)
    done = t.train(trainer)
    # On all processes: shards are gathered
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if done is not None and trainer.accelerator.is_main_process:
        untied = {{k: v.clone() for k, v in weights.items() if k != "lm_head.weight"}}
        save_file(untied, Path(out) / "end.safetensors")

allow_fsdp_on_cpu()
run("whole")
run("cut", stop=5)
torch.manual_seed(5)
run("cut")
end_rank()
"""


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [{}, FSDP2], ids=["ddp", "fsdp2"])
def test_two_processes_resume_bit_identically(tmp_path, wrapped):
    script = tmp_path / "two.py"
    script.write_text(
        TWO.format(folders=[str(Path(__file__).parent), str(Path(__file__).parents[3])])
    )
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20_000 + os.getpid() % 20_000),
        "OMP_NUM_THREADS": "1",
        **wrapped,
    }
    command = [sys.executable, str(script)]
    both = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors.decode()[-3000:]
    names = {path.name for path in (tmp_path / "cut/checkpoint-6").iterdir()}
    assert {"random-0.json", "random-1.json"} <= names
    shards = {f"{kind}-{n}.safetensors" for kind in ("weights", "optimizer") for n in range(2)}
    if wrapped:  # nothing whole was written: each process wrote its part
        assert shards <= names and not {"model.safetensors", "optimizer.safetensors"} & names
        manifest = json.loads((tmp_path / "cut/checkpoint-6/manifest.json").read_text())
        assert shards <= set(manifest["files"])
        part, other = (
            load_file(tmp_path / f"cut/checkpoint-6/weights-{n}.safetensors") for n in (0, 1)
        )
        assert part.keys() == other.keys() and not same_bits(part, other)
    else:
        assert not shards & names
    whole, cut = (load_file(tmp_path / name / "end.safetensors") for name in ("whole", "cut"))
    assert same_bits(whole, cut)
