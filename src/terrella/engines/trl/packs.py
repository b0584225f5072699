"""Packs: many episodes in one sequence, each group's prompt once, no padding.

    [prompt A | completion A1 | completion A2 | prompt B | completion B1 | ...]
A completion looks at its own prompt and at itself, and its positions go on from its prompt's, so that every
log-probability and every gradient is what it would be alone. Only tokens that carry loss are targets: the world's
tokens are read, never predicted.
    for pack in pack_episodes(rows, max_tokens=2048): logprobs, entropy = token_logprobs(model, pack)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from terrella.engines.trl.tree_attention import attention_arguments

GROUP_TOKENS = 8192
"""A group that shares a long prompt is kept whole up to here, whatever a pack holds otherwise: that is the saving."""


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """An episode as it is trained on: per completion token a mask, and named columns of numbers."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    mask: Sequence[bool]
    """True where the token is a target."""
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pack:
    """One training sequence. N tokens are read, M of them predict a target."""

    ids_N: Tensor
    positions_N: Tensor
    segments_N: Tensor
    """Which prompt or completion a token belongs to."""
    prefixes_N: Tensor
    """The segment it may also look at: its prompt's."""
    predictors_M: Tensor
    """Place (in N) of the token that predicts target m."""
    targets_M: Tensor
    groups: tuple[int, ...]
    """Lengths (they add up to N) of what does not see each other: a prompt with its completions."""
    columns: dict[str, Tensor]

    def to(self, device: Any) -> Pack:
        """The same pack on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        columns = {name: value.to(device) for name, value in self.columns.items()}
        return Pack(**moved, groups=self.groups, columns=columns)

    def only(self, wanted_M: Tensor) -> Pack:
        """The same pack with fewer targets."""
        columns = {name: value[wanted_M] for name, value in self.columns.items()}
        return replace(self, predictors_M=self.predictors_M[wanted_M], targets_M=self.targets_M[wanted_M],
                       columns=columns)  # fmt: skip

    @classmethod
    def empty(cls, device: Any) -> Pack:
        """One token that predicts nothing: what a process runs while others still have work."""
        zero, none = torch.zeros(1, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        pack = cls(ids_N=zero, positions_N=zero, segments_N=zero, prefixes_N=zero, predictors_M=none, targets_M=none,
                   groups=(1,), columns={})  # fmt: skip
        return pack.to(device)

    def attention(self, implementation: str) -> dict[str, Any]:
        """Tree-shaped attention, as arguments of a forward pass: causal inside a segment, and onto its prompt."""
        return attention_arguments(self.segments_N, self.prefixes_N, self.groups, implementation)


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

    def add_group(self, rows: Sequence[TrainingRow]) -> None:
        prompt, prefix, first = rows[0].prompt_ids, self.segment, len(self.ids)
        self._extend(prompt, 0, prefix)
        end = len(self.ids) - 1
        for row in rows:
            self._add_completion(row, prompt_end=end, prefix=prefix, start=len(prompt))
        self.groups.append(len(self.ids) - first)

    def _add_completion(self, row: TrainingRow, *, prompt_end: int, prefix: int, start: int) -> None:
        first = len(self.ids)
        self._extend(row.completion_ids[:-1], start, prefix)  # the last token predicts nothing
        places = [place for place, wanted in enumerate(row.mask) if wanted]
        self.predictors += [prompt_end if place == 0 else first + place - 1 for place in places]
        self.targets += [row.completion_ids[place] for place in places]
        for name, values in row.columns.items():
            self.columns.setdefault(name, []).extend(values[place] for place in places)

    def _extend(self, ids: Sequence[int], start: int, prefix: int) -> None:
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.segments += [self.segment] * len(ids)
        self.prefixes += [prefix] * len(ids)
        self.segment += 1

    def pack(self) -> Pack:
        return Pack(
            ids_N=torch.tensor(self.ids), positions_N=torch.tensor(self.positions),
            segments_N=torch.tensor(self.segments), prefixes_N=torch.tensor(self.prefixes),
            predictors_M=torch.tensor(self.predictors, dtype=torch.long),
            targets_M=torch.tensor(self.targets, dtype=torch.long), groups=tuple(self.groups),
            columns={name: torch.tensor(values) for name, values in self.columns.items()},
        )  # fmt: skip


def pack_episodes(
    rows: Iterable[TrainingRow], *, max_tokens: int, share_prefix: bool = True, width: int | None = None
) -> list[Pack]:
    """Rows in order; neighbours with the same prompt share it, up to `GROUP_TOKENS` of them.

    Given the model's `width`, they do so only where it is faster (`sharing_pays`).
    """
    builders: list[_Builder] = []
    for group in _groups(rows, max(max_tokens, GROUP_TOKENS), share_prefix, width):
        size = _group_tokens(group)
        if not builders or len(builders[-1].ids) + size > max_tokens:
            builders.append(_Builder())
        builders[-1].add_group(group)
    return [builder.pack() for builder in builders]


def _groups(
    rows: Iterable[TrainingRow], max_tokens: int, share_prefix: bool, width: int | None
) -> list[list[TrainingRow]]:
    groups: list[list[TrainingRow]] = []
    for row in rows:
        if not any(row.mask):
            continue  # nothing to learn from it: a masked verdict, or a group without variance
        last = groups[-1] if groups else None
        shares = share_prefix and last is not None and last[0].prompt_ids == row.prompt_ids
        if last is not None and shares and _group_tokens([*last, row]) <= max_tokens:
            last.append(row)
        else:
            groups.append([row])
    return [part for group in groups for part in ([group] if sharing_pays(group, width) else [[row] for row in group])]


def sharing_pays(group: Sequence[TrainingRow], width: int | None) -> bool:
    """Whether reading a prompt once saves more than its completions' masked attention to each other costs.

    Per layer a token costs 24 width^2 operations in the linear maps, and a pair 4 width in a dense attention.
    """
    if width is None:
        return True
    prompt = len(group[0].prompt_ids)
    alone = sum((prompt + len(row.completion_ids) - 1) ** 2 for row in group)
    return (len(group) - 1) * prompt * 6 * width >= _group_tokens(group) ** 2 - alone


def _group_tokens(group: Sequence[TrainingRow]) -> int:
    return len(group[0].prompt_ids) + sum(len(row.completion_ids) - 1 for row in group)


def read_pack(model: Any, pack: Pack, *, attention: str = "sdpa") -> Any:
    """The model's output at the places that predict a target; `logits` are [1, M, V]."""
    return model(
        input_ids=pack.ids_N[None], position_ids=pack.positions_N[None], logits_to_keep=pack.predictors_M,
        use_cache=False, **pack.attention(attention),
    )  # fmt: skip


def target_logprobs(output: Any, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, with gradient, and the entropy of its distribution, without. [M], [M]."""
    scores = torch.log_softmax(output.logits[0].float() / temperature, dim=-1)
    with torch.no_grad():
        entropy = -(scores.exp() * scores).sum(-1)
    return scores.gather(-1, pack.targets_M[:, None])[:, 0], entropy


def token_logprobs(
    model: Any, pack: Pack, *, temperature: float = 1.0, attention: str = "sdpa"
) -> tuple[Tensor, Tensor]:
    """Both at once: one pass over a pack."""
    return target_logprobs(read_pack(model, pack, attention=attention), pack, temperature=temperature)
