"""A real language model as a world model: SmolLM2-135M-Instruct on two CPU cores, in minutes.

docs/real_model.md follows it from the installation to the viewer.
"""

from __future__ import annotations

from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.rlvr import Rlvr
from terrella.recipes import recipe
from terrella.worlds.counter import Counter


@recipe(
    hardware="2 CPU cores, 8 GB",
    time="30 min",
    expect="exact predictions 0.46 -> 0.82 (seed 0, n = 50); no change 0",
)
def smollm2_counter_model() -> Rlvr.Config:
    """SmolLM2 learns what a counter shows after an action. Two cores, half an hour.

    Half of the answers in its warm-up are wrong: it learns the form, and RLVR finds what is true.
    """
    return Rlvr.Config(
        world=Counter.Config(),
        ask="observation",
        model="smollm2",
        turn_tokens=24,
        warmup_examples=128,
        correct_fraction=0.5,
        warmup=SftConfig(batch_size=8, learning_rate=1e-4, pack_tokens=1024),
        rlvr=RlvrConfig(
            steps=16,
            groups=8,
            group_size=8,
            learning_rate=1e-5,
            pack_tokens=1024,
            save_every=4,
        ),
        evaluate_on=64,
        record_every=4,
    )
