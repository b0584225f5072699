"""Where every random number comes from: streams by tag, and ranges of instance seeds.

Two rules keep runs repeatable. A random stream is a function of a tag and some seeds; no global
generator is read or written. The instances of a run are numbered, and each use has a range of its
own, so that no use meets the instances of another one by number.
    rng = stream(TASK_STREAM, seed, index)
    seed = instance_seed(seed=1, index=WARMUP_FIRST + 7)
"""

from __future__ import annotations

import numpy as np

# Streams of one seed are kept apart by a tag: the instance, the noise and the policy never share
# numbers.
(
    INSTANCE_STREAM,
    NOISE_STREAM,
    POLICY_STREAM,
    CORRUPTION_STREAM,
    SAMPLE_STREAM,
    TASK_STREAM,
    THINNING_STREAM,
) = range(1, 8)

SEED_STRIDE = 2**32
"""Instance seeds per run seed. Runs with different seeds never meet the same instance by number."""
RUN_OFFSET = 2**30
"""Added to run seeds from 1 on.

`stream` reads a seed in parts of 32 bits, so the stream of seed i + k * 2^32 is that of seed i with
one more number k: without the offset, run k would meet what run 0 draws at its k-th attempt.
"""

NOISE_STRIDE = 1000
"""Noise seeds per instance or task: the episodes of one never share noise with another's."""

# Ranges inside one stride, by use. RL's tasks and validation count from 0.
SELF_PLAY_FIRST = 2**30
WARMUP_FIRST = 2**31
CERTIFY_FIRST = 3 * 2**30


def stream(tag: int, *seeds: int) -> np.random.Generator:
    """An independent random generator for a tag and some seeds."""
    return np.random.default_rng([tag, *(seed % 2**63 for seed in seeds)])


def instance_seed(seed: int, index: int) -> int:
    """The seed of instance `index` in a run with this seed."""
    if not 0 <= index < SEED_STRIDE:
        raise ValueError(f"instance {index} is outside [0, 2^32), the range of one run seed")
    return (seed + RUN_OFFSET if seed else 0) * SEED_STRIDE + index
