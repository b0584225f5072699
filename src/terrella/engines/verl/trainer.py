"""verl's synchronous trainer with our verdicts: masked episodes, shares of the loss, figures, the mismatch monitor.

The hook that matters is `_compute_advantage`: it turns the episodes of a step into lessons and stops the run when the
servers did not sample from the trainer's weights. Everything else (workers, FSDP, servers, weight sync, checkpoints) is
verl's.
    run_ppo(config, task_runner_class=VerifiedRunner)
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from terrella.core.errors import EngineError
from terrella.engines.verl import registered
from terrella.engines.verl.lessons import Lessons, Rows, batch_figures, groups_of, learn, mismatch, paid_tokens
from terrella.engines.verl.plan import Plan

COLUMNS = ("uid", "response_mask", "rollout_log_probs", "old_log_probs", "values", "entropy", "extra_fields")
SECONDS = {
    "seconds/generate": ("gen",), "seconds/sync": ("update_weights",), "seconds/save": ("save_checkpoint",),
    "seconds/train": ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"),
    "seconds/step": ("step",),
}  # fmt: skip
RENAMED = {"actor/loss": "loss", "actor/grad_norm": "grad_norm", "actor/clip_share": "clip_share",
           "actor/kl_loss": "kl", "critic/value_loss": "value_loss"}  # fmt: skip

POLL_SECONDS = 0.1
"""How often the buffer is asked whether a batch is whole; verl's two seconds are longer than small batches take."""
RESUMES = "the log above names the server or process; the run goes on from its last checkpoint"


class VerifiedTrainer(PPOTrainerSync):  # type: ignore[misc]
    """See the module's docstring."""

    def __init__(self, config: Any) -> None:
        """The plan says what the keys cannot."""
        super().__init__(config)
        self.source = Plan.read(config.data.train_files).source()
        self.settings = self.source.config.rlvr
        self.longest = int(self.source.config.turn_tokens)
        self.figures: dict[str, float] = {}
        self.replay_buffer.poll_interval = POLL_SECONDS

    def _setup(self) -> None:
        super()._setup()
        if self.use_critic:
            loss = partial(
                registered.weighted_value_loss, clip=self.settings.value_clip,
                coefficient=self.settings.value_coefficient,
            )  # fmt: skip
            self.critic_wg.set_loss_fn(loss)

    def _step_once(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super()._step_once(*arguments, **options)
        except RuntimeError as error:
            if "no materializable trajectories" not in str(error):
                raise
            raise EngineError("rollout", f"every episode of step {self.global_steps} was lost", RESUMES) from error

    def _balance_batch(self, batch: Any, *arguments: Any, **options: Any) -> Any:
        """A batch that lost episodes lost a server or a process: verl would fill it up and go on."""
        wanted = self.settings.groups * self.settings.group_size
        if len(batch) < wanted:
            what = f"{wanted - len(batch)} of {wanted} episodes of step {self.global_steps} were lost"
            raise EngineError("rollout", what, RESUMES)
        return super()._balance_batch(batch, *arguments, **options)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Episodes become lessons; a sampler that is not the trainer stops the run before the optimiser moves."""
        began = time.perf_counter()
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(COLUMNS))
        nested = data["response_mask"]
        real = [not tag.get("is_padding", False) for tag in batch.tags]
        rows, records, entropy = _read(data)
        self._watch_mismatch(rows)
        uids = _plain(data["uid"])
        lessons = learn(rows, groups_of(uids, real), self._estimate(rows, uids), self.settings, longest=self.longest)
        self._note(lessons, rows, [r for r, counts in zip(records, real, strict=True) if counts], entropy)
        columns = {
            "advantages": lessons.advantages_BT, "returns": lessons.returns_BT,
            "rollout_is_weights": lessons.weights_BT,
        }  # fmt: skip
        written = {name: response_to_nested(column, nested) for name, column in columns.items()}
        batch = tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(written, batch_size=len(batch))
        )
        self.figures["seconds/lessons"] = time.perf_counter() - began
        return batch

    def _estimate(self, rows: Rows, uids: list[str]) -> tuple[Tensor, Tensor]:
        """By the estimator that verl's config names: one of ours, or any other that is registered."""
        estimator = get_adv_estimator_fn(self.config.algorithm.adv_estimator)
        found: tuple[Tensor, Tensor] = estimator(
            token_level_rewards=rows.paid_BT, response_mask=rows.mask_BT, index=uids, config=self.config.algorithm,
            values=rows.values_BT,
        )  # fmt: skip
        return found

    def _watch_mismatch(self, rows: Rows) -> None:
        found = mismatch(rows)
        self.figures.update(found)
        if found.get("mismatch/mean", 0.0) > self.settings.mismatch_limit:
            what = f"sampler and trainer differ by {found['mismatch/mean']:.3g} in log-probability on average"
            raise EngineError("mismatch monitor", what, "the servers' weights are stale, or their numerics differ")

    def _note(self, lessons: Lessons, rows: Rows, records: list[Any], entropy: Tensor) -> None:
        written = [int(count) for count in rows.mask_BT.sum(1) if count]
        self.figures.update(batch_figures(lessons, records, written))
        if rows.mask_BT.any():
            self.figures["entropy"] = float(entropy[rows.mask_BT].mean())

    def _compute_metrics(self, batch: Any, metrics: Any, timing_raw: Any, **options: Any) -> None:
        """Verl's own, and ours under our names; a line for the progress display and the curve."""
        super()._compute_metrics(batch, metrics, timing_raw, **options)
        self.figures |= {mine: float(metrics[theirs]) for theirs, mine in RENAMED.items() if theirs in metrics}
        for name, parts in SECONDS.items():
            if any(part in timing_raw for part in parts):
                self.figures[name] = sum(timing_raw.get(part, 0.0) for part in parts)
        metrics.update(self.figures)
        line = json.dumps({"step": self.global_steps, **self.figures})
        with Path(self.config.trainer.default_local_dir, "figures.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.figures = {}


def _read(data: Any) -> tuple[Rows, list[dict[str, Any]], Tensor]:
    """Padded columns, the episodes' own records, and the entropy per token."""
    names = [
        name for name in ("response_mask", "rollout_log_probs", "old_log_probs", "values", "entropy") if name in data
    ]
    padded = data.select(*names).to_padded_tensor()
    mask = padded["response_mask"].bool()
    records = [dict(record) for record in _plain(data["extra_fields"])]
    rows = Rows(
        mask_BT=mask, sampled_BT=padded["rollout_log_probs"].float(), old_BT=padded["old_log_probs"].float(),
        paid_BT=paid_tokens(records, mask), values_BT=padded["values"].float() if "values" in names else None,
    )  # fmt: skip
    return rows, records, padded["entropy"]


def _plain(column: Any) -> list[Any]:
    """A column of Python objects, in whichever of its list types the transfer queue hands it over."""
    return [getattr(item, "data", item) for item in column]


@ray.remote
class VerifiedRunner:
    """verl's task runner with our trainer: builds everything on the head node and fits."""

    def run(self, config: Any) -> None:
        """To the last step, or to the first error."""
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        try:
            trainer = VerifiedTrainer(config)
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config, llm_client=trainer.get_llm_client(), teacher_client=None,
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )  # fmt: skip
            trainer.fit(manager)
            trainer.logger.finish()
        finally:
            tq.close()
