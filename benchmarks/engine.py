"""Measures the TRL engine and writes results/engine.json, part by part.

    python benchmarks/engine.py ratio prefix interleaving sizes kills
Any subset can be named; without names all parts are measured. `bare` is the same model in the same
process: Hugging Face `generate` on the same prompts for the same number of tokens, then TRL's own
GRPO loss, backward and optimiser step on the same tokens.
"""

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import common

THREADS = 2
"""Threads of torch in comparisons with the bare engine."""


# --- our step against the bare engine -------------------------------------------------------------


class BenchCodec:
    """Prompts of a fixed length and replies that never stop: the same tokens for both engines."""

    stop_ids = ()

    def __init__(self, prompt_tokens, vocabulary):
        self.prompt_tokens = prompt_tokens
        self.vocabulary = vocabulary

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
    from terrella.engines.configs import RlvrConfig
    from terrella.engines.trl.rlvr_trainer import RlvrTrainer
    from terrella.models.presets import load_model
    from terrella.rollout.rollout import Rollout
    from terrella.rollout.tasks import PredictionTasks
    from terrella.worlds.counter import Counter

    model, tokenizer = load_model(model_name)
    rollout = Rollout(
        Rollout.Config(world=Counter.Config(), turn_tokens=answer),
        BenchCodec(prompt, len(tokenizer)),
        verifier=Parity(),
    )
    settings = RlvrConfig(
        steps=steps,
        groups=groups,
        group_size=group_size,
        learning_rate=1e-5,
        pack_tokens=max(1024, prompt + group_size * answer),
    )
    return RlvrTrainer(
        model, tokenizer, settings, rollout, PredictionTasks(Counter.Config()), Path(out), seed=0
    )


def time_in_turn(trainer, prompts, answer):
    """Time one of our steps, then a bare one, and so on: other load on the machine hits both."""
    from transformers import TrainerCallback

    class StepTimes(TrainerCallback):
        def __init__(self):
            self.ours = []
            self.bare = []

        def on_step_begin(self, *_, **__):
            self.timer = common.Timer()

        def on_step_end(self, *_, **__):
            self.ours.append(self.timer.seconds)
            self.bare.append(bare_step(trainer, prompts, answer))

    times = StepTimes()
    trainer.add_callback(times)
    return times


def bare_step(trainer, prompts, answer):
    """Seconds of `generate`, and of TRL's own loss, backward and optimiser step on its tokens."""
    import torch
    from trl import GRPOTrainer

    model = trainer.accelerator.unwrap_model(trainer.model)
    ids = torch.tensor(prompts)
    trainer.optimizer.zero_grad()
    with common.Timer() as generating, torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=answer,
            min_new_tokens=answer,
            do_sample=True,
            top_k=0,
            temperature=1.0,
        )
    training = common.Timer()
    completion = out[:, ids.shape[1] :].clone()
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": torch.ones_like(ids),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "advantages": torch.randn(len(ids)),
        "num_items_in_batch": torch.tensor(completion.numel()),
    }
    model.train()
    loss = GRPOTrainer._compute_loss(trainer, model, inputs)
    trainer.accelerator.backward(loss)
    trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return generating.seconds, training.seconds


