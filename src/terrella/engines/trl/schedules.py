"""When episodes are played: between two training steps, or beside them.

`SyncSchedule` samples a batch, then the trainer learns from it: every token is of the current
weights, and a resumed run is bit-identical. `AsyncSchedule` plays on while the trainer learns; this
pays where worlds are slow. It gives up bit-identical results: which groups a step gets depends on
which finish first. A killed run loses no task, because those under way are played again.
    schedule = make_schedule(trainer, sampler)
    episodes, rewards = schedule.episodes(task_indices)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from terrella.core.tokens import TokenEpisode
from terrella.engines.local.local_sampler import LocalSampler
from terrella.engines.refill import Played, refill
from terrella.engines.trl import pack_passes
from terrella.engines.trl.rlvr_batch import episode_metrics, group_rewards
from terrella.engines.trl.sampling_mode import sampling_mode
from terrella.rollout.background_rollout import BackgroundRollout


class Schedule(Protocol):
    """Where the trainer gets its episodes from."""

    version: int
    """The version of the weights that the sampler has."""

    def episodes(self, indices: Sequence[int]) -> Played:
        """The episodes of a step. All processes call it together."""
        ...

    def progress(self) -> dict[str, Any]:
        """What a resumed run needs."""
        ...

    def resume(self, progress: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def make_schedule(trainer: Any, sampler: Any) -> Schedule:
    """The schedule that the trainer's config names."""
    if trainer.rlvr.schedule == "async":
        return AsyncSchedule(trainer, sampler)
    return SyncSchedule(trainer, sampler)


def batch_metrics(
    trainer: Any, episodes: Sequence[TokenEpisode], rewards: Tensor
) -> dict[str, float]:
    """Metrics of the episodes that were played, over all processes."""
    return episode_metrics(episodes, rewards, trainer.accelerator, trainer.rollout.worlds)


def send_weights(trainer: Any, sampler: Any) -> None:
    """Give the sampler the trainer's weights, and add the time that this takes."""
    began = time.perf_counter()
    with trainer.watchdog.phase("sync"):
        pack_passes.send_weights(trainer.accelerator, trainer.policy, sampler)
    trainer.add_metrics(**{"seconds/sync": time.perf_counter() - began})


class SyncSchedule:
    """Sample with the current weights, then train."""

    version = 0

    def __init__(self, trainer: Any, sampler: Any) -> None:
        self.trainer = trainer
        self.sampler = sampler

    def episodes(self, indices: Sequence[int]) -> Played:
        """Episodes of these tasks. A group without any signal is replaced by another task's."""
        if hasattr(self.sampler, "load_weights"):
            send_weights(self.trainer, self.sampler)
        began = time.perf_counter()
        with self.trainer.watchdog.phase("generate"), self._sampling():
            played = self._refilled(indices)
        self.trainer.add_metrics(**{"seconds/generate": time.perf_counter() - began})
        return played

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """The model or the server is ready to sample; afterwards its memory is free for training.

        Processes leave together: one that trains would wait for collectives of the others.
        """
        accelerator = self.trainer.accelerator
        if not isinstance(self.sampler, LocalSampler):
            yield
            accelerator.wait_for_everyone()
            if accelerator.is_main_process and hasattr(self.sampler, "sleep"):
                self.sampler.sleep()
            return
        with sampling_mode(self.trainer.policy):
            yield
            self.sampler.forget()
            accelerator.wait_for_everyone()

    def _refilled(self, indices: Sequence[int]) -> Played:
        trainer, rlvr = self.trainer, self.trainer.rlvr
        episodes, rewards = self.play(indices)
        # Before the refills: they would flatter the metrics.
        trainer.add_metrics(**batch_metrics(trainer, episodes, rewards))
        count = refill(self.play, episodes, rewards, indices, rlvr)
        if rlvr.refill_rounds:
            replaced = torch.tensor(float(count), device=trainer.accelerator.device)
            trainer.add_metrics(refilled=float(trainer.accelerator.reduce(replaced)))
        return episodes, rewards

    def play(self, indices: Sequence[int]) -> Played:
        """The groups of these tasks."""
        trainer = self.trainer
        episodes = trainer.rollout.run(
            self.sampler,
            [trainer.tasks(index) for index in indices],
            group_size=trainer.rlvr.group_size,
            seed=trainer.seed,
        )
        return episodes, group_rewards(episodes, trainer.rlvr)

    def progress(self) -> dict[str, Any]:
        return {}

    def resume(self, progress: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class AsyncSchedule:
    """Play while the trainer learns; the sampler has weights of its own."""

    def __init__(self, trainer: Any, sampler: Any) -> None:
        self.trainer = trainer
        self.sampler = sampler
        self.version = 0
        accelerator, rlvr = trainer.accelerator, trainer.rlvr
        ranks, rank = accelerator.num_processes, accelerator.process_index
        self.playing = BackgroundRollout(
            trainer.rollout,
            sampler,
            trainer.tasks,
            lambda index: index * ranks + rank,
            per_step=rlvr.groups // ranks,
            group_size=rlvr.group_size,
            staleness=rlvr.staleness,
            total=rlvr.batches * rlvr.groups // ranks,
            seed=trainer.seed,
        )
        self._open = contextlib.ExitStack()
        self._started = False

    def episodes(self, indices: Sequence[int]) -> Played:
        """The groups of the next step; `indices` are not used: tasks are started ahead of time."""
        trainer = self.trainer
        if not self._started:
            send_weights(trainer, self.sampler)
            self._open.enter_context(self.playing)
            self._started = True
        else:
            self.playing.publish(lambda: send_weights(trainer, self.sampler))
            self.version += 1
        began = time.perf_counter()
        with trainer.watchdog.phase("generate"):
            groups = self.playing.take()
        # What the trainer waited for, not what playing took.
        trainer.add_metrics(**{"seconds/generate": time.perf_counter() - began})
        episodes = [episode for group in groups for episode in group.episodes]
        rewards = group_rewards(episodes, trainer.rlvr)
        trainer.add_metrics(**batch_metrics(trainer, episodes, rewards))
        ages = torch.tensor([float(self.version - group.oldest) for group in groups])
        everyone = trainer.accelerator.gather(ages.to(trainer.accelerator.device))
        trainer.add_metrics(
            **{"staleness/mean": float(everyone.mean()), "staleness/max": float(everyone.max())}
        )
        return episodes, rewards

    def progress(self) -> dict[str, Any]:
        """The tasks of each process that were started and not taken. All processes call it."""
        own = self.playing.progress()
        # Between two steps each process has the same number of groups under way.
        numbers = torch.tensor([own["started"], own["taken"], *own["open"]])
        device = self.trainer.accelerator.device
        everyone = self.trainer.accelerator.gather(numbers[None].to(device)).tolist()
        return {"tasks": everyone}

    def resume(self, progress: dict[str, Any]) -> None:
        started, taken, *unfinished = progress["tasks"][self.trainer.accelerator.process_index]
        self.playing.resume({"started": started, "taken": taken, "open": unfinished})

    def close(self) -> None:
        self._open.close()
        self._started = False
