"""Groups without any signal are replaced by groups of other tasks, round by round.

replaced = refill(play, episodes, rewards, indices, config)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from terrella.algos.episode_batch import informative_groups, replacement_task
from terrella.core.tokens import TokenEpisode
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.rlvr_batch import batch_facts

Played = tuple[list[TokenEpisode], Tensor]


def refill(
    play: Callable[[Sequence[int]], Played],
    episodes: list[TokenEpisode],
    rewards: Tensor,
    indices: Sequence[int],
    config: RlvrConfig,
) -> int:
    """Replace such groups in place; returns how many groups were played for it."""
    size, replaced = config.group_size, 0
    run_tasks = config.steps * config.groups
    for extra in range(1, config.refill_rounds + 1):
        informative = informative_groups(batch_facts(episodes, config), rewards, config)
        empty = (~informative).nonzero().flatten().tolist()
        if not empty:
            break
        replaced += len(empty)
        refills, refill_rewards = play(
            [replacement_task(indices[n], extra=extra, run_tasks=run_tasks) for n in empty]
        )
        for source, target in enumerate(empty):
            group = refills[source * size : (source + 1) * size]
            episodes[target * size : (target + 1) * size] = group
            rewards[target] = refill_rewards[source]
    return replaced
