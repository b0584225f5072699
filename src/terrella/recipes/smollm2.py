"""A real language model as a world model: SmolLM2-135M-Instruct on two CPU cores, in an hour.

docs/real_model.md follows it from the installation to the viewer.
"""

from __future__ import annotations

from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.rlvr import Rlvr
from terrella.recipes import recipe
from terrella.worlds.frozen_lake import FrozenLake


@recipe(
    hardware="2 CPU cores, 8 GB",
    time="1 h",
    expect="being measured",
)
def smollm2_lake_model() -> Rlvr.Config:
    """SmolLM2 learns what frozen_lake 3x3 (no slip) shows next.

    Half of the answers in its warm-up are wrong: it learns the form, and RLVR finds what is true.
    """
    return Rlvr.Config(
        world=FrozenLake.Config(size=3, view="compact"),
        ask="observation",
        model="smollm2",
        turn_tokens=32,
        warmup_examples=256,
        correct_fraction=0.5,
        warmup=SftConfig(batch_size=8, learning_rate=1e-4, pack_tokens=1024),
        rlvr=RlvrConfig(
            steps=30,
            groups=8,
            group_size=8,
            learning_rate=2e-5,
            pack_tokens=2048,
            save_every=5,
        ),
        evaluate_on=96,
        record_every=10,
    )
