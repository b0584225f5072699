"""RLVR on TRL: sample groups of episodes, verify them, reinforce the better ones.

A `GRPOTrainer` with its own `training_step`: episodes come from a `Rollout` (multi-turn, world
tokens masked), credit and losses come from `algos/`, and each group's prompt is read once. TRL and
accelerate do the rest: devices, DDP, FSDP2, mixed precision, adapters, schedules, logging.
    config = RlvrConfig(steps=100)
    RlvrTrainer(model, tokenizer, config, rollout, tasks, Path("runs/x"), seed=0).train()
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl import GRPOTrainer

from terrella.algos.auxiliary import world_token_loss
from terrella.algos.diagnostics import check_mismatch, check_numbers
from terrella.algos.episode_batch import (
    TokenCounts,
    group_spreads,
    token_counts,
    wanted_groups,
)
from terrella.algos.losses import LossInputs, importance_weights, k3, policy_loss, value_loss
from terrella.core.errors import EngineError
from terrella.core.protocols import RolloutCodec
from terrella.core.run_folder import processes
from terrella.core.tokens import Task, TokenEpisode
from terrella.engines.configs import RlvrConfig
from terrella.engines.local.local_sampler import check_size
from terrella.engines.trl.arguments import adapters, freeze_below, training_arguments
from terrella.engines.trl.critic import (
    Critic,
    add_gae,
    attach_critic,
    set_apart,
    whiten_packs,
)
from terrella.engines.trl.in_process import in_process_sampler
from terrella.engines.trl.metrics import MetricAccumulator
from terrella.engines.trl.packed_steps import PackedSteps
from terrella.engines.trl.packs import Pack, mass_outside, read_pack, target_logprobs
from terrella.engines.trl.rlvr_batch import (
    Batch,
    ScoredEpisode,
    batch_facts,
    efficiency,
    scored_mini_batches,
    train_examples,
    trained_lengths,
    unshared_tokens,
)
from terrella.engines.trl.schedules import make_schedule
from terrella.engines.trl.tree_attention import use_attention
from terrella.rollout.rollout import Rollout
from terrella.rollout.watchdog import Watchdog

Recorder = Callable[[int, Sequence[TokenEpisode], Sequence[ScoredEpisode]], None]
"""Called with the step, the episodes that were sampled, and those that count in the loss."""


class RlvrTrainer(PackedSteps, GRPOTrainer):  # type: ignore[misc]
    """A `GRPOTrainer` on verified multi-turn episodes; see the module's docstring."""

    def __init__(  # noqa: PLR0913  model, data and folder: none has a default
        self,
        model: Any,
        tokenizer: Any,
        config: RlvrConfig,
        rollout: Rollout,
        tasks: Callable[[int], Task],
        out: Path,
        callbacks: Sequence[Any] = (),
        *,
        seed: int,
        sampler: Any = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`tasks(i)` is the i-th task of the run: a pure function, so a resumed run gets the same.

        A `sampler` with weights of its own (a vLLM server) receives the trainer's weights before
        each batch; without one, episodes are sampled from the trained model itself. `recorder` is
        called with every batch.
        """
        config.check(processes=processes())
        limits = rollout.config
        config.check_rollout(temperature=limits.temperature, history=limits.history)
        if sampler is None:
            check_size(model)
        self.rlvr = config
        self.rollout = rollout
        self.tasks = tasks
        self.seed = seed
        use_attention(model, config.attention)
        freeze_below(model, config.top_layers)
        # Copied before TRL patches the model's forward: a copy of a patched model would run the
        # original one.
        reference = copy.deepcopy(model) if config.kl and not config.lora_rank else None
        # Episodes that are played beside training need weights that do not change meanwhile.
        copied = copy.deepcopy(model) if config.schedule == "async" and sampler is None else None
        super().__init__(
            model=model,
            args=training_arguments(config, out, seed),
            processing_class=tokenizer,
            reward_funcs=_unused_reward,
            train_dataset=Dataset.from_dict({"index": range(config.steps * config.groups)}),
            callbacks=list(callbacks),
            peft_config=adapters(model, config),
        )
        self.remove_callback(PrinterCallback)  # our own progress display shows the same metrics
        self.ref_model = self._frozen(reference)
        self.critic: Critic | None = None
        if config.algorithm == "ppo":
            self.critic = attach_critic(self.model, config.critic)
        self.watchdog = rollout.watchdog = Watchdog(
            limit=config.hang_limit, rank=self.accelerator.process_index
        )
        self.sampler: Any = sampler or in_process_sampler(self, copied)
        self.schedule = make_schedule(self, self.sampler)
        self._unfinished: dict[str, Any] = {}
        self.batch: Batch | None = None
        self.recorder = recorder
        ids = rollout.codec.allowed_ids if isinstance(rollout.codec, RolloutCodec) else None
        self.allowed = None if ids is None else torch.tensor(ids, device=self.accelerator.device)

    def train(self, *arguments: Any, **options: Any) -> Any:
        """TRL's training loop under the watchdog."""
        with self.watchdog, contextlib.closing(self.schedule):
            return super().train(*arguments, **options)

    def training_step(
        self, model: Any, inputs: list[dict[str, int]], num_items_in_batch: Any = None
    ) -> Tensor:
        """One optimizer step over a mini-batch; every `steps_per_batch` the episodes are new."""
        model.train()
        number = self.state.global_step % self.rlvr.steps_per_batch
        fresh = self.batch is None or number == 0
        if self.batch is None or fresh:
            self.batch = self._gather_batch([item["index"] for item in inputs])
        packs = self.batch.mini_batches[number % self.rlvr.mini_batches]
        began = time.perf_counter()
        with self.watchdog.phase("train"):
            self.totals = MetricAccumulator(self._metric_names(), largest=("mismatch/max",))
            loss = self.train_on(model, packs, self._pack_loss)
            self._report(self.batch, watch_mismatch=fresh)
        self._step += 1
        self.add_metrics(**{"seconds/train": time.perf_counter() - began})
        return loss

    def create_optimizer(self, *arguments: Any, **options: Any) -> Any:
        """TRL's optimizer, in which the critic may have a learning rate of its own."""
        optimizer = super().create_optimizer(*arguments, **options)
        if self.critic is not None and self.rlvr.critic_learning_rate:
            set_apart(optimizer, self.critic, self.rlvr.critic_learning_rate)
        return optimizer

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self.watchdog.phase("save"):
            self._unfinished = self.schedule.progress()  # on all processes: it gathers
            super()._save_checkpoint(model, trial)

    def extra_progress(self) -> dict[str, Any]:
        return self._unfinished

    def restore_progress(self, progress: Mapping[str, Any]) -> None:
        if progress:
            self.schedule.resume(dict(progress))

    # --- models -----------------------------------------------------------------------------------

    def _frozen(self, reference: Any) -> Any:
        """The reference model of the KL term, frozen as training starts.

        None where no copy is needed (kl = 0, or adapters that can be switched off).
        """
        if reference is None:
            return None
        reference.requires_grad_(False)
        if self.is_fsdp_enabled:
            # Layer by layer; TRL's own `prepare_fsdp` would gather the whole model at once.
            return fsdp2_prepare_model(self.accelerator, reference).eval()
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    def _read(self, model: Any, pack: Pack) -> Any:
        with self.compute_loss_context_manager():
            return read_pack(model, pack, attention=self.attention)

    def _logprobs(
        self, output: Any, pack: Pack, *, rewarded: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Also the entropies; they have a gradient where they are rewarded."""
        heat = self.rollout.config.temperature
        return target_logprobs(output, pack, temperature=heat, entropy_gradient=rewarded)

    # --- episodes ---------------------------------------------------------------------------------

    def _gather_batch(self, indices: Sequence[int]) -> Batch:
        episodes, rewards = self.schedule.episodes(list(dict.fromkeys(indices)))
        with self.watchdog.phase("train"):
            chosen = self._chosen(episodes, rewards)
            parts = scored_mini_batches(episodes, chosen, self.rlvr)
            if self.recorder is not None:
                counted = list(itertools.chain.from_iterable(parts))
                self.recorder(self.state.global_step, episodes, counted)
            batch = self._prepare(parts)
            self._freeze(batch)
        return batch

    def _chosen(self, episodes: Sequence[TokenEpisode], rewards: Tensor) -> Tensor:
        """The rewards of this process's groups, nan where a filter over all groups drops one."""
        spreads = group_spreads(batch_facts(episodes, self.rlvr), rewards, self.rlvr)
        everyone = self.accelerator.gather(spreads.to(self.accelerator.device)).cpu()
        first = self.accelerator.process_index * len(rewards)
        wanted = wanted_groups(everyone, self.rlvr)[first : first + len(rewards)]
        return torch.where(wanted[:, None], rewards, torch.nan)

    def _prepare(self, parts: Sequence[Sequence[ScoredEpisode]]) -> Batch:
        """Pack the episodes of each mini-batch.

        Their loss weights add up over the batches of all processes. Every process gets the same
        number of packs.
        """
        masks = (each.episode.model_mask for each in itertools.chain.from_iterable(parts))
        local = torch.tensor(token_counts(masks), dtype=torch.float)
        counts = TokenCounts(*self.accelerator.reduce(local.to(self.accelerator.device)).tolist())
        batch = Batch(mini_batches=[], lengths=[], counts=counts, unshared_tokens=0)
        for scored in parts:
            self._add_mini_batch(batch, scored)
        return batch

    def _add_mini_batch(self, batch: Batch, scored: Sequence[ScoredEpisode]) -> None:
        # Without a term beside the policy loss, an episode whose advantage is zero has no gradient:
        # it counts in the mean, but need not be computed.
        other_terms = self.rlvr.kl or self.rlvr.entropy_bonus or self.critic or self.rlvr.world_loss
        computed = [each for each in scored if each.score.has_gradient or other_terms]
        longest = self.rollout.config.max_model_tokens
        examples = train_examples(
            computed, batch.counts, self.rlvr, longest=longest, version=self.schedule.version
        )
        packed = self.packed(
            examples, max_tokens=self.rlvr.pack_tokens, share_prefix=self.rlvr.share_prefix
        )
        batch.mini_batches.append(self.pad_packs(packed))
        batch.lengths += trained_lengths(computed, examples)
        batch.unshared_tokens += unshared_tokens(examples)

    @torch.no_grad()
    def _freeze(self, batch: Batch) -> None:
        """Add the columns that stay fixed while a batch is trained on.

        This takes one pass of the policy and one of the reference model, where they are needed.
        """
        for pack in batch.packs:
            if self.rlvr.steps_per_batch > 1 or self.critic:
                output = self._read(self.policy, pack)
                pack.columns["old"] = self._logprobs(output, pack)[0]
                if self.critic:
                    pack.columns["value"] = output["values"][0]
            if self.rlvr.schedule == "async":
                # The policy that wrote the tokens, which may be older than the one before the step.
                pack.columns["old"] = pack.columns["sampled"]
            if self.rlvr.kl:
                pack.columns["reference"] = self._reference(pack)
            self.watchdog.beat()
        if self.critic:
            self._estimate(batch)

    def _reference(self, pack: Pack) -> Tensor:
        if self.ref_model is not None:
            return self._logprobs(self._read(self.ref_model, pack), pack)[0]
        with self.policy.disable_adapter():
            return self._logprobs(self._read(self.policy, pack), pack)[0]

    def _estimate(self, batch: Batch) -> None:
        """Estimate advantages from the critic's values, over the model's own tokens."""
        packs = [pack for pack in batch.packs if len(pack.targets_M)]
        add_gae(packs, batch.lengths, gamma=self.rlvr.gamma, lam=self.rlvr.lam)
        if self.rlvr.whiten:
            whiten_packs(packs, batch.counts.tokens, self.accelerator)

    # --- loss -------------------------------------------------------------------------------------

    def _pack_loss(self, model: Any, pack: Pack) -> Tensor:
        output = self._read(model, pack)
        rewarded = bool(self.rlvr.entropy_bonus)
        logprobs, entropy = self._logprobs(output, pack, rewarded=rewarded)
        self.watchdog.beat()
        if not len(pack.targets_M):  # an empty pack: a zero gradient for all parameters
            return logprobs.sum() + (output["values"].sum() if self.critic else 0.0)
        outside = self._mass_outside(output)
        world_loss: Tensor | float = 0.0
        if self.rlvr.world_loss:
            world_loss = self.rlvr.world_loss * world_token_loss(logprobs, pack.columns["world"])
            own = pack.columns["world"] == 0
            logprobs, entropy, pack = logprobs[own], entropy[own], pack.only(own)
            outside = {name: values[own] for name, values in outside.items()}
        now = logprobs.detach()
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=pack.columns.get("old", now),
            advantages=pack.columns["advantage"],
            weights=self._weights(pack, now),
            reference_logprobs=pack.columns.get("reference"),
            episodes=pack.columns["episode"].long() if "episode" in pack.columns else None,
            entropy=entropy if rewarded else None,
        )
        low, high = self.rlvr.clip_range
        terms = {"kl": self.rlvr.kl, "entropy_bonus": self.rlvr.entropy_bonus}
        loss, per_token = policy_loss(inputs, clip_low=low, clip_high=high, **terms)
        if self.critic:
            error = value_loss(
                output["values"][0],
                pack.columns["value"],
                pack.columns["return"],
                clip=self.rlvr.value_clip,
            )
            per_token["value_loss"] = error
            loss = loss + self.rlvr.value_coefficient * (error * pack.columns["weight"]).sum()
        self._count(pack, now, entropy=entropy.detach(), **per_token, **outside)
        return loss + world_loss

    def _mass_outside(self, output: Any) -> dict[str, Tensor]:
        """The mass outside the allowed ids: the sampler cannot write it, the policy still has it.

        Log-probs are those before the mask, so the mask is a difference between sampler and trainer
        that the mismatch does not show.
        """
        if self.allowed is None:
            return {}
        temperature = self.rollout.config.temperature
        return {"mask/outside": mass_outside(output, self.allowed, temperature=temperature)}

    def _weights(self, pack: Pack, now: Tensor) -> Tensor:
        if not self.rlvr.importance_cap:
            return pack.columns["weight"]
        old = pack.columns.get("old", now)
        return pack.columns["weight"] * importance_weights(
            old, pack.columns["sampled"], cap=self.rlvr.importance_cap
        )

    # --- metrics ----------------------------------------------------------------------------------

    def _metric_names(self) -> list[str]:
        names = ["entropy", "clip_share", "mismatch/mean", "mismatch/kl"]
        names += ["mask/outside"] * (self.allowed is not None)
        return names + ["kl"] * bool(self.rlvr.kl) + ["value_loss"] * (self.critic is not None)

    def _count(self, pack: Pack, now: Tensor, **per_token: Tensor) -> None:
        for name, values in per_token.items():
            self.totals.add(name, values)
        sampled = pack.columns["sampled"]
        if "current" in pack.columns:  # older weights wrote the others, so they differ
            current = pack.columns["current"] > 0
            sampled, now = sampled[current], now[current]
        gap = (now - sampled).abs()
        self.totals.add("mismatch/mean", gap)
        self.totals.add("mismatch/kl", k3(sampled, now))
        self.totals.top("mismatch/max", gap)

    def _report(self, batch: Batch, *, watch_mismatch: bool) -> None:
        """Add the step's metrics.

        Stops before the optimizer steps if sampler and trainer differ, or training has diverged.
        """
        # A step with nothing to train on has no entropy, which is not nan: it is left out.
        metrics = self.totals.gather(self.accelerator, keep_empty=False)
        if not watch_mismatch:  # the weights changed since sampling: a difference is expected
            metrics = {
                name: value for name, value in metrics.items() if not name.startswith("mismatch/")
            }
        self.add_metrics(**metrics, **efficiency(batch))
        check_numbers(metrics)
        check_mismatch(
            metrics.get("mismatch/mean", 0.0),
            self.rlvr.mismatch_limit,
            remedy="the sampler's weights are stale, or its numerics differ",
        )


def _unused_reward(**_: Any) -> list[float]:
    raise EngineError("rlvr", "verdicts come with the episodes, not from a reward function")
