"""Rank 0 comes to a barrier later than a collective would wait for it.

Started on two processes; MASTER_ADDR and MASTER_PORT say where they meet.
"""

import os
import time
from datetime import timedelta

from torch import distributed

from terrella.engines.ranks import barrier, end_rank

LIMIT = 20.0
"""Seconds; also those that the ranks have to meet on a busy machine."""


def main() -> None:
    distributed.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    if os.environ["RANK"] == "0":
        time.sleep(LIMIT + 4.0)
    barrier()
    barrier()  # another one, of other arrivals


if __name__ == "__main__":
    main()
    end_rank()
