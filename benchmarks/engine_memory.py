"""Compares the memory plan with what a training step takes; writes results/engine_memory.json.

    python benchmarks/engine_memory.py                        all cases that are missing
    python benchmarks/engine_memory.py tiny-25m sft plain     one case, again
Each case is a process of its own. Its peak is the kernel's (VmHWM), less what the process took
before the model was made: on a CPU a process's size includes the libraries. The plan is made for
the same shapes. A case agrees if the plan is within 25% of the peak.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import common

TOLERANCE = 0.25
MODELS = ("tiny-25m", "smollm2")
KINDS = ("sft", "grpo")
VARIANTS = {
    "plain": {},
    "checkpointing": {"gradient_checkpointing": True},
    "bf16": {"bf16": True},
    "lora": {"lora_rank": 16},
}
SHAPES = {
    "tiny-25m": {"prompt": 192, "completion": 64, "groups": 2, "members": 8, "pack": 2048},
    "smollm2": {"prompt": 96, "completion": 32, "groups": 2, "members": 4, "pack": 1024},
}
MMAP_FROM = str(1 << 16)
"""Larger blocks are given back to the kernel as soon as they are freed, so the peak is the need."""


def run_case(model, kind, variant):
    """Run one case in this process and print its peak."""
    common.quiet_trl()
    import torch

    from terrella.engines import engine  # noqa: F401
    from terrella.engines.trl import rlvr_trainer, sft_trainer  # noqa: F401
    from terrella.models.presets import load_model

    torch.nn.functional.linear(torch.randn(64, 64), torch.randn(64, 64))  # loads the kernels
    before = status("VmRSS")
    reset_peak()
    net, tokenizer = load_model(model)
    with tempfile.TemporaryDirectory() as folder:
        step = {"sft": sft_step, "grpo": grpo_step}[kind]
        step(net, tokenizer, SHAPES[model], VARIANTS[variant], Path(folder))
        peak = status("VmHWM")
    print(json.dumps({"before": before, "peak": peak, "need": peak - before}))


def sft_step(net, tokenizer, shapes, settings, folder):
    from terrella.core.tokens import TrainExample
    from terrella.engines.trl.sft_trainer import SftTrainer

    examples = [
        TrainExample(
            prompt_ids=[number % 50 + 5] * shapes["prompt"],
            completion_ids=[7] * shapes["completion"],
            mask=[True] * shapes["completion"],
        )
        for number in range(2 * shapes["groups"] * shapes["members"])
    ]
    SftTrainer(net, tokenizer, sft_config(shapes, settings), examples, folder, seed=0).train()


def sft_config(shapes, settings):
    from terrella.engines.configs import SftConfig

    batch = shapes["groups"] * shapes["members"]
    return SftConfig(batch_size=batch, pack_tokens=shapes["pack"], **settings)


def rl_config(shapes, settings):
    from terrella.engines.configs import RlvrConfig

    sizes = {"groups": shapes["groups"], "group_size": shapes["members"]}
    return RlvrConfig(steps=2, **sizes, pack_tokens=shapes["pack"], **settings)


class FixedRollout:
    """Episodes of a fixed length, sampled by the real sampler; every other one is rewarded."""

    watchdog = codec = None
    env_steps = 0

    def __init__(self, prompt, completion):
        self.prompt, self.completion = prompt, completion
        # The fields that the trainer reads.
        self.config = SimpleNamespace(
            turn_tokens=completion, max_model_tokens=completion, temperature=1.0
        )

    def run(self, sampler, tasks, *, group_size, seed):
        return asyncio.run(self.episodes(sampler, tasks, group_size))

    async def episodes(self, sampler, tasks, group_size):
        asked = [(task, member) for task in tasks for member in range(group_size)]
        return await asyncio.gather(*(self.episode(sampler, *each) for each in asked))

    async def episode(self, sampler, task, member):
        from terrella.core.tokens import TokenEpisode, TokenRequest
        from terrella.core.types import Verdict

        prompt = (task + 5,) * self.prompt
        request = TokenRequest(prompt_ids=prompt, max_new_tokens=self.completion, seed=member)
        sampled = await sampler.sample(request)
        return TokenEpisode(
            prompt_ids=prompt,
            completion_ids=sampled.token_ids,
            model_mask=(True,) * self.completion,
            logprobs=sampled.logprobs,
            turn_ends=(self.completion,),
            turn_rewards=(float(member % 2),),
            outcome=Verdict(value=float(member % 2)),
            group=str(task),
        )


def grpo_step(net, tokenizer, shapes, settings, folder):
    from terrella.engines.trl.rlvr_trainer import RlvrTrainer

    rollout = FixedRollout(shapes["prompt"], shapes["completion"])
    config = rl_config(shapes, settings)
    RlvrTrainer(net, tokenizer, config, rollout, lambda index: index, folder, seed=0).train()


def plan_case(model, kind, variant):
    """The bytes that the plan says for the same case."""
    common.quiet_trl()
    from terrella.engines.hardware import parse_hardware
    from terrella.engines.memory.model_spec import model_spec
    from terrella.engines.memory.plan import Phase, make_plan
    from terrella.engines.memory.steps import ExampleShape
    from terrella.models.characters import character_tokenizer

    shapes, is_sft = SHAPES[model], kind == "sft"
    make_config = sft_config if is_sft else rl_config
    phase = Phase(
        name=kind,
        model=model_spec(model, vocabulary=len(character_tokenizer())),
        settings=make_config(shapes, VARIANTS[variant]),
        example=ExampleShape(prompt=shapes["prompt"], completion=shapes["completion"]),
        members=1 if is_sft else shapes["members"],
        rows=0 if is_sft else shapes["groups"] * shapes["members"],
    )
    plan = make_plan([phase], parse_hardware("cpu"), "ddp")
    return {each.name: round(each.total) for each in plan.phases}


def status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(name)


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def compare(model, kind, variant):
    words = [sys.executable, __file__, "run", model, kind, variant]
    environment = {**common.os.environ, "MALLOC_MMAP_THRESHOLD_": MMAP_FROM}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        reason = lines[-1] if lines else f"ended with code {done.returncode}"
        return {"model": model, "kind": kind, "variant": variant, "failed": reason}
    measured = json.loads(done.stdout.strip().splitlines()[-1])
    phases = plan_case(model, kind, variant)
    planned = max(phases.values())
    ratio = planned / measured["need"]
    row = {"model": model, "kind": kind, "variant": variant, "planned": planned, "phases": phases}
    row |= {"measured": measured["need"], "ratio": round(ratio, 3)}
    return {**row, "agrees": abs(ratio - 1) <= TOLERANCE}


def main():
    cases = [(m, k, v) for v in VARIANTS for m in MODELS for k in KINDS]
    asked = [tuple(sys.argv[1:4])] if len(sys.argv) > 1 else cases
    known = common.read_results("engine_memory").get("rows", [])
    rows = {(r["model"], r["kind"], r["variant"]): r for r in known if "failed" not in r}
    for case in asked:
        if case in rows and len(sys.argv) == 1:
            continue  # measured before; delete the file to measure again
        rows[case] = {**compare(*case), "commit": common.commit()}
        print(rows[case], flush=True)
        metrics = {"tolerance": TOLERANCE, "shapes": SHAPES}
        metrics["rows"] = [rows[each] for each in cases if each in rows]
        common.write_results("engine_memory", metrics, command=common.command(), replace=True)


if __name__ == "__main__":
    run_case(*sys.argv[2:]) if sys.argv[1:2] == ["run"] else main()
