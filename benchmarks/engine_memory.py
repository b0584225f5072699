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
PROMPT, COMPLETION, GROUPS, MEMBERS = 192, 64, 2, 8
PACK = 2048
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
        step(net, tokenizer, VARIANTS[variant], Path(folder))
        peak = status("VmHWM")
    print(json.dumps({"before": before, "peak": peak, "need": peak - before}))


def sft_step(net, tokenizer, settings, folder):
    from terrella.core.tokens import TrainExample
    from terrella.engines.configs import SftConfig
    from terrella.engines.trl.sft_trainer import SftTrainer

    examples = [
        TrainExample(
            prompt_ids=[number % 50 + 5] * PROMPT,
            completion_ids=[7] * COMPLETION,
            mask=[True] * COMPLETION,
        )
        for number in range(2 * GROUPS * MEMBERS)
    ]
    config = SftConfig(batch_size=GROUPS * MEMBERS, pack_tokens=PACK, **settings)
    SftTrainer(net, tokenizer, config, examples, folder, seed=0).train()


class FixedRollout:
    """Episodes of a fixed length, sampled by the real sampler; every other one is rewarded."""

    class config:  # noqa: N801  the fields that the trainer reads
        turn_tokens = COMPLETION
        temperature = 1.0

    watchdog = None
    env_steps = 0

    def run(self, sampler, tasks, *, group_size, seed):
        return asyncio.run(self.episodes(sampler, tasks, group_size))

    async def episodes(self, sampler, tasks, group_size):
        asked = [(task, member) for task in tasks for member in range(group_size)]
        return await asyncio.gather(*(self.episode(sampler, *each) for each in asked))

    async def episode(self, sampler, task, member):
        from terrella.core.tokens import TokenEpisode, TokenRequest
        from terrella.core.types import Verdict

        prompt = (task + 5,) * PROMPT
        request = TokenRequest(prompt_ids=prompt, max_new_tokens=COMPLETION, seed=member)
        sampled = await sampler.sample(request)
        return TokenEpisode(
            prompt_ids=prompt,
            completion_ids=sampled.token_ids,
            model_mask=(True,) * COMPLETION,
            logprobs=sampled.logprobs,
            turn_ends=(COMPLETION,),
            turn_rewards=(float(member % 2),),
            outcome=Verdict(value=float(member % 2)),
            group=str(task),
        )


def grpo_step(net, tokenizer, settings, folder):
    from terrella.engines.trl.rlvr_trainer import RlvrTrainer

    config = rl_config(**settings)
    RlvrTrainer(net, tokenizer, config, FixedRollout(), lambda index: index, folder, seed=0).train()


def rl_config(**settings):
    from terrella.engines.configs import RlvrConfig

    return RlvrConfig(steps=2, groups=GROUPS, group_size=MEMBERS, pack_tokens=PACK, **settings)


def plan_case(model, kind, variant):
    """The bytes that the plan says for the same case."""
    common.quiet_trl()
    from terrella.engines.configs import SftConfig
    from terrella.engines.hardware import parse_hardware
    from terrella.engines.memory.model_spec import model_spec
    from terrella.engines.memory.plan import Phase, make_plan
    from terrella.engines.memory.steps import ExampleShape
    from terrella.models.characters import character_tokenizer

    settings = VARIANTS[variant]
    is_sft = kind == "sft"
    phase = Phase(
        name=kind,
        model=model_spec(model, vocabulary=len(character_tokenizer())),
        settings=SftConfig(batch_size=GROUPS * MEMBERS, pack_tokens=PACK, **settings)
        if is_sft
        else rl_config(**settings),
        example=ExampleShape(prompt=PROMPT, completion=COMPLETION),
        members=1 if is_sft else MEMBERS,
        rows=0 if is_sft else GROUPS * MEMBERS,
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
        reason = done.stderr.strip().splitlines()[-1]
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
    rows = {(row["model"], row["kind"], row["variant"]): row for row in known}
    for case in asked:
        if case in rows and len(sys.argv) == 1:
            continue  # measured before; delete the file to measure again
        rows[case] = {**compare(*case), "commit": common.commit()}
        print(rows[case], flush=True)
        shapes = {"prompt": PROMPT, "completion": COMPLETION, "groups": GROUPS, "members": MEMBERS}
        metrics = {"tolerance": TOLERANCE, "shapes": {**shapes, "pack_tokens": PACK}}
        metrics["rows"] = [rows[each] for each in cases if each in rows]
        common.write_results("engine_memory", metrics, command=common.command(), replace=True)


if __name__ == "__main__":
    run_case(*sys.argv[2:]) if sys.argv[1:2] == ["run"] else main()
