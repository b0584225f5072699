"""One rank of a whole RLVR run with its warm-up; it writes its result beside the folder.

torchrun --nproc-per-node 2 tests/support/rlvr_ranks.py OUT
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.instances import plain
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.ranks import end_rank
from terrella.pipelines.rlvr import Rlvr
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter


def slow_writes() -> None:
    """Make writes so slow that both processes are in the middle of one at the same time."""
    sync = os.fsync

    def slowly(handle: int) -> None:
        time.sleep(0.5)
        sync(handle)

    os.fsync = slowly


def main(out: Path) -> None:
    """A few steps of each part; every rank writes its result beside the folder."""
    slow_writes()
    config = Rlvr.Config(
        world=Counter.Config(goals=3, max_steps=3),
        ask="action",
        turn_tokens=4,
        max_turns=2,
        warmup_examples=64,
        evaluate_on=4,
        warmup=SftConfig(batch_size=16),
        rlvr=RlvrConfig(steps=2, groups=2, group_size=4),
        out=out,
    )
    result = Rlvr(config).run(SilentProgress())
    rank = os.environ.get("RANK", "0")
    out.with_suffix(f".{rank}.json").write_text(json.dumps(plain(result)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
