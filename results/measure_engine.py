"""Measures the engine and writes results/engine.json, part by part.

    python results/measure_engine.py curves ratio prefix interleaving sizes kills     (any subset)
`bare` is the same model in the same process: Hugging Face `generate` on the same prompts for the same number of
tokens, then TRL's own GRPO loss, backward and optimiser step on the same tokens.
"""

import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
ROOT = Path(__file__).parents[1]
OUT = Path(__file__).parent / "engine.json"
SEEDS = (0, 1, 2)
RECIPES = ("tiny_lake_model", "tiny_counter", "tiny_lake_agent")


# --- curves: the real command, three seeds ------------------------------------------------------------------------


def curves(record):
    """`terrella rlvr RECIPE` for three recipes and three seeds: reward before, after, and the wall time."""
    found = record.get("curves", {}).get("recipes", {})
    for recipe in RECIPES:
        for seed in SEEDS:
            if str(seed) in found.get(recipe, {}):
                continue
            found.setdefault(recipe, {})[str(seed)] = one_curve(recipe, seed)
            yield {"recipes": found}


def one_curve(recipe, seed):
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        command = [
            sys.executable,
            "-m",
            "terrella.cli",
            "rlvr",
            recipe,
            "--set",
            f"seed={seed}",
            "--out",
            f"{folder}/run",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        seconds = time.time() - began
        manifest = json.loads(Path(folder, "run/manifest.json").read_text())
        curve = [json.loads(line)["reward"] for line in Path(folder, "run/curve.jsonl").read_text().splitlines()]
    tenth = max(1, len(curve) // 10)
    return {
        "seconds": round(seconds), "before": manifest["before"], "after": manifest["after"],
        "baselines": manifest["baselines"], "first_tenth": statistics.fmean(curve[:tenth]),
        "last_tenth": statistics.fmean(curve[-tenth:]), "curve": [round(value, 3) for value in curve],
    }  # fmt: skip


# --- our step against the bare engine -----------------------------------------------------------------------------


class BenchCodec:
    """Prompts of a fixed length, replies that never stop: both engines do the same number of tokens."""

    stop_ids = ()

    def __init__(self, prompt_tokens, vocabulary):
        self.prompt_tokens, self.vocabulary = prompt_tokens, vocabulary

    def ask_observation(self, situation, action):
        import numpy as np

        rng = np.random.default_rng(abs(hash(situation.observation.text)) % 2**32)
        return tuple(int(token) for token in rng.integers(5, self.vocabulary, self.prompt_tokens))

    def read_observation(self, token_ids, like):
        from terrella.core.types import State

        return State(json.dumps(sum(token_ids)))


class Parity:
    """A reward with variance that costs nothing."""

    def verify(self, reply, truth, before):
        from terrella.core.types import Verdict

        return Verdict.of(float(int(reply.text) % 2))


def our_trainer(model_name, *, prompt, answer, groups, group_size, steps, out):
    from terrella.engines.episodes.driver import Driver
    from terrella.engines.trl.rlvr_trainer import RlvrSettings, RlvrTrainer
    from terrella.models.presets import load_model
    from terrella.stages.tasks import PredictionTasks
    from terrella.worlds.counter import Counter

    model, tokenizer = load_model(model_name)
    driver = Driver(Driver.Config(world=Counter.Config(), turn_tokens=answer), BenchCodec(prompt, len(tokenizer)))
    driver.verifier = Parity()
    settings = RlvrSettings.Config(
        steps=steps, groups=groups, group_size=group_size, learning_rate=1e-5,
        pack_tokens=max(1024, prompt + group_size * answer),
    )  # fmt: skip
    return RlvrTrainer(model, tokenizer, settings, driver, PredictionTasks(Counter.Config()), Path(out))


def in_turn(trainer, prompts, answer):
    """A step of ours, a bare one, a step of ours, ...: what else the machine does falls on both."""
    from transformers import TrainerCallback

    class InTurn(TrainerCallback):
        ours, bare, began = [], [], 0.0

        def on_step_begin(self, *_, **__):
            self.began = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.ours.append(time.perf_counter() - self.began)
            self.bare.append(bare_step(trainer, prompts, answer))

    clock = InTurn()
    trainer.add_callback(clock)
    return clock


def bare_step(trainer, prompts, answer):
    """Seconds of `generate`, and of TRL's own GRPO loss, backward and optimiser step, on the same tokens."""
    import torch
    from trl import GRPOTrainer

    model, ids = trainer.accelerator.unwrap_model(trainer.model), torch.tensor(prompts)
    trainer.optimizer.zero_grad()
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=answer, min_new_tokens=answer,
            do_sample=True, top_k=0, temperature=1.0,
        )  # fmt: skip
    generated = time.perf_counter()
    completion = out[:, ids.shape[1] :].clone()
    inputs = {
        "prompt_ids": ids, "prompt_mask": torch.ones_like(ids), "completion_ids": completion,
        "completion_mask": torch.ones_like(completion), "advantages": torch.randn(len(ids)),
        "num_items_in_batch": torch.tensor(completion.numel()),
    }  # fmt: skip
    model.train()
    loss = GRPOTrainer._compute_loss(trainer, model, inputs)
    trainer.accelerator.backward(loss)
    trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return generated - began, time.perf_counter() - generated


def compare(model_name, *, prompt, answer, groups, group_size, steps=5, out):
    """Medians of our step and of the bare one, after a first of each that does not count."""
    import torch

    torch.set_num_threads(2)
    trainer = our_trainer(
        model_name, prompt=prompt, answer=answer, groups=groups, group_size=group_size, steps=steps, out=out
    )
    tasks = [trainer.tasks(index) for index in range(groups)]
    questions = [trainer.driver.codec.ask_observation(task.situation, task.transition.action) for task in tasks]
    clock = in_turn(trainer, [question for question in questions for _ in range(group_size)], answer)
    trainer.train()
    history = [row for row in trainer.state.log_history if "seconds/train" in row]
    ours = statistics.median(clock.ours[1:])
    generate, train = (statistics.median(phase[1:]) for phase in zip(*clock.bare, strict=True))
    tokens = groups * group_size * answer
    return {
        "model": model_name, "prompt": prompt, "answer": answer, "groups": groups, "group_size": group_size,
        "steps": steps - 1, "our_step_s": round(ours, 3), "bare_generate_s": round(generate, 3),
        "bare_train_s": round(train, 3), "ratio": round((generate + train) / ours, 3),
        "our_generate_s": round(statistics.median(row["seconds/generate"] for row in history[1:]), 3),
        "our_train_s": round(statistics.median(row["seconds/train"] for row in history[1:]), 3),
        "our_tokens_per_s": round(tokens / ours), "bare_tokens_per_s": round(tokens / (generate + train)),
        "mismatch_max": max(row["mismatch/max"] for row in history),
        "padding": max(row["padding"] for row in history),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip


def in_fresh_process(function, **arguments):
    """Each comparison in a process of its own: its peak memory is its own."""
    code = (
        "import sys, json; sys.path.insert(0, 'results'); import measure_engine as measure; "
        f"print('RESULT' + json.dumps(measure.{function}(**{arguments!r})))"
    )
    with tempfile.TemporaryDirectory() as folder:
        code = code.replace("__OUT__", folder)
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.split("RESULT")[1])


def ratio(record):
    """Single-turn GRPO: (bare generate + bare TRL step) / our step."""
    found = []
    for shape in (
        {"model_name": "tiny-5m", "prompt": 128, "answer": 64, "groups": 8, "group_size": 8},
        {"model_name": "smollm2", "prompt": 128, "answer": 32, "groups": 2, "group_size": 8, "steps": 3},
    ):
        found.append(in_fresh_process("compare", out="__OUT__", **shape))
        yield {"shapes": found}


def prefix(record):
    """A world-model shape: one 2,000-token prompt, 8 answers of 64 tokens."""
    shape = {"model_name": "tiny-5m", "prompt": 2000, "answer": 64, "groups": 1, "group_size": 8, "steps": 4}
    yield {"shapes": [in_fresh_process("compare", out="__OUT__", **shape)]}


def sizes(record):
    """Memory and time per step for 1M, 5M, 25M and 135M."""
    found = []
    for name, groups in (("tiny-1m", 8), ("tiny-5m", 8), ("tiny-25m", 4), ("smollm2", 1)):
        shape = {"model_name": name, "prompt": 64, "answer": 32, "groups": groups, "group_size": 8, "steps": 4}
        found.append(in_fresh_process("compare", out="__OUT__", **shape))
        yield {"rows": found}


def interleave(model_name="tiny-5m", episodes=64, turns=8, words=8, forced=4, prompt=64):
    """An 8-turn episode with world tokens forced in between, against as many tokens in one go."""
    import torch

    from terrella.core.protocols import TokenRequest
    from terrella.engines.sampling.local_sampler import LocalSampler
    from terrella.models.presets import load_model

    torch.set_num_threads(2)
    sampler = LocalSampler(load_model(model_name)[0])
    prompts = [tuple(range(5, 5 + prompt)) for _ in range(episodes)]

    async def episode(index):
        ids = list(prompts[index])
        for turn in range(turns):
            request = TokenRequest(
                prompt_ids=tuple(ids), max_new_tokens=words, seed=100 * index + turn, session=str(index)
            )
            ids += (await sampler.sample(request)).token_ids
            ids += range(5, 5 + forced)
        sampler.release(str(index))

    async def one_go(index):
        total = turns * (words + forced) - forced
        await sampler.sample(TokenRequest(prompt_ids=prompts[index], max_new_tokens=total, seed=index))

    async def everyone(play):
        await asyncio.gather(*(play(index) for index in range(episodes)))

    def timed(play):
        began = time.perf_counter()
        asyncio.run(everyone(play))
        return time.perf_counter() - began

    pairs = [(timed(episode), timed(one_go)) for _ in range(4)][1:]
    with_turns, at_once = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "interleaved_s": round(with_turns, 3),
        "one_go_s": round(at_once, 3),
        "cost": round(with_turns / at_once, 3),
    }


