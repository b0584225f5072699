"""World models of small worlds on one core, and agents trained behind the gate.

Their results are in results/trust_*.json.
    terrella train-world-model lake_model --out runs/lake
    terrella certify runs/lake
"""

from __future__ import annotations

from pathlib import Path

from terrella.core.world import World
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.world_model import TrainWorldModel
from terrella.recipes import recipe
from terrella.recipes.tiny import tiny_lake_agent
from terrella.world_models.imagine_gate import GatedWorld
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban

# Short packs: with a model this small, attention over a long pack costs more than the passes it
# saves.
PACK = 512

# The lake of 3x3 has about 600 validation instances. The steps that test a policy are spread over
# all steps of its episodes, so that longer episodes leave fewer of them: of ten steps each, 107 of
# the training's mixture are left, too few to show an error below 3%; of six, 128 and more.
LAKE = FrozenLake.Config(size=3, max_steps=6)


def _fitted(world: World.Config, *, transitions: int, epochs: int) -> TrainWorldModel.Config:
    return TrainWorldModel.Config(
        world=world,
        transitions=transitions,
        sft=SftConfig(
            epochs=epochs, batch_size=16, learning_rate=1e-3, warmup_steps=50, pack_tokens=PACK
        ),
        rlvr=RlvrConfig(steps=0, groups=16, learning_rate=2e-4, pack_tokens=PACK),
    )


@recipe(
    hardware="1 CPU core",
    time="2 min",
    expect="certified for 5 steps under three policies (results/trust_certificates.json)",
)
def lake_model() -> TrainWorldModel.Config:
    """A model of frozen_lake 3x3, firm ice: 12,000 real steps, two minutes on one core."""
    return _fitted(LAKE, transitions=12_000, epochs=2)


@recipe(
    hardware="1 CPU core",
    time="4 min",
    expect="not certified: 6% to 7% of the truth is missed, 3% is asked for; worst policy's "
    "coverage 0.919 of 0.9 promised (5 models; undecided; "
    "results/trust_certificates.json, trust_coverage.json)",
)
def lake_slip_model() -> TrainWorldModel.Config:
    """A model of frozen_lake 3x3 where a third of the steps slip.

    24,000 real steps, four minutes on one core.
    """
    return _fitted(FrozenLake.Config(size=3, success_rate=2 / 3), transitions=24_000, epochs=3)


@recipe(
    hardware="1 CPU core",
    time="10 s",
    expect="not certified: it is under-trained on purpose",
)
def lake_thin_model() -> TrainWorldModel.Config:
    """The lake model, deliberately under-trained.

    A fifteenth of the data, ten seconds on one core.
    """
    return _fitted(LAKE, transitions=800, epochs=3)


@recipe(
    hardware="1 CPU core",
    time="4 min",
    expect="not certified: the world has too few instances to show 3%; worst policy's "
    "coverage 0.979 of 0.9 promised (5 models; "
    "results/trust_certificates.json, trust_coverage.json)",
)
def counter_model() -> TrainWorldModel.Config:
    """A model of counter: 12,000 real steps, four minutes on one core."""
    return _fitted(Counter.Config(), transitions=12_000, epochs=6)


@recipe(
    hardware="1 CPU core",
    time="10 min",
    expect="certified for 8 steps under three policies; worst policy's coverage 0.996 of 0.9 "
    "promised (5 models; earlier calibration; "
    "results/trust_certificates.json, trust_coverage.json)",
)
def sokoban_model() -> TrainWorldModel.Config:
    """A model of sokoban 6x6: 24,000 real steps, ten minutes on one core."""
    return _fitted(Sokoban.Config(), transitions=24_000, epochs=2)


@recipe(
    hardware="1 CPU core",
    time="24 min of CPU",
    expect="real success 0.68 -> 0.85 (random 0.26; one seed; results/trust_gated_agent.json) with "
    "15,621 real and 245,223 imagined steps; needs runs/lake, certified",
)
def gated_lake_agent() -> Rlvr.Config:
    """An agent on frozen_lake behind the gate of `runs/lake` (trained and certified). One core."""
    # As `tiny_lake_agent`: after 6,000 episodes of which a fifth is right, 47 steps of RLVR stayed
    # at random play.
    agent = tiny_lake_agent()
    return agent.replace(
        world=GatedWorld.Config(world=LAKE, folder=Path("runs/lake"), max_steps=LAKE.max_steps),
        max_turns=LAKE.max_steps,
        train_instances=0,
        warmup_examples=36_000,
        warmup=agent.warmup.replace(pack_tokens=PACK),
        rlvr=agent.rlvr.replace(pack_tokens=PACK),
    )
