"""SPA at the paper's size: four models, three worlds.

`terrella reproduce spa_qwen_1_5b_sokoban --dry-run` prints it.

Needs the weights from the hub and an H100 (the paper: 12 hours for 1.5B), four for 3B: the critic
is a second model, and 16 bytes a weight do not fit on one. The settings are the paper's: 1280
trajectories of 160 instances, 5 epochs of SFT at 1e-4, PPO with gamma = lambda = 1, clip 0.2 /
0.28, an entropy bonus of 0.001, no KL, 1e-6 for the actor and 1e-5 for the critic, the most
uncertain quarter of 32 x 8 episodes, 1000 steps. Each docstring states pass@1 / pass@8 in percent
as published: there are no seeds or intervals behind them, and FrozenLake's slip is not known (ours
has none).
"""

from __future__ import annotations

from pathlib import Path

from terrella.core.types import Split
from terrella.core.world import World
from terrella.engines.configs import RlvrConfig, SftConfig, VllmConfig
from terrella.evals.agents import Evaluate
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.recipes import recipe
from terrella.rollout.reward_shaping import RewardShaping
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban
from terrella.worlds.sudoku import Sudoku

QWEN_0_5B, QWEN_1_5B, QWEN_3B = (f"Qwen/Qwen2.5-{size}-Instruct" for size in ("0.5B", "1.5B", "3B"))
LLAMA_1B = "meta-llama/Llama-3.2-1B-Instruct"
SOKOBAN, SUDOKU = Sokoban.Config(), Sudoku.Config(max_steps=50)
LAKE, LAKE_6X6 = FrozenLake.Config(), FrozenLake.Config(size=6)
SERVER = VllmConfig(memory=0.2)
"""Beside the trainer on the same GPU: `--dry-run --on 1xH100` says what is left for each."""
FIRST = ("base", "vanilla", "spa")
CLAIMS = (("spa", "vanilla", 1, False), ("spa", "base", 8, True))
"""What the paper claims.

SPA above RL alone, and nothing lost that the base could do in eight tries.
"""


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_qwen_0_5b_sokoban() -> Reproduce.Config:
    """Base 5.5 / 25.8, vanilla RL 16.9 / 35.9, SPA 36.7 / 45.3.

    Uniform random play earns 19.5 / 49.8. GPUs.
    """
    return _paper(QWEN_0_5B, SOKOBAN, base="5.5 / 25.8", vanilla="16.9 / 35.9", spa="36.7 / 45.3")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_qwen_0_5b_frozen_lake() -> Reproduce.Config:
    """Base 8.1 / 32.8, vanilla RL 22.8 / 30.1, SPA 46.9 / 65.6. GPUs."""
    return _paper(QWEN_0_5B, LAKE, base="8.1 / 32.8", vanilla="22.8 / 30.1", spa="46.9 / 65.6")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_qwen_0_5b_sudoku() -> Reproduce.Config:
    """Base 0.0 / 0.0, vanilla RL 0.0 / 0.0, SPA 18.2 / 43.8. GPUs."""
    return _paper(QWEN_0_5B, SUDOKU, base="0.0 / 0.0", vanilla="0.0 / 0.0", spa="18.2 / 43.8")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_qwen_1_5b_sokoban() -> Reproduce.Config:
    """Base 16.3 / 47.3, vanilla RL 25.6 / 34.0, SPA 59.8 / 69.5.

    Uniform random play earns 19.5 / 49.8. GPUs.
    """
    return _paper(QWEN_1_5B, SOKOBAN, base="16.3 / 47.3", vanilla="25.6 / 34.0", spa="59.8 / 69.5")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_qwen_1_5b_frozen_lake() -> Reproduce.Config:
    """Base 17.2 / 49.2, vanilla RL 22.1 / 30.7, SPA 70.9 / 75.0. GPUs."""
    return _paper(QWEN_1_5B, LAKE, base="17.2 / 49.2", vanilla="22.1 / 30.7", spa="70.9 / 75.0")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_qwen_1_5b_sudoku() -> Reproduce.Config:
    """Base 1.6 / 11.3, vanilla RL 0.0 / 0.0, SPA 59.6 / 94.9. GPUs."""
    return _paper(QWEN_1_5B, SUDOKU, base="1.6 / 11.3", vanilla="0.0 / 0.0", spa="59.6 / 94.9")