def compare(model_name, *, prompt, answer, groups, group_size, steps=5, out):
    """Medians of our step and of the bare one; the first of each does not count."""
    import torch

    common.quiet_trl()
    torch.set_num_threads(THREADS)
    trainer = our_trainer(
        model_name,
        prompt=prompt,
        answer=answer,
        groups=groups,
        group_size=group_size,
        steps=steps,
        out=out,
    )
    prompts = []
    for index in range(groups):
        task = trainer.tasks(index)
        ids = trainer.rollout.codec.ask_observation(task.situation, task.transition.action)
        prompts += [ids] * group_size
    times = time_in_turn(trainer, prompts, answer)
    trainer.train()
    history = [row for row in trainer.state.log_history if "seconds/train" in row]
    ours = statistics.median(times.ours[1:])
    generate, train = (statistics.median(phase[1:]) for phase in zip(*times.bare, strict=True))
    tokens = groups * group_size * answer
    return {
        "model": model_name,
        "prompt": prompt,
        "answer": answer,
        "groups": groups,
        "group_size": group_size,
        "steps": steps - 1,
        "our_step_s": round(ours, 3),
        "bare_generate_s": round(generate, 3),
        "bare_train_s": round(train, 3),
        "ratio": round((generate + train) / ours, 3),
        "our_generate_s": round(
            statistics.median(row["seconds/generate"] for row in history[1:]), 3
        ),
        "our_train_s": round(statistics.median(row["seconds/train"] for row in history[1:]), 3),
        "our_tokens_per_s": round(tokens / ours),
        "bare_tokens_per_s": round(tokens / (generate + train)),
        "mismatch_max": max(row["mismatch/max"] for row in history),
        "padding": max(row["padding"] for row in history),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def in_fresh_process(function, **arguments):
    """Call a function of this module in a new process, so that its peak memory is its own."""
    folder = str(Path(__file__).parent)
    code = (
        f"import sys, json; sys.path.insert(0, {folder!r}); import engine; "
        f"print('RESULT' + json.dumps(engine.{function}(**{arguments!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=common.ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.split("RESULT")[1])


def compare_shape(model_name, **shape):
    with tempfile.TemporaryDirectory() as out:
        return in_fresh_process("compare", model_name=model_name, out=out, **shape)


def ratio():
    """Single-turn GRPO: (bare generate + bare TRL step) / our step."""
    tiny = compare_shape("tiny-5m", prompt=128, answer=64, groups=8, group_size=8)
    yield {"shapes": [tiny]}
    smollm2 = compare_shape("smollm2", prompt=128, answer=32, groups=2, group_size=8, steps=3)
    yield {"shapes": [tiny, smollm2]}


def prefix():
    """A world-model shape: one 2,000-token prompt, 8 answers of 64 tokens."""
    shape = compare_shape("tiny-5m", prompt=2000, answer=64, groups=1, group_size=8, steps=4)
    yield {"shapes": [shape]}


def sizes():
    """Memory and time per step for 1M, 5M, 25M and 135M."""
    rows = []
    for name, groups in (("tiny-1m", 8), ("tiny-5m", 8), ("tiny-25m", 4), ("smollm2", 1)):
        rows.append(compare_shape(name, prompt=64, answer=32, groups=groups, group_size=8, steps=4))
        yield {"rows": rows}


# --- interleaving and kills -----------------------------------------------------------------------


def interleave(model_name="tiny-5m", episodes=64, turns=8, reply=8, forced=4, prompt=64):
    """Episodes of several turns with forced world tokens, against as many tokens in one go."""
    import torch

    from terrella.core.tokens import TokenRequest
    from terrella.engines.local.local_sampler import LocalSampler
    from terrella.models.presets import load_model

    torch.set_num_threads(THREADS)
    sampler = LocalSampler(load_model(model_name)[0])
    prompts = [tuple(range(5, 5 + prompt)) for _ in range(episodes)]

    async def episode(index):
        ids = list(prompts[index])
        for turn in range(turns):
            request = TokenRequest(
                prompt_ids=tuple(ids),
                max_new_tokens=reply,
                seed=100 * index + turn,
                session=str(index),
            )
            ids += (await sampler.sample(request)).token_ids
            ids += range(5, 5 + forced)
        sampler.release(str(index))

    async def one_go(index):
        total = turns * (reply + forced) - forced
        await sampler.sample(
            TokenRequest(prompt_ids=prompts[index], max_new_tokens=total, seed=index)
        )

    async def play_all(play):
        await asyncio.gather(*(play(index) for index in range(episodes)))

    def timed(play):
        with common.Timer() as timer:
            asyncio.run(play_all(play))
        return timer.seconds

    pairs = [(timed(episode), timed(one_go)) for _ in range(4)][1:]
    with_turns, at_once = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "interleaved_s": round(with_turns, 3),
        "one_go_s": round(at_once, 3),
        "cost": round(with_turns / at_once, 3),
    }


def interleaving():
    """Interleaving cost of an 8-turn episode."""
    yield in_fresh_process("interleave")


def kills():
    """SIGKILLs of an RLVR run with Ray worlds at random moments, resumed each time.

    Bit-identical weights?
    """
    result = common.run_tests("tests/chaos/test_rlvr_kill.py", TERRELLA_KILLS=str(KILLS))
    yield {"kills": KILLS, **result}


KILLS = 50
PARTS = {f.__name__: f for f in (ratio, prefix, interleaving, sizes, kills)}


def main():
    for name in sys.argv[1:] or PARTS:
        what = PARTS[name].__doc__
        for metrics in PARTS[name]():  # written as it comes: a killed run keeps what it had
            common.write_part("engine", name, metrics, command=common.command(name), what=what)
            print(name, json.dumps(metrics)[-600:], flush=True)


if __name__ == "__main__":
    main()
