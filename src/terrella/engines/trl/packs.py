"""Packs: many episodes in one sequence, each group's prompt once, no padding.

    [prompt A | completion A1 | completion A2 | prompt B | completion B1 | ...]
A completion attends to its own prompt and to itself, and its positions continue its prompt's. Every
log-probability and gradient is therefore the same as for the episode alone. Only tokens that carry
loss are targets: the world's tokens are read, never predicted.
    for pack in pack_episodes(examples, max_tokens=2048):
        logprobs, entropy = token_logprobs(model, pack)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from terrella.core.tokens import TrainExample
from terrella.engines.trl.chunked_logprobs import CHUNK, logprobs_of, scaled
from terrella.engines.trl.tree_attention import (
    Attention,
    TokenPlaces,
    attention_arguments,
    attention_of,
)


@dataclass(frozen=True, kw_only=True)
class Pack:
    """One training sequence of N tokens, with M targets."""

    ids_N: Tensor
    positions_N: Tensor
    segments_N: Tensor
    """The prompt or completion that a token belongs to."""
    prefixes_N: Tensor
    """The other segment that a token may attend to: its prompt."""
    predictors_M: Tensor
    """Index (in N) of the token that predicts target m."""
    targets_M: Tensor
    groups: tuple[int, ...]
    """Lengths of the groups, which add up to N. A group is a prompt with its completions;
    groups do not attend to each other."""
    columns: dict[str, Tensor]

    def to(self, device: Any) -> Pack:
        moved = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        columns = {name: value.to(device) for name, value in self.columns.items()}
        return Pack(**moved, groups=self.groups, columns=columns)

    def only(self, wanted_M: Tensor) -> Pack:
        """The same pack with only the targets that `wanted_M` selects."""
        columns = {name: value[wanted_M] for name, value in self.columns.items()}
        return replace(
            self,
            predictors_M=self.predictors_M[wanted_M],
            targets_M=self.targets_M[wanted_M],
            columns=columns,
        )

    @classmethod
    def empty(cls, device: Any) -> Pack:
        """One token without a target: a process runs it while others still have packs."""
        zero, none = torch.zeros(1, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        pack = cls(
            ids_N=zero,
            positions_N=zero,
            segments_N=zero,
            prefixes_N=zero,
            predictors_M=none,
            targets_M=none,
            groups=(1,),
            columns={},
        )
        return pack.to(device)

    @property
    def places(self) -> TokenPlaces:
        return TokenPlaces(self.segments_N, self.prefixes_N, self.positions_N)

    def attention(self, attention: Attention) -> dict[str, Any]:
        """Arguments of a forward pass for the pack's attention.

        A token attends causally within its segment and to its prompt.
        """
        return attention_arguments(self.places, self.groups, attention)


class _Builder:
    """Collects groups until a pack is full."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.segments: list[int] = []
        self.prefixes: list[int] = []
        self.predictors: list[int] = []
        self.targets: list[int] = []
        self.columns: dict[str, list[float]] = {}
        self.groups: list[int] = []
        self.segment = 0

    def add_group(self, examples: Sequence[TrainExample]) -> None:
        prompt = examples[0].prompt_ids
        prefix = self.segment
        first = len(self.ids)
        self._extend(prompt, 0, prefix)
        end = len(self.ids) - 1
        for example in examples:
            self._add_completion(example, prompt_end=end, prefix=prefix, start=len(prompt))
        self.groups.append(len(self.ids) - first)

    def _add_completion(
        self, example: TrainExample, *, prompt_end: int, prefix: int, start: int
    ) -> None:
        first = len(self.ids)
        self._extend(example.completion_ids[:-1], start, prefix)  # the last token predicts nothing
        indices = target_indices(example)
        self.predictors += [prompt_end if index == 0 else first + index - 1 for index in indices]
        self.targets += [example.completion_ids[index] for index in indices]
        for name, values in example.columns.items():
            self.columns.setdefault(name, []).extend(values[index] for index in indices)

    def _extend(self, ids: Sequence[int], start: int, prefix: int) -> None:
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.segments += [self.segment] * len(ids)
        self.prefixes += [prefix] * len(ids)
        self.segment += 1

    def pack(self) -> Pack:
        return Pack(
            ids_N=torch.tensor(self.ids),
            positions_N=torch.tensor(self.positions),
            segments_N=torch.tensor(self.segments),
            prefixes_N=torch.tensor(self.prefixes),
            predictors_M=torch.tensor(self.predictors, dtype=torch.long),
            targets_M=torch.tensor(self.targets, dtype=torch.long),
            groups=tuple(self.groups),
            columns={name: torch.tensor(values) for name, values in self.columns.items()},
        )