@recipe(
    hardware="4 H100",
    time="not known",
    expect="never run here; the docstring has the published figures",
    on="4xH100",
)
def spa_qwen_3b_sokoban() -> Reproduce.Config:
    """Base 12.5 / 35.9, vanilla RL 31.4 / 35.5, SPA 49.7 / 58.2. GPUs."""
    return _paper(QWEN_3B, SOKOBAN, base="12.5 / 35.9", vanilla="31.4 / 35.5", spa="49.7 / 58.2")


@recipe(
    hardware="4 H100",
    time="not known",
    expect="never run here; the docstring has the published figures",
    on="4xH100",
)
def spa_qwen_3b_frozen_lake() -> Reproduce.Config:
    """6x6. Base 6.9 / 26.9, vanilla RL 7.6 / 16.0, SPA 41.3 / 46.1. GPUs."""
    return _paper(QWEN_3B, LAKE_6X6, base="6.9 / 26.9", vanilla="7.6 / 16.0", spa="41.3 / 46.1")


@recipe(
    hardware="4 H100",
    time="not known",
    expect="never run here; the docstring has the published figures",
    on="4xH100",
)
def spa_qwen_3b_sudoku() -> Reproduce.Config:
    """Base 0.0 / 0.0, vanilla RL 0.0 / 0.0, SPA 69.9 / 89.8. GPUs."""
    return _paper(QWEN_3B, SUDOKU, base="0.0 / 0.0", vanilla="0.0 / 0.0", spa="69.9 / 89.8")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_llama_1b_sokoban() -> Reproduce.Config:
    """Base 8.3 / 33.2, vanilla RL 21.2 / 39.8, SPA 53.0 / 68.0. GPUs."""
    return _paper(LLAMA_1B, SOKOBAN, base="8.3 / 33.2", vanilla="21.2 / 39.8", spa="53.0 / 68.0")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_llama_1b_frozen_lake() -> Reproduce.Config:
    """Base 10.2 / 41.0, vanilla RL 10.8 / 24.6, SPA 64.8 / 71.1. GPUs."""
    return _paper(LLAMA_1B, LAKE, base="10.2 / 41.0", vanilla="10.8 / 24.6", spa="64.8 / 71.1")


@recipe(
    hardware="1 H100",
    time="12 h for 1.5B",
    expect="never run here; the docstring has the published figures",
    on="1xH100",
)
def spa_llama_1b_sudoku() -> Reproduce.Config:
    """Base 0.0 / 0.0, vanilla RL 0.1 / 1.2, SPA 81.3 / 100. GPUs."""
    return _paper(LLAMA_1B, SUDOKU, base="0.0 / 0.0", vanilla="0.1 / 1.2", spa="81.3 / 100")


def _paper(model: str, world: World.Config, **published: str) -> Reproduce.Config:
    sft = SftConfig(
        epochs=5,
        batch_size=16,
        learning_rate=1e-4,
        warmup_steps=40,
        bf16=True,
        gradient_checkpointing=True,
    )
    spa = Spa.Config(
        model=model,
        sampler="vllm",
        vllm=SERVER,
        world=world.replace(view="grid_coordinates"),
        form="worldmodel",
        turn_tokens=400,
        self_play=SelfPlay.Config(trajectories=1280, per_instance=8, keep="all", sft=sft),
        rlvr=RlvrConfig(
            reward="return",
            steps=1000,
            groups=32,
            group_size=8,
            algorithm="ppo",
            critic="separate",
            lam=1.0,
            clip_high=0.28,
            keep_share=0.25,
            learning_rate=1e-6,
            critic_learning_rate=1e-5,
            entropy_bonus=1e-3,
            bf16=True,
            gradient_checkpointing=True,
            save_every=50,
            pack_tokens=4096,
        ),
        reward_shaping=RewardShaping.Config(success=0.0, turn_fine=0.1),
        validation=Evaluate.Config(instances=128, split=Split.VALIDATION),
        test=Evaluate.Config(instances=512),
    )
    told = spa.replace(form="plain", self_play=spa.self_play.replace(trajectories=0))
    vanilla = told.replace(world=world)
    arms = {
        "base": vanilla.replace(rlvr=spa.rlvr.replace(steps=0)),
        "vanilla": vanilla,
        "state": told,
        "spa": spa,
    }
    name = f"{model.split('/')[-1]}-{world.owner.__name__}".lower()
    return Reproduce.Config(
        arms=arms, first=FIRST, claims=CLAIMS, seeds=3, paper=published, out=Path("runs") / name
    )
