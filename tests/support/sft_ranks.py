"""One process of SFT on five items of different lengths; writes its losses and the model.

torchrun --nproc-per-node 2 tests/support/sft_ranks.py OUT.json
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.tiny_model import tiny_model

from terrella.core.tokens import TrainExample
from terrella.engines.configs import SftConfig
from terrella.engines.ranks import end_rank
from terrella.engines.trl.sft_trainer import SftTrainer

ITEMS = [
    TrainExample(
        prompt_ids=(5, 6 + size), completion_ids=tuple(range(9, 9 + size)), mask=[True] * size
    )
    for size in (2, 3, 5, 8, 13)
]


def main(out: Path) -> None:
    """Three epochs of two steps."""
    model, tokenizer = tiny_model()
    config = SftConfig(epochs=3, batch_size=4, learning_rate=1e-3, warmup_steps=0)
    work = out.with_name(f"{out.stem}-work")
    trainer = SftTrainer(model, tokenizer, config, ITEMS, work, seed=0)
    trainer.fit(out.with_suffix(""))
    rows = [row for row in trainer.state.log_history if "loss" in row]
    report = {name: [row[name] for row in rows] for name in ("loss", "grad_norm")}
    out.with_suffix(f".{os.environ.get('RANK', '0')}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
