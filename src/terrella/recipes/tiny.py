"""Models of 0.3M parameters made from scratch: a rising curve on two CPU cores in minutes.

What each reached, seed by seed, stands in results/engine.json (`python results/measure_engine.py curves`).
"""

from __future__ import annotations

from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.stages.rlvr import Rlvr
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake

# Short packs: with a model this small, attention over a long pack costs more than the passes it saves.
PACK = 512


def tiny_counter() -> Rlvr.Config:
    """An agent that brings a counter to its goal. Two cores, about five minutes. Rises, then falls back: not solved."""
    return Rlvr.Config(
        world=Counter.Config(), ask="action", turn_tokens=6, warmup_rows=4000,
        warmup=SftSettings.Config(batch_rows=32, learning_rate=2e-3, pack_tokens=PACK),
        rlvr=RlvrSettings.Config(steps=110, groups=16, learning_rate=5e-4, pack_tokens=PACK, save_every=25),
    )  # fmt: skip


def tiny_lake_model() -> Rlvr.Config:
    """A world model of frozen_lake 3x3 (no slip): what comes after this? One core, five minutes; see results."""
    return Rlvr.Config(
        world=FrozenLake.Config(size=3), ask="observation", turn_tokens=24, warmup_rows=24_000,
        warmup=SftSettings.Config(batch_rows=32, learning_rate=1.5e-3, warmup_steps=50, pack_tokens=PACK),
        rlvr=RlvrSettings.Config(steps=450, groups=32, learning_rate=4e-4, pack_tokens=PACK, save_every=25),
    )  # fmt: skip


def tiny_lake_agent() -> Rlvr.Config:
    """An agent on frozen_lake 3x3 (no slip, four steps). Two cores, two minutes. Does not learn yet: 0.22 to 0.23."""
    return Rlvr.Config(
        world=FrozenLake.Config(size=3, max_steps=4), ask="action", turn_tokens=6, max_turns=4,
        warmup_rows=6_000, warmup=SftSettings.Config(batch_rows=32, learning_rate=1.5e-3, pack_tokens=PACK),
        rlvr=RlvrSettings.Config(steps=150, groups=16, learning_rate=4e-4, pack_tokens=PACK, save_every=25),
    )  # fmt: skip
