"""SPA with a real language model on two cores: SmolLM2-135M-Instruct, `terrella reproduce`.

A reply is a line per action with what it changes (form `steps`): about 30 tokens an episode after a
prompt of 26, where a CPU trains about a hundred tokens a second. All arms share a base that was
taught the form with made-up changes; RL alone starts from it, in the same form and the same view,
and gets as many real steps as SPA.
"""

from __future__ import annotations

from pathlib import Path

from terrella.core.types import Split
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.evals.agents import Evaluate
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.recipes import recipe
from terrella.worlds.frozen_lake import FrozenLake

PACK = 1024


@recipe(
    hardware="2 CPU cores, 8 GB",
    time="75 min a job",
    expect="no run to its end: from its 3rd batch to half of its steps, RL stays at 0.17 to 0.32 "
    "(2 runs of seed 0; random 0.25). Before RL, a choice of 16 replies by their predictions wins "
    "0.72 (1 seed)",
)
def spa_smollm2_lake() -> Reproduce.Config:
    """FrozenLake 3x3, firm ice, five actions in one reply; two cores."""
    sft = SftConfig(batch_size=8, learning_rate=2e-4, pack_tokens=PACK)
    spa = Spa.Config(
        world=FrozenLake.Config(size=3, view="compact", max_steps=5),
        model="smollm2",
        form="steps",
        thinking="off",
        max_turns=1,
        max_actions=5,
        turn_tokens=48,
        format_examples=480,
        format_sft=sft,
        self_play=SelfPlay.Config(trajectories=1600, sft=sft.replace(batch_size=2)),
        rlvr=RlvrConfig(
            reward="return",
            steps=60,
            groups=32,
            group_size=8,
            learning_rate=2e-5,
            clip_high=0.28,
            pack_tokens=PACK,
            save_every=10,
        ),
        max_env_steps=24_000,  # reached before rlvr.steps, so all arms take as many
        test=Evaluate.Config(instances=256, samples=8),
        validation=Evaluate.Config(instances=64, samples=4, split=Split.VALIDATION),
        base_cache=Path("runs/spa-smollm2-bases"),
    )
    state = spa.replace(self_play=spa.self_play.replace(trajectories=0))
    arms = {
        "base": state.replace(rlvr=spa.rlvr.replace(steps=0)),
        "vanilla": state,
        "spa": spa,
        "spa_predicted": spa.replace(form="steps_predicted"),
    }
    claims = (("spa", "vanilla", 1, False), ("spa", "base", 8, True))
    return Reproduce.Config(
        arms=arms,
        first=("base", "vanilla", "spa"),
        claims=claims,
        seeds=3,
        out=Path("runs/spa_smollm2_lake"),
    )
