"""RLVR on TRL: sample groups, let the world verify, push up the better ones.

A `GRPOTrainer` whose step is ours: episodes come from the driver (multi-turn, world tokens masked), credit and losses
from `algos/`, and each group's prompt goes through the model once. TRL and accelerate keep the rest: devices, DDP,
FSDP2, mixed precision, adapters, schedules, logging, trackers. The hook that matters is `training_step`.
    RlvrTrainer(model, tokenizer, RlvrSettings.Config(steps=100), driver, tasks, out=Path("runs/x")).train()
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl import GRPOTrainer
from trl.models import prepare_fsdp

from terrella.algos.advantages import whiten
from terrella.algos.auxiliary import world_token_loss
from terrella.algos.losses import LossInputs, importance_weights, k3, policy_loss, value_loss
from terrella.core.errors import EngineError
from terrella.core.protocols import Task, TokenEpisode
from terrella.engines.episodes.driver import Driver
from terrella.engines.episodes.watchdog import Watchdog
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.trl.critic import Critic, add_gae, attach_critic, plain_weights
from terrella.engines.trl.figures import Totals
from terrella.engines.trl.packed_steps import PackedSteps
from terrella.engines.trl.packs import Pack, read_pack, target_logprobs
from terrella.engines.trl.rlvr_batch import (
    Batch,
    Counts,
    Kept,
    batch_counts,
    chosen_groups,
    efficiency,
    episode_figures,
    group_rewards,
    kept_episodes,
    plain_tokens,
    teaching,
    training_row,
)
from terrella.engines.trl.rlvr_settings import RlvrSettings, lora, sharded, training_arguments
from terrella.engines.trl.tree_attention import use_tree_attention
from terrella.engines.trl.whole_copy import WholeCopy
from terrella.models.export import merged_weights

__all__ = ["RlvrSettings", "RlvrTrainer"]


class RlvrTrainer(PackedSteps, GRPOTrainer):  # type: ignore[misc]
    """See the module's docstring. The hook that matters is `training_step`."""

    def __init__(
        self, model: Any, tokenizer: Any, config: RlvrSettings.Config, driver: Driver, tasks: Callable[[int], Task],
        out: Path, callbacks: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """`tasks(i)` is the i-th question of the run: a pure function, so that a resumed run asks the same."""
        config.check()
        self.rlvr, self.driver, self.tasks = config, driver, tasks
        use_tree_attention(model)
        # Copies are made before TRL patches the model's forward: a copy of a patched model would run the first one.
        reference = copy.deepcopy(model) if config.kl and not config.lora_rank else None
        self.whole = WholeCopy(model) if sharded() else None
        super().__init__(
            model=model, args=training_arguments(config, out), processing_class=tokenizer, reward_funcs=_unused_reward,
            train_dataset=Dataset.from_dict({"index": range(config.steps * config.groups)}), callbacks=list(callbacks),
            peft_config=lora(config.lora_rank),
        )  # fmt: skip
        self.remove_callback(PrinterCallback)  # its lines repeat what our own display says
        self.ref_model = self._frozen(reference)
        self.critic: Critic | None = attach_critic(self.model, config.critic) if config.algorithm == "ppo" else None
        self.watchdog = driver.watchdog = Watchdog(limit=config.hang_limit, rank=self.accelerator.process_index)
        sampled = self.whole.model if self.whole else self.policy
        # Replace it by one with weights of its own (a vLLM server's) and it gets the trainer's before each batch.
        self.sampler: Any = LocalSampler(sampled, beat=self.watchdog.beat)
        self.batch: Batch | None = None
        self.recorder: Callable[[int, Sequence[TokenEpisode], Sequence[Kept]], None] | None = None

    def train(self, *arguments: Any, **options: Any) -> Any:
        """As TRL's, with the watchdog awake."""
        with self.watchdog:
            return super().train(*arguments, **options)

    def training_step(self, model: Any, inputs: list[dict[str, int]], num_items_in_batch: Any = None) -> Tensor:
        """One optimiser step: fresh episodes every `updates` steps, then the loss over all packs."""
        model.train()
        fresh = self.batch is None or self.state.global_step % self.rlvr.updates == 0
        if self.batch is None or fresh:
            self.batch = self._gather_batch([row["index"] for row in inputs])
        began = time.perf_counter()
        with self.watchdog.phase("train"):
            self.totals = Totals(self._figure_names(), largest=("mismatch/max",))
            loss = self.train_on(model, self.batch.packs, self._pack_loss)
            self._report(self.batch, watch_mismatch=fresh)
        self._step += 1
        self.note(**{"seconds/train": time.perf_counter() - began})
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self.watchdog.phase("save"):
            super()._save_checkpoint(model, trial)

    # --- models --------------------------------------------------------------------------------------------------

    def _frozen(self, reference: Any) -> Any:
        """The reference model of the KL term, where training starts; None when it costs nothing (kl = 0, adapters)."""
        if reference is None:
            return None
        reference.requires_grad_(False)
        if self.is_fsdp_enabled:
            return prepare_fsdp(reference, self.accelerator)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    def _read(self, model: Any, pack: Pack) -> Any:
        with self.compute_loss_context_manager():
            return read_pack(model, pack, attention=self.attention)

    def _logprobs(self, output: Any, pack: Pack) -> tuple[Tensor, Tensor]:
        return target_logprobs(output, pack, temperature=self.driver.config.temperature)

    # --- episodes ------------------------------------------------------------------------------------------------

    def _gather_batch(self, indices: Sequence[int]) -> Batch:
        if self.whole is not None:
            with self.watchdog.phase("sync"):
                self.whole.refresh(self.policy)
        if hasattr(self.sampler, "load_weights"):
            self._send_weights()
        began = time.perf_counter()
        with self.watchdog.phase("generate"):
            episodes, rewards = self._ask(list(dict.fromkeys(indices)))
        self.note(**{"seconds/generate": time.perf_counter() - began})
        with self.watchdog.phase("train"):
            chosen = chosen_groups(rewards, self.rlvr)
            kept = kept_episodes(episodes, chosen, self.rlvr.algorithm, self.rlvr.credit)
            if self.recorder is not None:
                self.recorder(self.state.global_step, episodes, kept)
            batch = self._prepare(kept)
            self._freeze(batch)
        return batch

    def _ask(self, questions: Sequence[int]) -> tuple[list[TokenEpisode], Tensor]:
        """Episodes and verdicts; a group that teaches nothing is asked again with a question beyond the run's own.

        A replacement's number depends on the question it replaces alone, so any number of processes ask the same.
        """
        episodes, rewards = self._play(questions)
        self.note(**episode_figures(episodes, rewards).gather(self.accelerator))  # not of refills: they would flatter
        size, beyond = self.rlvr.group_size, self.rlvr.steps * self.rlvr.groups
        for extra in range(1, self.rlvr.refill + 1):
            empty = [place for place, teaches in enumerate(teaching(rewards, self.rlvr.algorithm)) if not teaches]
            if not empty:
                break
            found, verdicts = self._play([questions[place] + extra * beyond for place in empty])
            for number, place in enumerate(empty):
                episodes[place * size : (place + 1) * size] = found[number * size : (number + 1) * size]
                rewards[place] = verdicts[number]
        return episodes, rewards

    def _send_weights(self) -> None:
        """To a sampler with weights of its own; gathered by all processes, sent by one."""
        began = time.perf_counter()
        with self.watchdog.phase("sync"):
            weights = plain_weights(dict(merged_weights(self.policy)))
            if self.accelerator.is_main_process:
                self.sampler.load_weights(weights.items())
            self.accelerator.wait_for_everyone()
        self.note(**{"seconds/sync": time.perf_counter() - began})

    def _play(self, questions: Sequence[int]) -> tuple[list[TokenEpisode], Tensor]:
        tasks = [self.tasks(question) for question in questions]
        episodes = self.driver.run(self.sampler, tasks, group_size=self.rlvr.group_size, seed=self.rlvr.seed)
        return episodes, group_rewards(episodes, self.rlvr)

    def _prepare(self, kept: Sequence[Kept]) -> Batch:
        """Packs whose loss weights add up to 1 over the whole batch; as many of them as on every other process."""
        mine = torch.tensor(batch_counts(kept), dtype=torch.float)
        counts = Counts(*self.accelerator.reduce(mine.to(self.accelerator.device)).tolist())
        # An average member of a group pulls nowhere: it counts in the mean, and need not be computed.
        moving = [k for k in kept if k.moves or self.rlvr.kl or self.critic or self.rlvr.world_loss]
        longest = self.driver.config.turn_tokens
        rows = [training_row(k, counts, self.rlvr, longest=longest) for k in moving]
        packed = self.packed(rows, max_tokens=self.rlvr.pack_tokens, share_prefix=self.rlvr.share_prefix)
        packs = self.as_many_as_others(packed)
        return Batch(packs, [sum(row.mask) for row in rows], counts, plain_tokens(rows))

    @torch.no_grad()
    def _freeze(self, batch: Batch) -> None:
        """What stays fixed while a batch is trained on: one pass of the policy and one of the reference, if needed."""
        for pack in batch.packs:
            if self.rlvr.updates > 1 or self.critic:
                output = self._read(self.policy, pack)
                pack.columns["old"] = self._logprobs(output, pack)[0]
                if self.critic:
                    pack.columns["value"] = output["values"][0]
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
        """Advantages from the critic's values, over the model's own tokens."""
        packs = [pack for pack in batch.packs if len(pack.targets_M)]
        add_gae(packs, batch.lengths, gamma=self.rlvr.gamma, lam=self.rlvr.lam)
        if self.rlvr.whiten:
            found = [pack.columns["advantage"] for pack in packs]
            sums = torch.tensor([sum(float((column**power).sum()) for column in found) for power in (1, 2)])
            total = self.accelerator.reduce(sums.to(self.accelerator.device))
            mean, square = (total / max(batch.counts.tokens, 1.0)).tolist()
            for pack in packs:
                pack.columns["advantage"] = whiten(pack.columns["advantage"], mean=mean, square=square)

    # --- loss ----------------------------------------------------------------------------------------------------

    def _pack_loss(self, model: Any, pack: Pack) -> Tensor:
        output = self._read(model, pack)
        logprobs, entropy = self._logprobs(output, pack)
        self.watchdog.beat()
        if not len(pack.targets_M):  # only keeps other processes company: all parameters, no gradient
            return logprobs.sum() + (output["values"].sum() if self.critic else 0.0)
        beside: Tensor | float = 0.0
        if self.rlvr.world_loss:
            beside = self.rlvr.world_loss * world_token_loss(logprobs, pack.columns["world"])
            own = pack.columns["world"] == 0
            logprobs, entropy, pack = logprobs[own], entropy[own], pack.only(own)
        now = logprobs.detach()
        inputs = LossInputs(
            logprobs=logprobs, old_logprobs=pack.columns.get("old", now), advantages=pack.columns["advantage"],
            weights=self._weights(pack, now), reference_logprobs=pack.columns.get("reference"),
        )  # fmt: skip
        loss, found = policy_loss(inputs, clip_low=self.rlvr.clip_low, clip_high=self.rlvr.clip_high, kl=self.rlvr.kl)
        if self.critic:
            value, before, target = output["values"][0], pack.columns["value"], pack.columns["return"]
            found["value_loss"] = error = value_loss(value, before, target, clip=self.rlvr.value_clip)
            loss = loss + self.rlvr.value_coefficient * (error * pack.columns["weight"]).sum()
        self._count(pack, now, entropy=entropy, **found)
        return loss + beside

    def _weights(self, pack: Pack, now: Tensor) -> Tensor:
        if not self.rlvr.importance_cap:
            return pack.columns["weight"]
        old = pack.columns.get("old", now)
        return pack.columns["weight"] * importance_weights(old, pack.columns["sampled"], cap=self.rlvr.importance_cap)

    # --- figures -------------------------------------------------------------------------------------------------

    def _figure_names(self) -> list[str]:
        names = ["entropy", "clip_share", "mismatch/mean", "mismatch/kl"]
        return names + ["kl"] * bool(self.rlvr.kl) + ["value_loss"] * (self.critic is not None)

    def _count(self, pack: Pack, now: Tensor, **per_token: Tensor) -> None:
        for name, values in per_token.items():
            self.totals.add(name, values)
        gap = (now - pack.columns["sampled"]).abs()
        self.totals.add("mismatch/mean", gap)
        self.totals.add("mismatch/kl", k3(pack.columns["sampled"], now))
        self.totals.top("mismatch/max", gap)

    def _report(self, batch: Batch, *, watch_mismatch: bool) -> None:
        """Log the step's figures; stop before the optimiser moves if sampler and trainer are not the same model."""
        found = self.totals.gather(self.accelerator)
        if not watch_mismatch:  # the weights have moved since sampling: a difference is expected
            found = {name: value for name, value in found.items() if not name.startswith("mismatch/")}
        self.note(**found, **efficiency(batch))
        if found.get("mismatch/mean", 0.0) > self.rlvr.mismatch_limit:
            what = f"sampler and trainer differ by {found['mismatch/mean']:.3f} in log-probability on average"
            raise EngineError("mismatch monitor", what, "the sampler's weights are stale, or its numerics differ")


def _unused_reward(**_: Any) -> list[float]:
    raise EngineError("rlvr", "verdicts come with the episodes, not from a reward function")