def interleaving(record):
    """Interleaving cost of an 8-turn episode."""
    yield in_fresh_process("interleave")


def kills(record):
    """SIGKILLs of an RLVR run with Ray worlds at random moments, resumed each time: bit-identical weights?"""
    began = time.time()
    command = [sys.executable, "-m", "pytest", "-q", "tests/chaos/test_rlvr_kill.py", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "TERRELLA_KILLS": "50"}, capture_output=True, text=True)
    yield {
        "kills": 50,
        "passed": done.returncode == 0,
        "result": done.stdout.strip().splitlines()[-1],
        "seconds": round(time.time() - began),
    }


PARTS = {f.__name__: f for f in (curves, ratio, prefix, interleaving, sizes, kills)}


def main():
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    for name in sys.argv[1:] or PARTS:
        record = json.loads(OUT.read_text()) if OUT.exists() else {}
        about = {
            "what": PARTS[name].__doc__,
            "command": f"python results/measure_engine.py {name}",
            "commit": commit,
            "machine": machine,
        }
        for found in PARTS[name](record):  # written as it comes: a killed run keeps what it had
            record[name] = {**about, **found}
            OUT.write_text(json.dumps(record, indent=1) + "\n")
            print(name, json.dumps(found)[-600:], flush=True)


if __name__ == "__main__":
    main()
