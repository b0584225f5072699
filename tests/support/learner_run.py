"""One process of a learner on several: passes, steps, states and a sampler, then a report.

torchrun --nproc-per-node 2 tests/support/learner_run.py OUT.json
"""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fsdp_on_cpu import allow_fsdp_on_cpu
from tests.support.tiny_learner import made_examples, tiny_learner

from terrella.core.errors import EngineError
from terrella.core.tokens import AdamParams, TokenRequest
from terrella.engines.ranks import end_rank

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "policy": ("policy", {"pack_tokens": 40}),
    "webrl": ("webrl_paper", {"pack_tokens": 1, "share_prefix": False}),
    "lora": ("cross_entropy", {"lora_rank": 2, "gradient_checkpointing": True}),
    "bce": ("bce", {"head": "value", "pack_tokens": 40}),
    "heads": ("bce", {"head": "value", "value_heads": 2, "pack_tokens": 40}),
}
ADAM = AdamParams(learning_rate=1e-2, eps=1e-2)  # a small eps would enlarge rounding errors
RANK = int(os.environ.get("RANK", "0"))


def main(out: Path) -> None:
    """Every rank writes what its learner returned."""
    allow_fsdp_on_cpu()
    report = {name: run(out, name, *options) for name, options in RUNS.items()}
    report["bf16"] = in_bf16()
    if "WORLD_SIZE" in os.environ:
        report["refused"] = different_data()
    out.with_suffix(f".{RANK}.json").write_text(json.dumps(report))


def run(out: Path, name: str, loss: str, options: dict[str, Any]) -> dict[str, Any]:
    learner = tiny_learner(**options)
    data = made_examples(7)
    seen = [learner.forward_backward(part, loss) for part in (data[:1], data[1:])]
    # A pass between gradients and step, and before saving, changes neither.
    before = learner.forward(data)
    norms = [learner.optim_step(ADAM)["grad_norm"]]
    learner.forward(data)
    state = out.parent / f"{out.stem}-{name}-state"
    learner.save_state(state)
    for _ in range(2):  # the same step twice, from the saved state
        learner.load_state(state)
        learner.forward_backward(made_examples(5, seed=1), loss)
        norms.append(learner.optim_step(ADAM)["grad_norm"])
    learner.export(out.parent / f"{out.stem}-{name}")
    return {
        "parameter": type(next(learner.policy.parameters())).__name__,
        "loss": [each.loss for each in seen],
        "metrics": [dict(each.metrics) for each in seen],
        "outputs": [list(values) for each in seen for values in each.outputs],
        "before": before,
        "norms": norms,
        "after": learner.forward(data),
        "sampled": sampled(learner) if options.get("head") != "value" else [],
    }


def in_bf16() -> dict[str, Any]:
    """How much longer a gradient of many packs is than that of one, and some values.

    The first pack weighs as much as 512 of the others: in bf16 it would swallow them.
    """
    learner = tiny_learner(bf16=True, pack_tokens=1, share_prefix=False)
    (one,) = made_examples(1)
    size = len(one.completion_ids)
    heavy, light = (replace(one, columns={"weight": [each] * size}) for each in (256.0, 0.5))
    norms = []
    for data in ([light], [heavy, *[light] * 60]):
        learner.forward_backward(data, "cross_entropy")
        norms.append(learner.optim_step(replace(ADAM, learning_rate=0.0))["grad_norm"])
    values = tiny_learner(bf16=True, head="value", value_heads=2).forward(made_examples(3))
    return {"longer": norms[1] / norms[0], "values": [each for row in values for each in row]}


def sampled(learner: Any) -> list[int]:
    """Ranks sample different numbers of tokens: none may wait for another."""
    request = TokenRequest(
        prompt_ids=(1, 2, 3), max_new_tokens=3 + 9 * RANK, seed=0, temperature=0.0
    )
    with learner.sampler() as sampler:
        return list(asyncio.run(sampler.sample(request)).token_ids)[:3]


def different_data() -> str:
    learner = tiny_learner()
    (example,) = made_examples(1)
    try:
        learner.forward([replace(example, prompt_ids=[RANK + 1, 2])])
    except EngineError as error:
        return error.what
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
