"""Models of 0.3M parameters made from scratch: a rising curve on two CPU cores in minutes.

What each reached, seed by seed, stands in results/engine.json (`python results/measure_engine.py curves`). Both agents
first fit what the world shows (`learn_world`): without it a model this small never tells one state from another, and
RLVR ends in the same action everywhere. A slight KL keeps the counter from doing the same.
"""

from __future__ import annotations

from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.stages.rlvr import Rlvr
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake

# Enough for a whole batch of rows: attention is computed group by group, so longer packs cost nothing.
PACK = 2048


def tiny_counter() -> Rlvr.Config:
    """An agent that brings a counter to its goal. Two cores, about five minutes."""
    return Rlvr.Config(
        world=Counter.Config(goals=10, max_steps=8), ask="action", turn_tokens=6, max_turns=8,
        warmup_rows=12_000, hint=0.12, learn_world=True,
        warmup=SftSettings.Config(batch_rows=32, learning_rate=2e-3, pack_tokens=PACK),
        rlvr=RlvrSettings.Config(
            steps=120, groups=32, learning_rate=4e-4, warmup_steps=10, kl=0.05, pack_tokens=PACK, save_every=25
        ),
    )  # fmt: skip


def tiny_lake_model() -> Rlvr.Config:
    """A world model of frozen_lake 3x3 (no slip): what comes after this? One core, two minutes."""
    return Rlvr.Config(
        world=FrozenLake.Config(size=3, view="coordinates"), ask="observation", turn_tokens=24, warmup_rows=11_000,
        warmup=SftSettings.Config(batch_rows=32, learning_rate=1.5e-3, warmup_steps=50, pack_tokens=PACK),
        rlvr=RlvrSettings.Config(
            steps=150, groups=32, learning_rate=4e-4, kl=0.02, pack_tokens=PACK, save_every=25
        ),
    )  # fmt: skip


def tiny_lake_agent() -> Rlvr.Config:
    """An agent on frozen_lake 3x3 (no slip, five steps). Two cores, about five minutes."""
    return Rlvr.Config(
        world=FrozenLake.Config(size=3, view="coordinates", max_steps=5), ask="action", turn_tokens=6, max_turns=5,
        warmup_rows=16_000, learn_world=True,
        warmup=SftSettings.Config(batch_rows=32, learning_rate=2e-3, pack_tokens=PACK),
        rlvr=RlvrSettings.Config(
            steps=350, groups=32, learning_rate=5e-4, pack_tokens=PACK, save_every=25
        ),
    )  # fmt: skip
