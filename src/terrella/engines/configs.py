"""Settings of the engines. Nothing here imports torch, so a config can be read anywhere.

RlvrConfig(algorithm="ppo", critic="shared", lam=0.95).check(processes=1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal, Self

from terrella.algos.estimators import ESTIMATORS
from terrella.core.bounds import check_above_zero, check_least, check_not_negative, check_share
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.tokens import History
from terrella.engines.vllm.server import VllmServer

LARGEST_MODEL = 500_000_000
"""Parameters of the largest model that engines sample in-process.

A server with paged attention decodes larger ones ten times as fast in a fraction of the memory.
"""
Algorithm = Literal["grpo", "dr_grpo", "dapo", "rloo", "ppo"]
Attention = Literal["auto", "sdpa", "flex_attention", "flash_attention_2"]
"""auto: the model's own, sdpa unless its folder says otherwise. flash_attention_2 is verl's only:
it takes no mask, and TRL's packs need one."""


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(Configurable.Config):
    """Memory and precision of whatever trains a model."""

    pack_tokens: int = 2048
    """Most tokens in one forward pass, unless one example is longer; bounds memory, not results.

    A group whose prompt and replies fit reads its prompt once, which is faster for long prompts.
    """
    bf16: bool = False
    """Compute in bf16; weights and optimiser stay fp32."""
    gradient_checkpointing: bool = False
    """Compute a layer's activations again in the backward pass, to save memory; same gradients."""
    attention: Attention = "auto"
    lora_rank: int = 0
    """Rank of adapters on all linear layers; 0 trains all weights. An export holds them merged."""
    top_layers: int = 0
    """Train only the last layers, up to half of the time for the same tokens; 0 trains all. TRL."""
    lora_alpha: int = 0
    """Adapters are scaled by alpha / rank; 0 is twice the rank."""

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be trained with."""
        check_not_negative(self)
        check_least(self, pack_tokens=1)

    @property
    def alpha(self) -> int:
        """The alpha of adapters, 0 without any."""
        return (self.lora_alpha or 2 * self.lora_rank) if self.lora_rank else 0


@dataclass(frozen=True, kw_only=True)
class SftConfig(MemoryConfig):
    """Supervised fine-tuning: sizes and optimiser.

    An item is an example, or all examples about one prompt (the recorded actions on a page): they
    share the prompt and are trained in the same step. Pipelines make the items; steps, epochs and
    batches count them.
    """

    epochs: int = 1
    batch_size: int = 64
    """Items per optimiser step, over all processes.

    verl counts examples: a batch has `batch_size` times the mean number of examples per item.
    """
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    """Steps until the learning rate is reached; a tenth of all steps if those are no more."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; 0 is off."""
    save_every: int = 0
    """Optimiser steps between checkpoints; 0 saves none."""
    report_to: Local[tuple[str, ...]] = ()
    """Trackers of transformers, such as `tensorboard`; on verl the loggers of verl."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, epochs=1, batch_size=1)
        check_above_zero(self, "learning_rate")


@dataclass(frozen=True, kw_only=True)
class RlvrConfig(MemoryConfig):
    """RL with verifiable rewards: sizes, algorithm, optimiser."""

    steps: int = 100
    """Optimiser steps."""
    groups: int = 16
    """Tasks of a batch of episodes, over all processes."""
    group_size: int = 8
    """Episodes per task."""
    algorithm: Algorithm = "grpo"
    reward: Literal["outcome", "return"] = "outcome"
    """outcome: the verdict on the episode; return: the sum of its rewards, paid turn by turn."""
    credit: Literal["episode", "turn"] = "episode"
    """episode: one advantage for all tokens; turn: each turn has its own, from its reward-to-go.

    By turn, the world's own rewards are compared, whatever `reward` is; they also decide which
    groups are trained on or replaced.
    """
    clip_low: float = 0.2
    clip_high: float | None = None
    """None is the algorithm's own: 0.28 for DAPO (clip-higher), `clip_low` for the others."""
    kl: float = 0.0
    """Weight of the KL penalty to the starting model; 0 loads no reference model."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy at its tokens, rewarded to keep it exploring; 0 is off."""
    mini_batches: int = 1
    """Parts of a batch of episodes, by group; each is an optimiser step of its own.

    verl's `ppo_mini_batch_size` is then `groups / mini_batches`.
    """
    epochs: int = 1
    """Times that each batch is trained on: verl's `ppo_epochs`, TRL's `num_iterations`."""
    refill: int | None = None
    """Most rounds of extra tasks that replace groups without variance (dynamic sampling).

    None is the algorithm's own: 10 for DAPO, 0 for the others.
    """
    denominator: Literal["informative", "all"] = "informative"
    """Whether groups without variance are in the loss's mean and KL (all, as in TRL) or not."""
    keep_share: float = 1.0
    """Train on this share of the groups, those with the largest spread (StarPO-S: 0.25)."""
    keep_top_p: float = 1.0
    """Train on the groups that hold this share of all spread, largest first (RAGEN-2: 0.9)."""
    critic: Literal["shared", "separate"] = "shared"
    """PPO: a value head on the policy's hidden states, or on a second trunk."""
    gamma: float = 1.0
    lam: float = 0.95
    value_coefficient: float = 0.5
    """Weight of the critic's loss; 0 leaves the critic at zero, where it starts."""
    value_clip: float = 0.2
    whiten: bool = False
    """PPO: normalise advantages to zero mean and unit variance over the batch."""
    world_loss: float = 0.0
    """Weight of cross-entropy on the tokens of the world between the model's turns (ECHO)."""
    schedule: Literal["sync", "async"] = "sync"
    """sync: play, then train; a resumed run is bit-identical.

    async: play while the model trains, for slow worlds; groups are taken as they finish.
    """
    staleness: int = 1
    """async: how many updates older than the current weights a trained token may be."""
    learning_rate: float = 3e-4
    critic_learning_rate: float = 0.0
    """PPO: of the critic; 0 is that of the policy."""
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; 0 is off."""
    share_prefix: bool = True
    """A group's prompt goes through the model once; changes no result."""
    mismatch_limit: float = 0.5
    """Stop when sampler and trainer differ by more than this in a token's log-prob, on average."""
    importance_cap: float = 0.0
    """Weight tokens by trainer / sampler probability, at most this; 0 is off."""
    hang_limit: float = 30.0
    """Seconds without a heartbeat after which the watchdog reports what is hanging.

    Ten times as long while a model trains: a slow machine may need minutes for one pack.
    """
    save_every: int = 0
    """Optimiser steps between checkpoints; 0 saves none."""
    report_to: Local[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant; what depends on two of them is in `check`."""
        super().__post_init__()
        check_least(self, groups=1, group_size=1, mini_batches=1, epochs=1)
        check_above_zero(self, "learning_rate", "keep_share", "keep_top_p")
        check_above_zero(self, "mismatch_limit", "hang_limit")
        check_share(self, "keep_share", "keep_top_p", "gamma", "lam")

    def check(self, *, processes: int) -> None:
        """Refuse what cannot be run, before anything is loaded."""
        if self.group_size < 2 and self.algorithm != "ppo" and not self.world_loss:
            raise ConfigError(
                "group_size",
                f"{self.algorithm} compares the episodes of a task, and there is only one",
                "set group_size=2 or more",
            )
        if self.groups % processes:
            raise ConfigError(
                "groups", f"{self.groups} tasks cannot be shared by {processes} processes"
            )
        own = self.groups // processes
        if own % self.mini_batches:
            raise ConfigError(
                "mini_batches",
                f"{own} groups of a process cannot be divided into {self.mini_batches} equal parts",
                "set a number that divides groups / processes",
            )
        if self.save_every % self.steps_per_batch:
            raise ConfigError(
                "save_every",
                f"{self.save_every} is not a multiple of mini_batches x epochs = "
                f"{self.steps_per_batch}",
                "a checkpoint is written between two batches of episodes",
            )
        if self.schedule == "async":
            self._check_async()
        if self.credit == "turn" and self.algorithm == "ppo":
            raise ConfigError(
                "credit", "a critic already gives each token its own value", "use a group estimator"
            )
        if ESTIMATORS[self.algorithm].ratio == "episode":
            self._check_one_ratio()
        if self.critic_learning_rate and self.algorithm != "ppo":
            raise ConfigError("critic_learning_rate", f"{self.algorithm} has no critic", "set 0")
        if self.world_loss and self.algorithm == "ppo":
            raise ConfigError(
                "world_loss", "a critic values the model's own tokens only", "use a group estimator"
            )

    def check_rollout(self, *, temperature: float, history: History) -> None:
        """Refuse episodes that these settings cannot train on."""
        if temperature <= 0:
            raise ConfigError(
                "temperature",
                f"{temperature:g} has no log-probabilities to train on",
                "set a temperature above 0",
            )
        if history == "sampled":
            return
        if self.world_loss:
            raise ConfigError(
                "world_loss",
                f"with history={history} an episode holds no token of the world",
                "set history=sampled",
            )
        if ESTIMATORS[self.algorithm].ratio == "episode":
            raise ConfigError(
                "algorithm",
                f"{self.algorithm} has one ratio for a whole episode, and history={history} "
                "divides it into turns",
                "use grpo, dr_grpo, dapo or ppo, or set history=sampled",
            )

    def _check_async(self) -> None:
        if self.refill_rounds:
            raise ConfigError(
                "refill",
                "groups are replaced between two steps, and schedule=async has no such pause",
                "set refill=0, or schedule=sync",
            )
        if self.importance_cap:
            raise ConfigError(
                "importance_cap",
                "with schedule=async the clipped ratio is already that to the sampler",
                "set importance_cap=0, or schedule=sync",
            )
        if self.staleness < 1:
            raise ConfigError("staleness", f"{self.staleness} is not possible", "set 1 or more")

    def _check_one_ratio(self) -> None:
        """An episode that is one action has one advantage and one importance weight."""
        for name in ("credit", "importance_cap"):
            neutral = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != neutral:
                raise ConfigError(
                    name,
                    f"{self.algorithm} has one ratio for an episode, not one per turn or token",
                    f"use {name}={neutral}, or another algorithm",
                )

    @property
    def steps_per_batch(self) -> int:
        """Optimiser steps on each batch of episodes."""
        return self.mini_batches * self.epochs

    @property
    def batches(self) -> int:
        """Batches of episodes of the run; the last one may be trained on for fewer steps."""
        return math.ceil(self.steps / self.steps_per_batch)

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far a ratio may fall below 1 and rise above it."""
        high = ESTIMATORS[self.algorithm].clip_high if self.clip_high is None else self.clip_high
        return self.clip_low, self.clip_low if high is None else high

    @property
    def refill_rounds(self) -> int:
        return ESTIMATORS[self.algorithm].refill if self.refill is None else self.refill


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(MemoryConfig):
    """A learner: memory and precision. Losses and optimizer steps are arguments of its verbs."""

    share_prefix: bool = True
    """Neighbours with the same prompt read it once; changes no result."""
    temperature: float = 1.0
    """Log-probabilities are those of sampling at this temperature."""
    value_heads: int = 1
    """Outputs of a value head (TRL). With several, the target token says whose value is meant:
    token 0 is that of the first, token 1 that of the second."""


@dataclass(frozen=True, kw_only=True)
class VerlConfig(Configurable.Config):
    """What a verl run needs beyond `RlvrConfig`. The rest is verl's default.

    Any key of verl's own can be set, such as `--set verl.trainer.log_val_generations=5`. It is
    checked against verl's schema before anything starts.
    """

    nodes: int = 1
    devices: int = 0
    """Per node; 0 uses all that this machine has."""
    tensor_parallel: int = 1
    """Devices that share one rollout server."""
    server_memory: float = 0.5
    """Share of a device's memory that its rollout server may use."""
    episode_workers: int = 8
    """Processes that play episodes, over the whole cluster."""
    prompt_tokens: int = 1024
    """The longest prompt; with the rollout's `episode_tokens` it bounds a server's context."""
    restarts: int = 1
    """How often a run that lost a process starts again from its last checkpoint."""
    keys: Local[tuple[str, ...]] = ()
    """verl's own keys as `path=value`; later ones win, and all win over derived ones."""

    def __post_init__(self) -> None:
        check_not_negative(self)
        check_least(self, nodes=1, tensor_parallel=1, episode_workers=1, prompt_tokens=1)
        check_share(self, "server_memory")

    def open_key(self, path: str, text: str) -> Self:
        """`--set verl.<path>=<text>` for a path that is not one of the fields above."""
        return self.replace(keys=(*self.keys, f"{path}={text}"))


@dataclass(frozen=True, kw_only=True)
class TinkerConfig(Configurable.Config):
    """A Tinker-compatible endpoint, used with engine=tinker.

    The key is read from the environment variable TINKER_API_KEY and is written nowhere.
    """

    url: Local[str] = ""
    """The endpoint's address, such as http://127.0.0.1:8123."""
    base_model: Local[str] = ""
    """The model's name at the endpoint; empty is the pipeline's own `model`, or its folder."""
    lora_rank: int = 16
    """Rank of the adapter that all parts of a run train. The endpoint has no other weights."""
    reduction: Literal["measure", "sum", "mean"] = "measure"
    """How the endpoint reduces a loss over tokens and rows; it is measured on an unused adapter."""
    pad_tokens: int = 64
    """Rows are padded to this length, doubled until all of a step fit: few shapes are compiled.

    0 pads nothing, for endpoints that bill by the token; they must reduce by a sum.
    """
    batch_rows: int = 32
    """Rows in one call; the last call is filled up."""
    beta2: float = 0.95
    """Of Adam: Tinker's own, which forgets moments that a server restores with SFT's weights within
    tens of steps of RL; TRL and verl have 0.999."""

    def __post_init__(self) -> None:
        check_not_negative(self)
        check_least(self, batch_rows=1)
        check_share(self, "beta2")


VllmConfig = VllmServer.Config


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Configurable.Config):
    """Where models are trained and sampled. Every pipeline with a model has these settings."""

    engine: Local[Literal["trl", "verl", "tinker"]] = "trl"
    """trl: a laptop or one node; verl: a cluster; tinker: somebody else's, over HTTP."""
    sampler: Local[Literal["auto", "local", "vllm"]] = "auto"
    """local: in this process, for small models; vllm: a server that the engine starts.

    auto is local for small models and vllm for others. On verl both are servers of verl's own.
    """
    vllm: Local[VllmConfig] = field(default_factory=VllmConfig)
    verl: Local[VerlConfig] = field(default_factory=VerlConfig)
    """Used with engine=verl; any key of verl's own can be set here, too."""
    tinker: Local[TinkerConfig] = field(default_factory=TinkerConfig)

    @property
    def engine_settings(self) -> EngineConfig:
        """These settings alone, without those of the pipeline or command that has them."""
        return EngineConfig(
            **{each.name: getattr(self, each.name) for each in fields(EngineConfig)}
        )