def target_indices(example: TrainExample) -> list[int]:
    """Places of the targets in a completion. After an empty prompt nothing predicts the first."""
    first = 0 if example.prompt_ids else 1
    return [index for index, is_target in enumerate(example.mask) if is_target and index >= first]


def pack_episodes(
    examples: Iterable[TrainExample],
    *,
    max_tokens: int,
    share_prefix: bool = True,
    width: int | None = None,
) -> list[Pack]:
    """Pack examples in order; neighbours with the same prompt share it.

    A pack has at most `max_tokens`, or holds one example that is longer. A group that does not fit
    is divided, and each part reads the prompt. Given the model's `width`, a prompt is shared only
    where that is faster (`sharing_pays`).
    """
    builders: list[_Builder] = []
    for group in _groups(examples, max_tokens, share_prefix, width):
        size = _group_tokens(group)
        if not builders or len(builders[-1].ids) + size > max_tokens:
            builders.append(_Builder())
        builders[-1].add_group(group)
    return [builder.pack() for builder in builders]


def _groups(
    examples: Iterable[TrainExample], max_tokens: int, share_prefix: bool, width: int | None
) -> list[list[TrainExample]]:
    groups: list[list[TrainExample]] = []
    for example in examples:
        if not target_indices(example):
            continue  # no targets: a masked verdict, or a group without variance
        last = groups[-1] if groups else None
        shares = share_prefix and last is not None and last[0].prompt_ids == example.prompt_ids
        if last is not None and shares and _group_tokens([*last, example]) <= max_tokens:
            last.append(example)
        else:
            groups.append([example])
    parts: list[list[TrainExample]] = []
    for group in groups:
        parts += [group] if sharing_pays(group, width) else [[example] for example in group]
    return parts


def sharing_pays(group: Sequence[TrainExample], width: int | None) -> bool:
    """Whether sharing a prompt saves more time than it costs.

    It saves reading the prompt again for each completion. It costs attention between completions
    that is computed and masked. Per layer a token costs 24 width^2 operations in the linear layers,
    and a pair of tokens costs 4 width in dense attention.
    """
    if width is None:
        return True
    prompt = len(group[0].prompt_ids)
    alone = sum((prompt + len(example.completion_ids) - 1) ** 2 for example in group)
    return (len(group) - 1) * prompt * 6 * width >= _group_tokens(group) ** 2 - alone


def _group_tokens(group: Sequence[TrainExample]) -> int:
    return len(group[0].prompt_ids) + sum(len(example.completion_ids) - 1 for example in group)


def read_pack(model: Any, pack: Pack, *, attention: Attention | None = None) -> Any:
    """The model's output at the tokens that predict a target; `logits` are [1, M, V].

    A model inside a wrapper without a config needs to be told its attention.
    """
    return model(
        input_ids=pack.ids_N[None],
        position_ids=pack.positions_N[None],
        logits_to_keep=pack.predictors_M,
        use_cache=False,
        **pack.attention(attention or attention_of(model)),
    )


def target_logprobs(
    output: Any, pack: Pack, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability [M] of each target, and the entropy [M] of its distribution.

    Gradients flow through the log-probabilities, and through the entropies if they are asked for.
    """
    return logprobs_of(
        output.logits[0],
        pack.targets_M,
        temperature=temperature,
        entropy_gradient=entropy_gradient,
    )


@torch.no_grad()
def mass_outside(output: Any, allowed: Tensor, *, temperature: float = 1.0) -> Tensor:
    """[M]: the probability of all tokens that are not among the `allowed` ids."""
    parts = []
    for logits in output.logits[0].split(CHUNK):
        scores = scaled(logits, temperature)
        parts.append(torch.logsumexp(scores[:, allowed], -1) - torch.logsumexp(scores, -1))
    return -torch.expm1(torch.cat(parts).clamp(max=0.0))


def token_logprobs(
    model: Any, pack: Pack, *, temperature: float = 1.0, attention: Attention | None = None
) -> tuple[Tensor, Tensor]:
    """Forward pass over a pack: log-probabilities and entropies of its targets."""
    return target_logprobs(
        read_pack(model, pack, attention=attention), pack, temperature=temperature
    )
