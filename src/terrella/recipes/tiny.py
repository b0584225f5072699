"""Models of 0.3M parameters made from scratch: a rising curve on two CPU cores in minutes.

What each reached, seed by seed, stands in results/engine.json (`python benchmarks/engine.py
curves`). Both agents first fit what the world shows (`learn_world`): without it a model this small
never tells one state from another, and RLVR ends in the same action everywhere. A slight KL keeps
the counter from doing the same.
"""

from __future__ import annotations

from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.rlvr import OtherWorld, Rlvr
from terrella.recipes import recipe
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake

# Enough for a whole batch of rows: attention is computed group by group, so longer packs cost
# nothing.
PACK = 2048


@recipe(
    hardware="2 CPU cores",
    time="6 min",
    expect="success 0.27 -> 0.94 (seed 0; random 0.25)",
)
def tiny_counter() -> Rlvr.Config:
    """An agent that brings a counter to its goal. Two cores, about five minutes."""
    return Rlvr.Config(
        world=Counter.Config(goals=10, max_steps=8),
        ask="action",
        turn_tokens=6,
        max_turns=8,
        warmup_examples=12_000,
        correct_fraction=0.12,
        learn_world=True,
        warmup=SftConfig(batch_size=32, learning_rate=2e-3, pack_tokens=PACK),
        rlvr=RlvrConfig(
            steps=120,
            groups=32,
            learning_rate=4e-4,
            warmup_steps=10,
            kl=0.05,
            pack_tokens=PACK,
            save_every=25,
        ),
    )


@recipe(
    hardware="1 CPU core",
    time="4 min",
    expect="exact predictions 0.25 -> 0.94 (seed 0), 0.62 on seed 11; no change 0.25",
)
def tiny_lake_model() -> Rlvr.Config:
    """A world model of frozen_lake 3x3 (no slip): what comes after this? One core, two minutes."""
    return Rlvr.Config(
        world=FrozenLake.Config(size=3, view="coordinates"),
        ask="observation",
        turn_tokens=24,
        # With half of them some seeds have not told the actions apart when RLVR begins, and stay
        # at the baseline for a hundred steps.
        warmup_examples=24_000,
        warmup=SftConfig(batch_size=32, learning_rate=1.5e-3, warmup_steps=50, pack_tokens=PACK),
        rlvr=RlvrConfig(
            steps=120, groups=32, learning_rate=4e-4, kl=0.02, pack_tokens=PACK, save_every=25
        ),
    )


@recipe(
    hardware="2 CPU cores",
    time="5 min",
    expect="see results/engine.json (random play beside it); on one fresh seed it ended at 0.75, "
    "below the bar of 0.85 (results/jobs/teaching)",
)
def tiny_lake_agent() -> Rlvr.Config:
    """An agent on frozen_lake 3x3 (no slip, five steps). Two cores, about five minutes."""
    return Rlvr.Config(
        world=FrozenLake.Config(size=3, view="coordinates", max_steps=5),
        ask="action",
        turn_tokens=6,
        max_turns=5,
        warmup_examples=16_000,
        learn_world=True,
        warmup=SftConfig(batch_size=32, learning_rate=2e-3, pack_tokens=PACK),
        rlvr=RlvrConfig(steps=350, groups=32, learning_rate=5e-4, pack_tokens=PACK, save_every=25),
    )


@recipe(
    hardware="2 CPU cores",
    time="8 min",
    expect="seed 0: counter 0.30 -> 0.95 (random 0.28), frozen_lake 0.25 -> 0.39 (random 0.24)",
)
def tiny_mixed() -> Rlvr.Config:
    """One agent for two worlds, the counter and frozen_lake 3x3. Two cores, about eight minutes."""
    counter = tiny_counter()
    return counter.replace(
        world=FrozenLake.Config(size=3, view="coordinates", max_steps=5),
        max_turns=5,
        others=(OtherWorld(world=counter.world, max_turns=counter.max_turns),),
        warmup_examples=24_000,
        rlvr=counter.rlvr.replace(steps=240),
    )
