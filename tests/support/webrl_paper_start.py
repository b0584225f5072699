"""One rank of a WebRL recipe of paper size with a stand-in for its model: every part of two phases.

torchrun --nproc-per-node 2 tests/support/webrl_paper_start.py FOLDER/NAME.json
$RECIPE and $STAND_IN (a folder) say what is run. Precision, template, losses, judge, curriculum and
lengths stay as they are; the sites are a page without a browser, and counts are smaller.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.button_world import ButtonWorld
from tests.support.fsdp_on_cpu import allow_fsdp_on_cpu
from torch.distributed.tensor import DTensor

from terrella.core.instances import plain
from terrella.engines.ranks import end_rank
from terrella.engines.trl.learner import TrlLearner
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.recipes import find_recipe
from terrella.rollout.env_pool import EnvPool
from terrella.show.progress import SilentProgress


def small(recipe: str, model: str, folder: Path) -> WebRl.Config:
    config: WebRl.Config = find_recipe(recipe)()
    agent = config.agent
    written = config.practice.instructions.replace(turns=1, reply_tokens=24)
    return config.replace(
        model=model,
        sampler="local",
        agent=agent.replace(
            turn_tokens=24,
            env_pool=EnvPool.Config(),
            training=replace(agent.training, pack_tokens=1024),
            critic=replace(agent.critic, pack_tokens=1024),
            judge=replace(agent.judge, pack_tokens=1024),
        ),
        families={"buttons": ButtonWorld.Config()},
        slots=4,
        demonstrations=4,
        imitation_updates=12,
        practice=config.practice.replace(instructions=written),
        outcome_model=config.outcome_model.replace(attempts=8, epochs=1, batch=4),
        phases=2,
        phase_steps=6,
        validation=0,
        test=2,
        learner=config.learner.replace(batch=4, imitation_learning_rate=3e-3),
        base_cache=folder / "bases",
        out=folder / "run",
    )


def watch_sharding() -> list[bool]:
    """For each learner that ends: whether all that it trained was sharded."""
    found: list[bool] = []
    close = TrlLearner.close

    def watched(learner: TrlLearner) -> None:
        found.append(all(isinstance(weight, DTensor) for weight in learner.model.parameters()))
        close(learner)

    TrlLearner.close = watched
    return found


def main(report: Path) -> None:
    allow_fsdp_on_cpu()
    sharded = watch_sharding()
    config = small(os.environ["RECIPE"], os.environ["STAND_IN"], report.with_suffix(""))
    result = WebRl(config).run(SilentProgress())
    rank = os.environ.get("RANK", "0")
    told = plain(result) | {"sharded": bool(sharded) and all(sharded)}
    report.with_suffix(f".{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
