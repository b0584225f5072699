"""Sampling through our vLLM path against bare vLLM on the same requests: results/engine_vllm.json.

    OMP_NUM_THREADS=1 python benchmarks/engine_vllm.py [--model smollm2] [--rounds 5]
Bare vLLM is `vllm.LLM.generate`, with all prompts in one call. Ours is `VllmSampler.sample`, one
request per prompt, over HTTP to a server that we started. Both hold the same folder with the same
settings and take turns. Needs the environment of `.ci/verl`.
"""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

import common

SHAPES = (
    {"prompt": 128, "answer": 32, "requests": 32, "shared": 1},
    {"prompt": 1024, "answer": 16, "requests": 16, "shared": 8},
)
"""Requests with their tokens; `shared` of them ask the same prompt, as a group does."""
MAX_TOKENS = 2048
SEQUENCES = 32


def prompts(shape, vocabulary):
    import numpy as np

    rng = np.random.default_rng(0)
    distinct = [
        tuple(int(token) for token in rng.integers(5, vocabulary, shape["prompt"]))
        for _ in range(shape["requests"] // shape["shared"])
    ]
    return [prompt for prompt in distinct for _ in range(shape["shared"])]


def bare_engine(folder):
    from vllm import LLM

    return LLM(
        model=str(folder),
        dtype="float32",
        max_model_len=MAX_TOKENS,
        max_num_seqs=SEQUENCES,
        enforce_eager=True,
        enable_prefix_caching=True,
        enable_chunked_prefill=False,  # as our server on a CPU, see engines/vllm/server.py
        generation_config="vllm",
        disable_log_stats=True,
    )


def sample_bare(engine, asked, shape):
    from vllm import SamplingParams

    settings = [
        SamplingParams(
            max_tokens=shape["answer"],
            temperature=1.0,
            seed=seed,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
        )
        for seed in range(len(asked))
    ]
    replies = engine.generate(
        [{"prompt_token_ids": list(prompt)} for prompt in asked], settings, use_tqdm=False
    )
    return sum(len(reply.outputs[0].token_ids) for reply in replies)


def sample_ours(sampler, asked, shape):
    from terrella.core.tokens import TokenRequest

    async def gather():
        return await asyncio.gather(
            *(
                sampler.sample(
                    TokenRequest(prompt_ids=prompt, max_new_tokens=shape["answer"], seed=seed)
                )
                for seed, prompt in enumerate(asked)
            )
        )

    return sum(len(reply.token_ids) for reply in asyncio.run(gather()))


def compare(engine, sampler, shape, vocabulary, rounds):
    """Tokens per second of both, in turn; prefix caches are emptied before each."""
    rates = {"bare": [], "ours": []}
    asked = prompts(shape, vocabulary)
    for number in range(rounds + 1):
        engine.reset_prefix_cache()
        with common.Timer() as timer:
            bare = sample_bare(engine, asked, shape)
        bare_rate = bare / timer.seconds
        sampler._post("/reset_prefix_cache", {})
        with common.Timer() as timer:
            ours = sample_ours(sampler, asked, shape)
        if ours != bare:
            raise SystemExit(f"{ours} tokens of ours, {bare} of bare vLLM: not the same requests")
        if number:  # the first round warms up
            rates["bare"].append(bare_rate)
            rates["ours"].append(ours / timer.seconds)
        print(shape, round(bare_rate), round(ours / timer.seconds), flush=True)
    ratios = [ours / bare for ours, bare in zip(rates["ours"], rates["bare"], strict=True)]
    return {
        **shape,
        "rounds": rounds,
        "bare_tokens_per_s": round(sum(rates["bare"]) / rounds, 1),
        "our_tokens_per_s": round(sum(rates["ours"]) / rounds, 1),
        "ratio": common.mean_row(ratios),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    from tests.support import vllm_cpu

    os.environ.update(vllm_cpu.environment())
    from terrella.engines.engine import start_model
    from terrella.engines.vllm.server import VllmServer
    from terrella.models.presets import load_tokenizer

    with tempfile.TemporaryDirectory() as scratch:
        folder = start_model(chosen.model, Path(scratch) / "model")
        vocabulary = len(load_tokenizer(str(folder)))
        config = VllmServer.Config(
            dtype="float32",
            max_model_len=MAX_TOKENS,
            max_num_seqs=SEQUENCES,
            arguments=("--enforce-eager",),
        )
        engine = bare_engine(folder)
        with VllmServer(config, folder, log=Path(scratch) / "vllm.log") as server:
            rows = [
                compare(engine, server.sampler(), shape, vocabulary, chosen.rounds)
                for shape in SHAPES
            ]
    threads = os.environ["OMP_NUM_THREADS"]
    common.write_part(
        "engine_vllm",
        f"{chosen.model}, {threads} thread(s)",
        {"rows": rows},
        command=common.command(
            f"--model {chosen.model} --rounds {chosen.rounds}", OMP_NUM_THREADS=threads
        ),
        what="tokens/s through VllmSampler over tokens/s of vllm.LLM.generate, same requests",
    )


if __name__ == "__main__":
    main()
