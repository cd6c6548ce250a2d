"""Whose memory a gradient is: keeping it without a copy, where nobody else can get at it.

A measuring step keeps the gradients of its two sides while others are evaluated. Autograd allocates
fresh memory for each, so mostly the tensor itself can be kept. But ``.grad`` may also be a view of
a DDP bucket, a buffer that the closure fills again, a tensor that a hook has stashed away, or
memory that numpy owns; then the next evaluation might overwrite what was kept.

The rule is to count. A gradient that nobody else refers to is referred to by ``param.grad`` and
by nothing more: not as a Python object, not as a C++ tensor (another parameter's ``.grad``, a
view's base, autograd's graph, DLPack), not through its storage, as object or in C++ (detached
aliases, numpy arrays). Its memory must be torch's own, private to the process, and hold nothing
else. What counts as nothing more is measured on a tensor that is certainly like that, by the same
code. Where torch or Python cannot tell, or a count is higher, the gradient is copied.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .sharding import local

__all__ = ["Keeper", "is_owned", "kept", "references"]


References = tuple[int, int, int, int]
"""How often something refers to a gradient: to the tensor as a Python object and in C++, to its
storage as a Python object and in C++."""


def references(param: Tensor) -> References | None:
    """Who refers to ``param.grad``, this function's own references included; None if unknown.

    Takes the parameter, not the gradient, so that no caller's reference counts.
    """
    grad: Any = param.grad
    storage = grad.untyped_storage()
    try:
        of_storage = torch._C._storage_Use_Count(storage._cdata)
        return sys.getrefcount(grad), grad._use_count(), sys.getrefcount(storage), of_storage
    except AttributeError:  # neither Python nor torch promises these counters
        return None


@functools.cache
def _own_references() -> References | None:
    """`references` of a gradient that nobody else refers to."""
    param = nn.Parameter(torch.zeros(1, device="cpu"))
    param.grad = torch.zeros(1, device="cpu")
    return references(param)


def is_owned(param: Tensor) -> bool:
    """Whether nothing but ``param.grad`` refers to the gradient or its memory.

    False for what other processes or libraries may write to, and for part of a larger storage.
    """
    if type(param.grad) is not Tensor or param.grad.layout != torch.strided:
        return False
    found = references(param)
    if found is None or found != _own_references() or not _are_counts_exact():
        return False
    grad = param.grad
    if grad.requires_grad or weakref.getweakrefcount(grad):
        return False
    storage = grad.untyped_storage()
    if not storage.resizable() or storage.nbytes() != grad.nbytes:
        return False
    return not (grad.is_cpu and storage.is_shared())


def _are_counts_exact() -> bool:
    """Without a global lock references are counted only roughly."""
    return sys.version_info < (3, 13) or bool(sys._is_gil_enabled())


def kept(param: Tensor) -> Tensor:
    """``param.grad``, safe from whatever happens after ``param.grad = None``: copied, unless owned.

    Not to be called on CUDA outside a capture: graphs made by torch.compile reuse the memory
    behind live tensors.
    """
    assert param.grad is not None
    return param.grad if is_owned(param) else local(param.grad).clone()


class Keeper:
    """Keeps gradients from one evaluation to the update, in memory reused from step to step.

    Fresh memory costs more than the copy itself: on a CPU it is handed out page by page, on a GPU
    there may be hundreds of pieces, and they are copied in one call.
    """

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, str], Tensor] = {}
        self._sets: dict[tuple[torch.device, str], list[Tensor]] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # who traces a count adds to it
    def keep(self, params: Sequence[Tensor], indices: Sequence[int], name: str) -> list[Tensor]:
        """The gradients, local, of parameters on one device, each with its index; those that were
        kept under this name before are overwritten.
        """
        device = params[0].device if params else torch.device("cpu")
        if device.type == "cpu":
            return [self._keep(p, (i, name)) for p, i in zip(params, indices, strict=True)]
        grads = [_local(param.grad) for param in params]
        there = self._sets.get((device, name), [])
        if [(t.shape, t.dtype) for t in there] != [(g.shape, g.dtype) for g in grads]:
            there = self._sets[device, name] = [torch.empty_like(grad) for grad in grads]
        torch._foreach_copy_(there, grads)
        return there

    def _keep(self, param: Tensor, place: tuple[int, str]) -> Tensor:
        assert param.grad is not None
        if is_owned(param):
            return param.grad
        mine = local(param.grad)
        there = self._pieces.get(place)
        if there is None or not _alike(there, mine):
            there = self._pieces[place] = torch.empty_like(mine)
        return there.copy_(mine)

    def forget(self) -> None:
        """Let go of the memory."""
        self._pieces.clear()
        self._sets.clear()


def _local(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad if type(grad) is Tensor else local(grad)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
