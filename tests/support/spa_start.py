"""One rank of a paper-size SPA recipe with a stand-in for its model: a step of every part.

torchrun --nproc-per-node 2 tests/support/spa_start.py FOLDER/NAME.json
$RECIPE, $STAND_IN (a folder) and $ENGINE (trl or verl) say what is run. Precision, form, PPO with
its critic, entropy bonus, filter and shaping stay as they are; only sizes are smaller.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support import verl_cpu

from terrella.core.config_override import override
from terrella.core.files import read_json_lines
from terrella.core.instances import plain
from terrella.engines.configs import VllmConfig
from terrella.engines.ranks import end_rank
from terrella.pipelines.spa.pipeline import Spa
from terrella.recipes import find_recipe
from terrella.show.progress import SilentProgress


def small(recipe: str, model: str, engine: str, folder: Path) -> Spa.Config:
    """The recipe's own arm at small size."""
    arm = find_recipe(recipe)().arms["spa"]
    few = {"instances": 2, "samples": 2}
    config = arm.replace(
        model=model,
        sampler="local",
        vllm=VllmConfig(),
        max_turns=2,
        turn_tokens=24,
        self_play=arm.self_play.replace(
            trajectories=8,
            per_instance=2,
            sft=arm.self_play.sft.replace(epochs=1, batch_size=4, warmup_steps=0),
        ),
        rlvr=arm.rlvr.replace(steps=1, groups=8, group_size=4, learning_rate=1e-4),
        validation=arm.validation.replace(**few),
        test=arm.test.replace(**few),
        base_cache=folder / "bases",
        out=folder / "run",
    )
    if engine == "verl":
        settings = (*verl_cpu.ENGINE_SETTINGS, *verl_cpu.LOCAL)
        config = override(config, (*settings, "verl.prompt_tokens=1024"))
    return config


def main(report: Path) -> None:
    environment = [os.environ[name] for name in ("RECIPE", "STAND_IN", "ENGINE")]
    config = small(*environment, report.with_suffix(""))
    result = Spa(config).run(SilentProgress())
    rank = os.environ.get("RANK", "0")
    told = {"result": plain(result), "curve": read_json_lines(config.out / "curve.jsonl")}
    report.with_suffix(f".{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
