"""SPA's table with a model of 0.3M parameters made from scratch, on one CPU core: `terrella reproduce spa_frozen_lake`.

The base knows the format and nothing else: random actions, made-up states. All arms get the same number of real steps
of the world. docs/design/0004-spa.md says what was seen so far: no table yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from terrella.core.types import Split
from terrella.core.world import World
from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.stages.agent_pay import AgentPay
from terrella.stages.evaluate import Evaluate
from terrella.stages.reproduce import Reproduce
from terrella.stages.self_play import SelfPlay
from terrella.stages.spa import Spa
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban
from terrella.worlds.sudoku import Sudoku

# Short packs: with a model this small, attention over a long pack costs more than the passes it saves.
PACK = 512
BUDGET = 40_000
MOST_STEPS = 2000
"""RL iterations; the budget of world steps ends an arm long before."""


def spa_frozen_lake() -> Reproduce.Config:
    """FrozenLake 3x3, firm ice, 6 steps in at most 2 replies; one core, hours; not run whole yet."""
    spa = _arm(FrozenLake.Config(size=3, hole_rate=0.3, max_steps=6), turn_tokens=42, budget=BUDGET)
    paper = {"Qwen2.5-1.5B, FrozenLake 4x4": "vanilla 22.1 / 30.7, SPA 70.9 / 75.0 (pass@1 / pass@8, no seeds)"}
    return Reproduce.Config(arms=_arms(spa), paper=paper, out=Path("runs/spa_frozen_lake"))


def spa_sokoban() -> Reproduce.Config:
    """Sokoban 6x6, one box, solvable in 5 steps, 6 steps in at most 2 replies; one core, hours; not run whole yet."""
    spa = _arm(Sokoban.Config(max_steps=6, longest=5), turn_tokens=72, budget=BUDGET)
    paper = {"Qwen2.5-1.5B, Sokoban 6x6": "vanilla 25.6 / 34.0, SPA 59.8 / 69.5 (pass@1 / pass@8, no seeds)"}
    return Reproduce.Config(arms=_arms(spa), paper=paper, out=Path("runs/spa_sokoban"))


def spa_sudoku() -> Reproduce.Config:
    """Sudoku 4x4 with two blanks; one seed on one core, to see that it runs; not run whole yet."""
    spa = _arm(Sudoku.Config(blanks=2, max_steps=4), turn_tokens=180, budget=BUDGET // 4)
    arms = {name: arm for name, arm in _arms(spa, plain_tokens=100).items() if name in ("base", "vanilla", "spa")}
    return Reproduce.Config(arms=arms, seeds=1, out=Path("runs/spa_sudoku"))


def _arm(world: World.Config, *, turn_tokens: int, budget: int) -> Spa.Config:
    """SPA itself; the other arms are this with something changed or left out."""
    # Many small steps: what must be found first is how to copy a state, and that takes steps, not rows.
    sft = SftSettings.Config(batch_rows=8, learning_rate=2e-3, warmup_steps=30, pack_tokens=PACK)
    return Spa.Config(
        world=world, form="worldmodel", max_turns=2, max_actions=4, turn_tokens=turn_tokens,
        format_rows=12_000, format_sft=sft,
        self_play=SelfPlay.Config(trajectories=3000, sft=sft.replace(epochs=5, learning_rate=1.5e-3)),
        rlvr=RlvrSettings.Config(
            steps=MOST_STEPS, groups=16, group_size=8, learning_rate=3e-4, warmup_steps=5, clip_high=0.28,
            pack_tokens=PACK,
        ),
        pay=AgentPay.Config(turn_fine=0.1), budget=budget, evaluate=Evaluate.Config(instances=512, samples=8),
        glance=Evaluate.Config(instances=64, split=Split.VALIDATION),
    )  # fmt: skip


def _arms(spa: Spa.Config, *, plain_tokens: int = 12) -> dict[str, Spa.Config]:
    nothing = spa.self_play.replace(trajectories=0)
    plain: dict[str, Any] = {"form": "plain", "turn_tokens": plain_tokens, "self_play": nothing}
    base = spa.replace(**plain, rlvr=spa.rlvr.replace(steps=0))
    vanilla = spa.replace(**plain)
    coordinates = spa.world.replace(view="grid_coordinates")
    played = spa.self_play
    return {
        "base": base,
        "vanilla": vanilla,
        "spa": spa,
        "state": vanilla.replace(world=coordinates),
        "online": spa.replace(self_play=nothing, pay=spa.pay.replace(observation=0.5, prediction=0.5)),
        "masked": spa.replace(self_play=played.replace(loss="no_states")),
        "self_belief": spa.replace(self_play=played.replace(states="believed")),
        "random_actions": spa.replace(self_play=played.replace(actions="random")),
        "spa_forward": spa.replace(form="worldmodel_forward"),
        "few_trajectories": spa.replace(self_play=played.replace(trajectories=played.trajectories // 4)),
    }
