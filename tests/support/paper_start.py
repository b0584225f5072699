"""One rank of a paper-size text-game recipe with a stand-in for its model: a step of every part.

torchrun --nproc-per-node 2 tests/support/paper_start.py FOLDER/NAME.json
$RECIPE, $STAND_IN (a folder), $TEACHER (an address) and $ENGINE (trl or verl) say what is run. The
recipe's precision, adapters, KL, prompt and format stay as they are; only sizes are smaller.
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
from terrella.engines.ranks import end_rank
from terrella.pipelines.text_games.pipeline import TextGameModel
from terrella.recipes import find_recipe
from terrella.show.progress import SilentProgress

PROMPT_TOKENS = 1792


def small(recipe: str, model: str, teacher: str, engine: str, folder: Path) -> TextGameModel.Config:
    """The recipe's RLVR arm at small size."""
    arm = find_recipe(recipe)().arms["exact"]
    config = arm.replace(
        model=model,
        teacher=arm.teacher.replace(url=teacher, tries=1),
        world=arm.world.replace(gold_share=0.0),
        states=4,
        actions=2,
        turn_tokens=64,
        test_records=4,
        sampler="local",
        sft=arm.sft.replace(epochs=1, batch_size=4, warmup_steps=0),
        rlvr=arm.rlvr.replace(steps=1, mini_batches=1, groups=4, learning_rate=1e-3),
        base_cache=folder / "bases",
        out=folder / "run",
    )
    if engine == "verl":
        settings = (*verl_cpu.ENGINE_SETTINGS, *verl_cpu.LOCAL)
        config = override(config, (*settings, f"verl.prompt_tokens={PROMPT_TOKENS}"))
    return config


def main(report: Path) -> None:
    environment = [os.environ[name] for name in ("RECIPE", "STAND_IN", "TEACHER", "ENGINE")]
    config = small(*environment, report.with_suffix(""))
    result = TextGameModel(config).run(SilentProgress())
    rank = os.environ.get("RANK", "0")
    told = {
        "result": plain(result),
        "curve": read_json_lines(config.out / "curve.jsonl"),
        "alpha": config.sft.lora_alpha,
    }
    report.with_suffix(f".{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
