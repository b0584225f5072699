"""SPA's table with a model of 0.3M parameters made from scratch, on one CPU core.

`terrella reproduce spa_frozen_lake`.

The base knows the format and nothing else: random actions, made-up states. All arms get the same
number of real steps of the world. States are what the world shows between the replies (form
`shown`): with tags in the replies a model this small spends its time on learning to copy
(docs/design/0004-spa.md). `online` needs the tags, and has them.
"""

from __future__ import annotations

from pathlib import Path

from terrella.core.types import Split
from terrella.core.world import World
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.evals.agents import Evaluate
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.recipes import recipe
from terrella.recipes.spa.paper import CLAIMS, FIRST
from terrella.rollout.reward_shaping import RewardShaping
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban
from terrella.worlds.sudoku import Sudoku

PACK = 2048
MOST_STEPS = 2000
"""RL iterations; the budget of world steps ends an arm long before."""
ABLATIONS = tuple(
    ("spa", other, 1, False) for other in ("state", "masked", "self_belief", "online")
)
"""Claims beyond the paper's: SPA beats each ablation."""


@recipe(
    hardware="1 CPU core",
    time="4 min a job",
    expect="SPA 0.545, vanilla RL 0.234, pass@1 (5 seeds, 3x3)",
)
def spa_frozen_lake() -> Reproduce.Config:
    """FrozenLake 3x3, firm ice, five steps; one core, about four minutes an arm and seed."""
    spa = _arm(
        FrozenLake.Config(size=3, view="coordinates", max_steps=5), max_turns=5, budget=110_000
    )
    paper = {
        "Qwen2.5-1.5B, FrozenLake 4x4": (
            "vanilla 22.1 / 30.7, SPA 70.9 / 75.0 (pass@1 / pass@8, no seeds)"
        )
    }
    return _comparison(
        _arms(spa, raw_view="grid"), paper, "runs/spa_frozen_lake", quick_budget=90_000
    )


@recipe(
    hardware="1 CPU core",
    time="5 to 10 min a job",
    expect="SPA 0.813, vanilla RL 0.295, pass@1 (3 seeds, rooms of <= 3 steps)",
)
def spa_sokoban() -> Reproduce.Config:
    """Sokoban 6x6, one box, solvable in three steps, four allowed.

    One core, about five minutes an arm and seed.
    """
    spa = _arm(
        Sokoban.Config(view="coordinates", max_steps=4, longest=3), max_turns=4, budget=140_000
    )
    paper = {
        "Qwen2.5-1.5B, Sokoban 6x6": (
            "vanilla 25.6 / 34.0, SPA 59.8 / 69.5 (pass@1 / pass@8, no seeds)"
        )
    }
    return _comparison(_arms(spa, raw_view="grid"), paper, "runs/spa_sokoban", quick_budget=80_000)


@recipe(
    hardware="1 CPU core",
    time="10 min",
    expect="learns nothing at this size (1 seed)",
)
def spa_sudoku() -> Reproduce.Config:
    """Sudoku 4x4 with two blanks; one seed on one core, to see that it runs."""
    spa = _arm(Sudoku.Config(blanks=2, max_steps=3), max_turns=3, budget=60_000)
    arms = {name: arm for name, arm in _arms(spa).items() if name in ("base", "vanilla", "spa")}
    return Reproduce.Config(
        arms=arms, first=FIRST, claims=CLAIMS, seeds=1, out=Path("runs/spa_sudoku")
    )


def _comparison(
    arms: dict[str, Spa.Config], paper: dict[str, str], out: str, *, quick_budget: int
) -> Reproduce.Config:
    brief = (f"max_env_steps={quick_budget}", "test.instances=256", "test.samples=8")
    return Reproduce.Config(
        arms=arms,
        first=FIRST,
        claims=(*CLAIMS, *ABLATIONS),
        brief=brief,
        paper=paper,
        out=Path(out),
    )


def _arm(world: World.Config, *, max_turns: int, budget: int) -> Spa.Config:
    """SPA itself; the other arms are this with something changed or left out."""
    sft = SftConfig(batch_size=32, learning_rate=2e-3, pack_tokens=PACK)
    return Spa.Config(
        world=world,
        form="shown",
        max_turns=max_turns,
        max_actions=1,
        turn_tokens=6,
        format_examples=4_000,
        format_sft=sft,
        self_play=SelfPlay.Config(trajectories=6_000, sft=sft.replace(epochs=3)),
        rlvr=RlvrConfig(
            reward="return",
            steps=MOST_STEPS,
            groups=32,
            group_size=8,
            learning_rate=5e-4,
            clip_high=0.28,
            pack_tokens=PACK,
            save_every=50,
        ),
        max_env_steps=budget,
        test=Evaluate.Config(instances=512, samples=16),
        validation=Evaluate.Config(instances=128, split=Split.VALIDATION),
    )


def _arms(spa: Spa.Config, *, raw_view: str = "") -> dict[str, Spa.Config]:
    """The paper's arms.

    Vanilla RL sees the raw board; state-estimation RL and SPA see coordinates.
    """
    played = spa.self_play
    state = spa.replace(self_play=played.replace(trajectories=0))
    vanilla = state.replace(world=spa.world.replace(view=raw_view)) if raw_view else state
    told = {
        "form": "worldmodel_forward",
        "turn_tokens": 64,
        "reward_shaping": RewardShaping.Config(turn_fine=0.1, prediction=0.5),
    }
    return {
        "base": state.replace(rlvr=spa.rlvr.replace(steps=0)),
        "vanilla": vanilla,
        "spa": spa,
        "state": state,
        "masked": spa.replace(self_play=played.replace(loss="no_states")),
        "self_belief": spa.replace(self_play=played.replace(states="believed")),
        "online": state.replace(**told),
        "spa_1500": spa.replace(self_play=_fewer(played, 4)),
        "spa_3000": spa.replace(self_play=_fewer(played, 2)),
        "echo": state.replace(rlvr=spa.rlvr.replace(world_loss=0.5)),
        "random_coordinates": spa.replace(self_play=played.replace(states="random_coordinates")),
        "random_actions": spa.replace(self_play=played.replace(actions="random")),
        "spa_tagged": spa.replace(form="worldmodel", turn_tokens=64),
        "spa_forward": spa.replace(form="worldmodel_forward", turn_tokens=64),
        "spa_raw": spa.replace(world=vanilla.world),
    }


def _fewer(played: SelfPlay.Config, times: int) -> SelfPlay.Config:
    """Fewer trajectories, as many optimiser steps: the sweep is about data, not about time."""
    sft = played.sft.replace(epochs=played.sft.epochs * times)
    return played.replace(trajectories=played.trajectories // times, sft=sft)
