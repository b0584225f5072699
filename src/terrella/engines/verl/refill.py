"""Refill on verl: groups without a gradient are replaced before a batch is taken.

A replay buffer for verl's key `custom_sampler`. verl's own filter keeps a group that holds a nan
and takes replacements from whatever tasks come next; here they are those of the TRL engine, and a
resumed run gets the same ones, because the data loader is not touched.
    trainer.v1.sampler.custom_sampler.path=pkg://terrella.engines.verl.refill
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import transfer_queue as tq
from torch import Tensor
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from terrella.algos.episode_batch import informative_groups, replacement_task
from terrella.engines.configs import RlvrConfig
from terrella.engines.verl.train_batch import (
    batch_metrics,
    episode_facts,
    group_indices,
    group_members,
    group_rewards,
)

TRAIN = "train"


class RefillBuffer(ReplayBuffer):  # type: ignore[misc]
    """verl's synchronous buffer, with `RlvrConfig.refill_rounds` rounds of replacements."""

    settings: RlvrConfig
    submit: Callable[[Sequence[int]], None]
    """Starts the groups of these tasks."""
    dropped_env_steps: int = 0
    """Real env steps of groups that were replaced; the trainer takes them into its budget."""
    first_round: dict[str, float] | None = None
    """Metrics of the batch before its refills, which would flatter them; None without rounds."""

    refilled: int = 0
    """Groups of the batch that were replaced, over all rounds."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Replace groups without a gradient, then take a batch as verl does."""
        if partition_id == TRAIN:
            self._refill(batch_size)
        return super().sample(global_steps, partition_id, batch_size)

    def _refill(self, batch_size: int) -> None:
        self.first_round, self.refilled = None, 0
        run_tasks = self.settings.steps * self.settings.groups
        for extra in range(1, self.settings.refill_rounds + 1):
            self._wait_for(batch_size)
            empty = self._groups_without_gradient()
            if not empty:
                break
            self._clear_groups(TRAIN, set(empty))
            self.refilled += len(empty)
            originals = sorted(task % run_tasks for task in empty.values())
            self.submit(
                [replacement_task(task, extra=extra, run_tasks=run_tasks) for task in originals]
            )

    def _wait_for(self, groups: int) -> None:
        """Wait until this many groups have ended and none is under way."""
        while True:
            self._sync_metadata_from_transfer_queue()
            ended = len(self.finished_keys[TRAIN]) + len(self.failure_keys[TRAIN])
            if ended >= groups and not self.pending_keys[TRAIN] and not self.running_keys[TRAIN]:
                return
            time.sleep(self.poll_interval)

    def _groups_without_gradient(self) -> dict[str, int]:
        """The uid and the task of each. A group that lost an episode is left for the trainer."""
        finished = self.finished_keys[TRAIN]
        keys = [key for key in self.partitions[TRAIN] if key.split("_")[0] in finished]
        if not keys:
            return {}
        uids, records, mask_BT = _read_records(keys)
        groups_PG = group_indices(uids, [True] * len(uids))
        episodes = episode_facts(records, mask_BT)
        rewards_PG = group_rewards(episodes, groups_PG)
        if self.first_round is None:
            self.first_round = batch_metrics(rewards_PG, records, episodes)
        members = group_members(episodes, groups_PG)
        informative = informative_groups(members, rewards_PG, self.settings)
        dropped = groups_PG[~informative].flatten().tolist()
        self.dropped_env_steps += sum(records[row]["env_steps"] for row in dropped if row >= 0)
        first_rows = groups_PG[~informative, 0].tolist()
        return {uids[row]: int(records[row]["task"]) for row in first_rows}


def _read_records(keys: list[str]) -> tuple[list[str], list[dict[str, Any]], Tensor]:
    """The uid and the record of each row, and the mask of the tokens that the model wrote."""
    fields = ["uid", "response_mask", "extra_fields"]
    data = tq.kv_batch_get(keys=keys, partition_id=TRAIN, select_fields=fields)
    mask_BT = data.select("response_mask").to_padded_tensor()["response_mask"].bool()
    records = [dict(record) for record in plain(data["extra_fields"])]
    return plain(data["uid"]), records, mask_BT


def plain(column: Any) -> list[Any]:
    """A column of Python objects as a list; the transfer queue wraps some of them."""
    return [getattr(item, "data", item) for item in column]
