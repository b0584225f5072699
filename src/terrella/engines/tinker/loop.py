"""RLVR at an endpoint: play and verify episodes here, reinforce the better ones there.

Worlds, verifiers, filters, credit and losses run in this process and are those of the other
engines; the endpoint samples tokens and moves an adapter.
    loop = RlvrLoop(trainer, rollout, tasks, config, saved, seed=0, budget=budget)
    loop.run(show)
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from terrella.algos.diagnostics import CollapseWatch, MaskWatch, check_mismatch
from terrella.algos.episode_batch import (
    TokenCounts,
    chosen_groups,
    token_counts,
)
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.losses import LossInputs, importance_weights, k3, policy_loss
from terrella.core.tokens import Task, TokenEpisode
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import RlvrConfig
from terrella.engines.refill import refill
from terrella.engines.tinker.rows import PaddedRows
from terrella.engines.tinker.sampler import TinkerSampler
from terrella.engines.tinker.sft import Show
from terrella.engines.tinker.trainer import (
    AdapterTrainer,
    SavedProgress,
    adapter_logprobs,
    constant_rate,
)
from terrella.engines.training_parts import warmup_within
from terrella.engines.trl.rlvr_batch import (
    ScoredEpisode,
    batch_facts,
    episode_metrics,
    group_rewards,
    scored_mini_batches,
    train_examples,
)
from terrella.rollout.rollout import Rollout
from terrella.rollout.watchdog import Watchdog

logger = logging.getLogger("terrella")

Recorder = Callable[[int, Sequence[TokenEpisode], Sequence[ScoredEpisode]], None]


@dataclass(slots=True)
class Batch:
    """The episodes of a mini-batch as rows, with what stays fixed while they are trained on."""

    rows: PaddedRows
    old_M: Tensor
    """Log-probabilities before the first update."""
    reference_M: Tensor | None
    """Log-probabilities under the starting model, for the KL penalty."""
    metrics: dict[str, float]


class RlvrLoop:
    """Plays, scores and trains, step by step."""

    def __init__(  # noqa: PLR0913  what is trained, on which tasks, how, from where
        self,
        trainer: AdapterTrainer,
        rollout: Rollout,
        tasks: Callable[[int], Task],
        config: RlvrConfig,
        saved: SavedProgress,
        *,
        seed: int,
        budget: EnvStepBudget,
        reference: Any = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`reference` is an adapter that stays at the start, for kl > 0."""
        limits = rollout.config
        config.check_rollout(temperature=limits.temperature, history=limits.history)
        self.trainer = trainer
        self.rollout = rollout
        self.tasks = tasks
        self.config = config
        self.warmup = warmup_within(config.warmup_steps, config.steps)
        self.saved = saved
        self.seed = seed
        self.budget = budget
        self.reference = reference
        self.recorder = recorder
        self.watchdog = rollout.watchdog = Watchdog(limit=config.hang_limit)
        self.watch = CollapseWatch()
        self.collapse: str | None = None
        self.mask_watch = MaskWatch()
        self.masks: str | None = None
        """The first warning that masked verdicts have become more."""
        self.mini_batches: list[Batch | None] = []
        """Mini-batches of the newest episodes; None where no episode of a part has a gradient."""
        self.metrics: dict[str, float] = {}
        if saved.step:
            budget.spent = saved.env_steps
            for row in saved.curve:
                self._watch(row)

    def run(self, show: Show) -> int:
        """Train from the saved step to the end or to the budget's; returns the steps done."""
        with self.watchdog:
            return self._run(show)

    def _run(self, show: Show) -> int:
        config, step = self.config, self.saved.step
        while step < config.steps and not self.budget.is_used_up:
            row = self._step(step)
            step += 1
            self.saved.curve.append(row)
            self._watch(row)
            show(step, row)
            if config.save_every and step % config.save_every == 0:
                self._save(step)
        self._save(step)
        return step

    def _save(self, step: int) -> None:
        with self.watchdog.phase("save"):
            self.saved.save(self.trainer.adapter, step, env_steps=self.budget.total)

    def _step(self, step: int) -> dict[str, float]:
        self.metrics = {}
        number = step % self.config.steps_per_batch
        fresh = number == 0
        if fresh:
            self.mini_batches = self._gather_batch(step)
        batch = self.mini_batches[number % self.config.mini_batches]
        began = time.perf_counter()
        rate = constant_rate(step, peak=self.config.learning_rate, warmup=self.warmup)
        if batch is not None:
            with self.watchdog.phase("train"):
                self._update(batch, rate, fresh=fresh)
            self.metrics |= batch.metrics if fresh else {}
        self._add_seconds("train", began)
        self.budget.played = self.rollout.env_steps
        fixed = {"step": step + 1, "learning_rate": rate, "env_steps": self.budget.total}
        return fixed | self.metrics

    # --- episodes ---------------------------------------------------------------------------------

    def _gather_batch(self, step: int) -> list[Batch | None]:
        """Episodes of the current weights, as mini-batches."""
        config = self.config
        began = time.perf_counter()
        with self.watchdog.phase("sync"):  # a sampler of its own for each batch
            sampler = self.trainer.sampler(beat=self.watchdog.beat)
        self._add_seconds("sync", began)
        began = time.perf_counter()
        first = step // config.steps_per_batch * config.groups
        with self.watchdog.phase("generate"):
            episodes, rewards = self._refilled(sampler, range(first, first + config.groups))
        self._add_seconds("generate", began)
        began = time.perf_counter()
        chosen = chosen_groups(batch_facts(episodes, config), rewards, config)
        parts = scored_mini_batches(episodes, chosen, config)
        counted = list(itertools.chain.from_iterable(parts))
        if self.recorder is not None:
            self.recorder(step, episodes, counted)
        counts = token_counts(each.episode.model_mask for each in counted)
        with self.watchdog.phase("train"):
            batches = [self._prepare(scored, counts) for scored in parts]
        self._add_seconds("train", began)
        return batches

    def _refilled(
        self, sampler: TinkerSampler, indices: Sequence[int]
    ) -> tuple[list[TokenEpisode], Tensor]:
        """Episodes of these tasks. A group without any signal is replaced by another task's."""
        episodes, rewards = self._play(sampler, indices)
        # Before the refills: they would flatter the metrics.
        self.metrics |= episode_metrics(episodes, rewards, OneProcess(), self.rollout.worlds)
        play = functools.partial(self._play, sampler)
        replaced = refill(play, episodes, rewards, indices, self.config)
        if self.config.refill_rounds:
            self.metrics["refilled"] = float(replaced)
        return episodes, rewards

    def _play(
        self, sampler: TinkerSampler, indices: Sequence[int]
    ) -> tuple[list[TokenEpisode], Tensor]:
        tasks = [self.tasks(index) for index in indices]
        episodes = self.rollout.run(
            sampler, tasks, group_size=self.config.group_size, seed=self.seed
        )
        return episodes, group_rewards(episodes, self.config)

    def _prepare(self, scored: Sequence[ScoredEpisode], counts: TokenCounts) -> Batch | None:
        """Rows with loss weights that add up over the batch, and the columns that stay fixed."""
        # Without a KL term, an episode whose advantage is zero has no gradient: it counts in the
        # mean, but need not be sent.
        sent = [each for each in scored if each.score.has_gradient or self.config.kl]
        if not sent:
            return None
        longest = self.rollout.config.max_model_tokens
        examples = train_examples(sent, counts, self.config, longest=longest)
        rows = self.trainer.rows(examples)
        old_M = self.trainer.logprobs(rows)
        metrics = self._mismatch(old_M, rows.column("sampled"))
        reference_M = adapter_logprobs(self.reference, rows) if self.config.kl else None
        return Batch(rows, old_M, reference_M, metrics)

    def _mismatch(self, now_M: Tensor, sampled_M: Tensor) -> dict[str, float]:
        gap = (now_M - sampled_M).abs()
        check_mismatch(
            float(gap.mean()),
            self.config.mismatch_limit,
            remedy="the endpoint's sampler has stale weights, or its numerics differ",
        )
        return {
            "mismatch/mean": float(gap.mean()),
            "mismatch/max": float(gap.max()),
            "mismatch/kl": float(k3(sampled_M, now_M).mean()),
            # An estimate from the sampled tokens: the endpoint returns no entropy.
            "entropy": -float(now_M.mean()),
        }

    # --- loss -------------------------------------------------------------------------------------

    def _update(self, batch: Batch, rate: float, *, fresh: bool) -> None:
        """One optimizer step. The loss and its gradient are computed here."""
        rows = batch.rows
        now_M = batch.old_M if fresh else self.trainer.logprobs(rows)
        logprobs_M = now_M.clone().requires_grad_()
        loss, per_token = self._loss(batch, logprobs_M)
        (gradient_M,) = torch.autograd.grad(loss, logprobs_M)
        self.metrics |= {name: float(values.mean()) for name, values in per_token.items()}
        self.metrics["loss"] = float(loss.detach())
        self.metrics |= self.trainer.step(
            rows,
            now_M,
            gradient_M,
            learning_rate=rate,
            max_grad_norm=self.config.max_grad_norm,
        )

    def _loss(self, batch: Batch, logprobs_M: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        rows, config = batch.rows, self.config
        weights = rows.column("weight")
        if config.importance_cap:
            weights = weights * importance_weights(
                batch.old_M, rows.column("sampled"), cap=config.importance_cap
            )
        by_episode = ESTIMATORS[config.algorithm].ratio == "episode"
        inputs = LossInputs(
            logprobs=logprobs_M,
            old_logprobs=batch.old_M,
            advantages=rows.column("advantage"),
            weights=weights,
            reference_logprobs=batch.reference_M,
            episodes=rows.column("episode").long() if by_episode else None,
        )
        low, high = config.clip_range
        return policy_loss(inputs, clip_low=low, clip_high=high, kl=config.kl)

    # --- metrics ----------------------------------------------------------------------------------

    def _add_seconds(self, name: str, began: float) -> None:
        key = f"seconds/{name}"
        self.metrics[key] = self.metrics.get(key, 0.0) + time.perf_counter() - began

    def _watch(self, row: dict[str, Any]) -> None:
        collapse, masks = self.watch.see_step(row), self.mask_watch.see_step(row)
        self.collapse = self.collapse or collapse
        if masks and self.masks is None:
            self.masks = masks
            logger.warning("%s", masks)


class OneProcess:
    """Stands for an accelerator in `episode_metrics`: there are no other processes."""

    device = "cpu"

    def gather(self, values: Tensor) -> Tensor:
        return values
