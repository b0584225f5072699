"""Counts the bytes of all tensors that are alive, and remembers what was alive at the peak.

It works on fake tensors, which have shapes and a device but no data. So a training step of any size
can be followed, allocation by allocation, on a laptop.
    with fake_tensors(), LiveBytes() as live:
        loss(model, pack).backward()
    live.peak["logits"]
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Kind = Literal["weights", "casts", "gradients", "logits", "activations"]
CASTS = torch.ops.aten._to_copy.default


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Inside, every new tensor has a shape and no data. Tensors from outside may be mixed in."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def to_fake(model: nn.Module) -> None:
    """Move a model from the meta device to fake memory, in place; inside `fake_tensors`.

    Autocast and attention kernels know no meta device. Modules cannot be moved by `to`, which
    refuses to exchange a meta tensor for a fake one.
    """
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is not None:
                    tensors[name] = moved.setdefault(id(old), _fake(old))  # type: ignore[assignment]


def _fake(old: Tensor) -> Tensor:
    new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes that are alive, by kind, and the same at the moment when most were alive.

    Gradients are left out of the peak: a plan counts them whole, because they are all there from
    the second pack of a step on.
    """

    def __init__(self, *, vocabulary: int = 0) -> None:
        """Tensors whose last dimension is the vocabulary count as logits."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.vocabulary = vocabulary
        self.live: Counter[Kind] = Counter()
        self.peak: Counter[Kind] = Counter()
        self._kinds: dict[int, tuple[Kind, int]] = {}
        self._weights: set[int] = set()
        self._shapes: set[tuple[int, ...]] = set()

    def follow(self, module: nn.Module) -> None:
        """Count the parameters and buffers of a module as weights; forget any peak so far."""
        self._shapes |= {tuple(each.shape) for each in module.parameters()}
        self.keep([*module.parameters(), *module.buffers()])

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were made before as weights; forget any peak so far."""
        for tensor in tensors:
            self._add(tensor, "weights")
            self._weights.add(_key(tensor))
        self.peak = +self.live

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        is_cast = function is CASTS and _key(args[0]) in self._weights
        for tensor in _tensors(made):
            self._add(tensor, "casts" if is_cast else self._kind(tensor))
        return made

    def _kind(self, tensor: Tensor) -> Kind:
        if self.vocabulary and tensor.dim() > 1 and tensor.shape[-1] == self.vocabulary:
            return "logits"
        backward = torch._C._current_graph_task_id() != -1
        is_gradient = backward and tuple(tensor.shape) in self._shapes
        return "gradients" if is_gradient else "activations"

    def _add(self, tensor: Tensor, kind: Kind) -> None:
        storage = tensor.untyped_storage()
        key = _key(tensor)
        if key in self._kinds:
            if kind == "weights":  # it was made before it was known to be a parameter
                self._drop(key)
                self._count(key, kind, storage.nbytes())
            return
        self._count(key, kind, storage.nbytes())
        weakref.finalize(storage, self._drop, key)
        if self._counted(self.live) > self._counted(self.peak):
            self.peak = +self.live

    def _count(self, key: int, kind: Kind, size: int) -> None:
        self._kinds[key] = (kind, size)
        self.live[kind] += size

    def _drop(self, key: int) -> None:
        kind, size = self._kinds.pop(key)
        self.live[kind] -= size

    @staticmethod
    def _counted(counts: Counter[Kind]) -> int:
        return counts.total() - counts["gradients"]


def _tensors(made: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor))


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata) if isinstance(tensor, Tensor) else 0
