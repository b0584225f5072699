"""Models of 0.3M parameters made from scratch: a rising curve on two CPU cores in minutes."""

from __future__ import annotations

from terrella.engines.trl.rlvr_trainer import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.stages.rlvr import Rlvr
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake


def tiny_counter() -> Rlvr.Config:
    """An agent brings a counter to its goal. Two cores, about 3 minutes; reward from < 0.3 to > 0.9."""
    return Rlvr.Config(
        world=Counter.Config(), ask="action", warmup_rows=3000, turn_tokens=6,
        warmup=SftSettings.Config(batch_rows=64, learning_rate=3e-3),
        rlvr=RlvrSettings.Config(steps=80, groups=16, group_size=8, learning_rate=1e-3),
    )  # fmt: skip


def tiny_lake_model() -> Rlvr.Config:
    """A world model of frozen_lake 4x4 (no slip): what comes after this action?"""
    return Rlvr.Config(
        world=FrozenLake.Config(), ask="observation", warmup_rows=3000, turn_tokens=32,
        warmup=SftSettings.Config(batch_rows=64, learning_rate=3e-3),
        rlvr=RlvrSettings.Config(steps=150, groups=32, group_size=8, learning_rate=1e-3),
    )  # fmt: skip


def tiny_lake_agent() -> Rlvr.Config:
    """An agent on frozen_lake 4x4 (no slip)."""
    return Rlvr.Config(
        world=FrozenLake.Config(), ask="action", warmup_rows=3000, turn_tokens=6,
        warmup=SftSettings.Config(batch_rows=64, learning_rate=3e-3),
        rlvr=RlvrSettings.Config(steps=150, groups=32, group_size=8, learning_rate=1e-3),
    )  # fmt: skip
