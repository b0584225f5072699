"""Follows one training pack, and one pass of the in-process sampler, on fake tensors.

What is followed is the code that trains: the real packer, the real attention, the real log-probs
and losses, with the real shapes. Models with many layers are followed with a few, twice, and
continued along the line: every layer adds the same.
    need = train_bytes(spec, TrainStep(examples=(ExampleShape(prompt=500, completion=9),) * 8))
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

import torch

from terrella.core.tokens import TrainExample
from terrella.engines.local.rows import READ_LENGTH, READ_TOKENS
from terrella.engines.local.slot_cache import SlotCache
from terrella.engines.memory.live_bytes import LiveBytes, fake_tensors, to_fake
from terrella.engines.memory.model_spec import ModelSpec, make_model

FEW_LAYERS, MORE_LAYERS = 3, 5
SAMPLED_BYTES = 40
"""Per row and word while a token is drawn: fp32 logits three times, then sums in float64.

See `sample_tokens`: scaled logits, log-probs and scores, and their exponentials and sums.
"""
B = TypeVar("B", "TrainBytes", "SampleBytes")


@dataclass(frozen=True, kw_only=True)
class ExampleShape:
    """Lengths of one training example, in tokens."""

    prompt: int
    completion: int


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """What decides the memory of a training step on one device."""

    examples: tuple[ExampleShape, ...]
    members: int = 1
    """So many neighbours have the same prompt."""
    pack_tokens: int = 2048
    share_prefix: bool = True
    bf16: bool = False
    gradient_checkpointing: bool = False
    lora_rank: int = 0
    critic: Literal["", "shared", "separate"] = ""
    entropy_bonus: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainBytes:
    """Bytes of one training process, before anything is shared among processes."""

    weights: float
    """All parameters, frozen ones included, as they are kept: fp32."""
    trained: float
    """Parameters that an optimiser moves."""
    casts: float
    """bf16 copies of weights that autocast keeps from the forward to the backward pass."""
    activations: float
    logits: float
    block: float
    """The parameters of one layer: what FSDP2 gathers at a time."""
    outside: float
    """The parameters outside the layers: FSDP2 gathers them for the whole pass."""
    pack: float
    """Tokens of the largest pack."""


@dataclass(frozen=True, kw_only=True)
class SampleBytes:
    """Bytes of the in-process sampler beside the weights."""

    cache: float
    """Keys and values as they are reserved."""
    passing: float
    """Activations and logits of one pass."""


@functools.lru_cache(maxsize=512)
def train_bytes(spec: ModelSpec, step: TrainStep) -> TrainBytes:
    """Follow the largest pack of a step: forward, loss, backward."""
    return _by_layers(spec, lambda few: _follow_training(few, step))


@functools.lru_cache(maxsize=512)
def sample_bytes(spec: ModelSpec, *, rows: int, columns: int, bf16: bool) -> SampleBytes:
    """Follow a prefill and a decoding pass of `LocalSampler` with all rows busy."""
    return _by_layers(spec, lambda few: _follow_sampling(few, rows, columns, bf16))


def _by_layers(spec: ModelSpec, follow: Callable[[ModelSpec], B]) -> B:
    layers = spec.config.num_hidden_layers
    if layers <= MORE_LAYERS:
        return follow(spec)
    few, more = (follow(spec.with_layers(count)) for count in (FEW_LAYERS, MORE_LAYERS))
    share = (layers - FEW_LAYERS) / (MORE_LAYERS - FEW_LAYERS)
    values = {}
    for each in fields(few):
        first, second = getattr(few, each.name), getattr(more, each.name)
        values[each.name] = first + share * (second - first)
    return type(few)(**values)


# --- training -------------------------------------------------------------------------------------


def _follow_training(spec: ModelSpec, step: TrainStep) -> TrainBytes:
    from terrella.engines.trl.packs import read_pack, target_logprobs

    pack = largest_pack(step, width=spec.config.hidden_size)
    model = _trainable(spec, step)
    with fake_tensors():
        to_fake(model)
        live = LiveBytes(vocabulary=spec.config.vocab_size)
        with live:
            live.follow(model)
            with torch.autocast("cpu", torch.bfloat16, enabled=step.bf16):
                output = read_pack(model, pack)
            logprobs, entropy = target_logprobs(output, pack, entropy_gradient=step.entropy_bonus)
            loss = (logprobs + entropy).sum() + (output["values"].sum() if step.critic else 0.0)
            del output, logprobs
            loss.backward()  # type: ignore[no-untyped-call]
            del loss, entropy
        sizes = _parameter_bytes(model)
    peak = live.peak
    return TrainBytes(
        weights=sizes["all"],
        trained=sizes["trained"],
        casts=peak["casts"],
        activations=peak["activations"],
        logits=peak["logits"],
        block=sizes["block"],
        outside=sizes["outside"],
        pack=len(pack.ids_N),
    )


def largest_pack(step: TrainStep, *, width: int) -> Any:
    """The longest pack that the packer makes of these examples."""
    from terrella.engines.trl.packs import pack_episodes

    examples = [_example(shape, index // step.members) for index, shape in enumerate(step.examples)]
    packs = pack_episodes(
        examples, max_tokens=step.pack_tokens, share_prefix=step.share_prefix, width=width
    )
    return max(packs, key=lambda pack: (len(pack.ids_N), len(pack.targets_M)))


def _example(shape: ExampleShape, first: int) -> TrainExample:
    """Every token of the completion is a target: the most that can be."""
    prompt = [first, *[0] * (shape.prompt - 1)]
    size = max(2, shape.completion)
    return TrainExample(prompt_ids=prompt, completion_ids=[0] * size, mask=[True] * size)


def _trainable(spec: ModelSpec, step: TrainStep) -> Any:
    from terrella.engines.trl.arguments import lora
    from terrella.engines.trl.critic import attach_critic
    from terrella.engines.trl.tree_attention import use_attention

    model = make_model(spec)
    use_attention(model, "auto")
    if step.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if step.lora_rank:
        from peft import get_peft_model

        model = get_peft_model(model, lora(step.lora_rank))
        if step.gradient_checkpointing:
            model.enable_input_require_grads()
    if step.critic:
        attach_critic(model, step.critic)
    return model.train()


def _parameter_bytes(model: Any) -> dict[str, float]:
    named = [(name, each.numel() * each.element_size()) for name, each in model.named_parameters()]
    first_block = sum(size for name, size in named if ".layers.0." in name)
    return {
        "all": float(sum(size for _, size in named)),
        "trained": float(
            sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        ),
        "block": float(first_block),
        "outside": float(sum(size for name, size in named if ".layers." not in name)),
    }


# --- sampling -------------------------------------------------------------------------------------


def _follow_sampling(spec: ModelSpec, rows: int, columns: int, bf16: bool) -> SampleBytes:
    model = make_model(spec).eval()
    with fake_tensors(), torch.inference_mode():
        to_fake(model)
        dtype = torch.bfloat16 if bf16 else torch.float32
        cache = SlotCache(model.config, device=torch.device("cpu"), dtype=dtype)
        cache.reserve(rows, columns)
        kept = cache.keys.untyped_storage().nbytes() + cache.values.untyped_storage().nbytes()
        # Rows of a piece's length fill a pass; what is before them is in the cache.
        piece = min(columns, READ_LENGTH)
        passes = [(rows, 1), (max(1, min(rows, READ_TOKENS // piece)), piece)]
        peaks = [_follow_pass(model, cache, *shape, columns, bf16) for shape in passes]
    drawing = rows * spec.config.vocab_size * SAMPLED_BYTES
    return SampleBytes(cache=float(kept), passing=float(max(*peaks, drawing)))


def _follow_pass(
    model: Any, cache: SlotCache, rows: int, tokens: int, columns: int, bf16: bool
) -> float:
    live = LiveBytes(vocabulary=model.config.vocab_size)
    with live:
        live.follow(model)
        live.keep((cache.keys, cache.values))
        # `write_at` reads the largest column, which a tensor without data does not have.
        cache.columns = torch.zeros(rows, tokens, dtype=torch.long)
        cache.width = columns
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            model(
                input_ids=torch.zeros(rows, tokens, dtype=torch.long),
                position_ids=cache.columns,
                attention_mask=cache.mask(),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
    return float(live.peak.total() - live.peak["weights"])
