"""A rank that ends while gloo's threads still hold tensors of its last collectives.

torchrun --nproc-per-node 2 tests/support/ended_rank.py
"""

import sys

import torch
from torch import distributed

from terrella.engines.ranks import barrier, end_rank


def main() -> None:
    barrier()
    gather([distributed.new_group() for _ in range(8)])


def gather(groups: list[distributed.ProcessGroup]) -> None:
    works = []
    for group in groups:
        tensors = torch.ones(200_000), torch.empty(400_000)
        for tensor in tensors:
            tensor.mark = object()  # so that releasing it takes Python's lock
        works.append(distributed.all_gather_single(tensors[1], tensors[0], group, async_op=True))
    del tensors, tensor
    sys.setswitchinterval(1000)  # gloo's threads must wait for the lock until the process ends
    for work in works:
        work.wait()


if __name__ == "__main__":
    main()
    end_rank()
