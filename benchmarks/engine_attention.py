"""What attention and the allocator cost SmolLM2 on a CPU: results/engine_attention.json.

    OMP_NUM_THREADS=1 python benchmarks/engine_attention.py
`attention`: one layer of SmolLM2 for 64 sequences of 1,100 tokens that each decode one more, with
keys and values copied for each query head (transformers' sdpa) and without (`grouped_attention`).
`allocator`: training steps of 1,500 tokens, as glibc is and when it keeps freed memory. Seconds are
CPU seconds; three minutes on one quiet core.
"""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import common

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "200000000000"}
SEQUENCES, TOKENS, PASSES = 64, 1100, 10
STEP_TOKENS, STEPS = 1500, 3


def attention():
    """The fastest of some passes, and how far the two results differ."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from terrella.models.grouped_attention import grouped_attention

    heads, key_heads, size = 9, 3, 64
    layer = SimpleNamespace(num_key_value_groups=heads // key_heads, is_causal=True)
    keys, values = torch.randn(2, SEQUENCES, key_heads, TOKENS, size)
    query = torch.randn(SEQUENCES, heads, 1, size)
    mask = torch.ones(SEQUENCES, 1, 1, TOKENS, dtype=torch.bool)
    found, outputs = {}, []
    for name, attend in (("copied", sdpa_attention_forward), ("grouped", grouped_attention)):
        seconds = []
        for _ in range(PASSES):
            began = time.process_time()
            output, _ = attend(layer, query, keys, values, mask)
            seconds.append(time.process_time() - began)
        outputs.append(output)
        found[name] = {"cpu_ms": round(1000 * min(seconds), 1)}
    found["largest_difference"] = float((outputs[0] - outputs[1]).abs().max())
    return {"sequences": SEQUENCES, "tokens": TOKENS, "passes": PASSES, **found}


def step_seconds():
    """CPU seconds of the fastest training step after the first."""
    import torch

    from terrella.models.presets import load_model

    model, _ = load_model("smollm2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(40_000, (1, STEP_TOKENS), generator=torch.Generator().manual_seed(0))
    seconds = []
    for _ in range(STEPS):
        began = time.process_time()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - began)
    return min(seconds[1:])


def allocator():
    """The environment is read when a process starts, so each case is one of its own."""
    found = {"tokens": STEP_TOKENS, "steps": STEPS - 1}
    for name, settings in (("given_back", {}), ("kept", KEPT)):
        words = [sys.executable, __file__, "step"]
        done = subprocess.run(
            words, env={**os.environ, **settings}, capture_output=True, text=True, check=True
        )
        found[name] = {"cpu_seconds": round(float(done.stdout), 1), "settings": settings}
    return found


def main():
    if sys.argv[1:] == ["step"]:
        print(step_seconds())
        return
    metrics = {"attention": attention(), "allocator": allocator()}
    command = common.command(OMP_NUM_THREADS=1)
    common.write_results("engine_attention", metrics, command=command, replace=True)


if __name__ == "__main__":
    main()
