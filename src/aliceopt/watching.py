"""What goes on around the evaluations of a step, and would make them wrong without a word.

A measuring step compares gradients. Buffers that every evaluation updates, gradients that are
clipped each by a factor of its own, batches that differ: each looks like curvature, or hides it.
Looking costs next to nothing: a hook on one parameter, and a look at the first measuring step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._pytree import tree_leaves

from .sharding import is_distributed, local
from .site import Site
from .warning import SLIPS, warn

__all__ = [
    "BatchWatch",
    "BufferWatch",
    "CenterWatch",
    "GradientWatch",
    "Watch",
    "called_without_gradient",
]

LOOKS = 64
"""Measuring steps whose edits are looked at; where there are any, that waits for the device."""

BLANKS = 8
"""How often gradients that are left may turn out to be zero, before all are taken to be."""

PART = 1024
"""Elements of a gradient that stand for all."""


_WITH_BUFFERS: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Modules that have registered a buffer since this package was imported."""


def _registered(module: nn.Module, name: str, buffer: Any) -> None:
    _WITH_BUFFERS.add(module)


register_module_buffer_registration_hook(_registered)


class BufferWatch:
    """Names the modules outside ``model`` whose buffers change while it watches.

    Without a model every forward pass is watched. Beside a model only the buffers that were
    registered elsewhere are: hooks on all modules would disturb torch.compile. Statistics may be
    updated by a kernel that leaves no mark on them, but then a counter beside them has one.
    """

    def __init__(self, model: nn.Module | None) -> None:
        guarded = set(map(id, model.modules())) if model is not None else set()
        others = list(_WITH_BUFFERS) if model is not None else []
        self._marks = [(m, _versions(m)) for m in others if id(m) not in guarded]
        self._before: dict[int, dict[int, int]] = {}
        self._seen: set[str] = set()
        self._handles: list[Any] = []
        if model is None:
            self._handles.append(register_module_forward_pre_hook(self._enter))
            self._handles.append(register_module_forward_hook(self._leave))

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._before[id(module)] = _versions(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._before.pop(id(module), None) != _versions(module):
            self._seen.add(type(module).__name__)

    def changed(self) -> str:
        """The types of those that changed; to be asked once."""
        for handle in self._handles:
            handle.remove()
        ticked = {type(m).__name__ for m, before in self._marks if _is_written(m, before)}
        return ", ".join(sorted(self._seen | ticked))


def _versions(module: nn.Module) -> dict[int, int]:
    """Of its buffers, by identity; one that was made in inference mode has none."""
    held = (b for b in module._buffers.values() if b is not None)
    return {id(b): 0 if b.is_inference() else b._version for b in held}


def _is_written(module: nn.Module, before: dict[int, int]) -> bool:
    """Whether a buffer was written to in place; those that are replaced are caches, mostly."""
    return any(before.get(i, version) != version for i, version in _versions(module).items())


class BatchWatch:
    """Compares what the model is called with, first in each round, with the round before."""

    def __init__(self) -> None:
        self._inputs: list[Tensor] = []
        self._seen = False

    def begin(self) -> None:
        """Another round."""
        self._seen = False

    def saw(self, inputs: Any) -> bool:
        """The model was called; whether it is a round's first call, with another batch."""
        if self._seen:
            return False
        now = [leaf for leaf in tree_leaves(inputs) if _is_data(leaf)]
        before, self._inputs, self._seen = self._inputs, now, True
        return bool(before) and not _same(before, now)


def _is_data(leaf: Any) -> bool:
    """Plain memory that nothing trained has made, and that can be looked at."""
    if type(leaf) is not Tensor or leaf.layout != torch.strided or leaf.requires_grad:
        return False
    batched = torch._C._functorch.is_functorch_wrapped_tensor(leaf)  # by vmap
    return not (batched or leaf.is_nested or leaf.is_meta)


def _same(before: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    kinds = [[(t.shape, t.dtype, t.device) for t in tensors] for tensors in (before, now)]
    if kinds[0] != kinds[1]:
        return False
    return all(
        a is b or bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(before, now, strict=True)
    )


class GradientWatch:
    """Follows part of one gradient through the rounds of a step: is it clipped after backward?

    It is the smallest of some size that got a gradient in the first round; what people do to
    gradients, they do to all. Clipping by norm leaves a multiple, by value a clamped copy. Other
    edits (noise, a mask, a penalty) are the user's business. In a process group nothing is said of
    the rounds: reducing over processes is an edit, too.
    """

    def __init__(self) -> None:
        self._param: Tensor | None = None
        self._handle: Any = None
        self._found: tuple[int, Tensor] | None = None
        self._edits: list[Tensor | None] = []

    def begin(self) -> None:
        """Another round."""
        self._found = None

    def end(self, sites: Sequence[Site]) -> None:
        """A round's gradients are there: what has become of them since backward?"""
        if self._param is None:
            self._choose(sites)
        elif self._param.grad is not None:
            grad, found = self._param.grad, self._found
            untouched = found is None or grad._version == found[0]
            self._edits.append(None if untouched or not found else _edit(found[1], _part(grad)))

    def _choose(self, sites: Sequence[Site]) -> None:
        given = [site.param for site in sites if type(site.param.grad) is Tensor]
        trained = [param for param in given if param.requires_grad]
        if trained:
            self._param = min(trained, key=lambda param: (param.numel() < 64, param.numel()))
        if self._param is not None and not is_distributed():
            self._handle = self._param.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, param: Tensor) -> None:
        if param.grad is not None:
            self._found = param.grad._version, _part(param.grad)

    def clipped(self) -> str:
        """How the rounds were clipped, each by itself; empty if they were not."""
        if self._param is None or all(edit is None for edit in self._edits):
            return ""
        edits = [(1.0, 1.0, 0.0) if e is None else tuple(e.tolist()) for e in self._edits]
        factors = [factor for factor, _, _ in edits]
        tolerance = 1e-5 + 16 * torch.finfo(self._param.dtype).eps
        apart = max(factors) - min(factors) > tolerance * max(map(abs, factors))
        if all(multiple for _, multiple, _ in edits):
            return f"by factors from {min(factors):.3g} to {max(factors):.3g}" if apart else ""
        return "by value" if any(clamped for _, _, clamped in edits) else ""

    def stop(self) -> None:
        """Follow it no longer."""
        if self._handle is not None:
            self._handle.remove()


class CenterWatch:
    """Notices gradients that somebody changes after the rounds: scaled, clipped, with noise, anew.

    Who only wants to know a norm clips at infinity, and that writes to them without a change. So
    each one's norm and largest element are kept; they are looked at only if it was written to.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._params = [param for param in params if local(param).numel()]
        self._marks = self._marks_now()
        held = [param for param in self._params if param.grad is not None]
        self._sizes = dict(zip(held, _sizes(held), strict=True))

    def _marks_now(self) -> list[tuple[int, int] | None]:
        grads = [param.grad for param in self._params]
        return [None if g is None else (id(g), g._version) for g in grads]

    def is_edited(self, scaler: Any = None) -> bool:
        """Whether any is not what it was, but for the scale that a scaler took out of all."""
        marks = zip(self._params, self._marks, self._marks_now(), strict=True)
        written = [param for param, old, new in marks if new is not None and new != old]
        if not written or not all(param in self._sizes for param in written):
            return bool(written)
        before = _together([self._sizes[param] for param in written])
        now, scale = _together(_sizes(written)), 1.0 if scaler is None else scaler.get_scale()
        rtol = 1e-5 + 4 * max(torch.finfo(param.dtype).eps for param in written)
        close = [before.isclose(n, rtol=rtol, atol=0.0, equal_nan=True) for n in (now, now * scale)]
        return not bool((close[0] | close[1]).all())


@torch.no_grad()
def _sizes(params: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """The norm of each one's gradient, and its largest element, which tells the sign."""
    grads = [local(param.grad) for param in params if param.grad is not None]
    if not grads:
        return []  # torch refuses that, and a process may have empty shards only
    return list(zip(torch._foreach_norm(grads), torch._foreach_max(grads), strict=True))


def _together(sizes: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """All in one tensor, so that there is one wait for the device."""
    home = sizes[0][0].device
    return torch.stack([size.to(home, torch.float32) for pair in sizes for size in pair])


def _part(grad: Tensor) -> Tensor:
    """A copy of a gradient's first elements."""
    return grad.detach().reshape(-1)[:PART].clone()


def _edit(before: Tensor, now: Tensor) -> Tensor:
    """The factor, whether ``now`` is that multiple of ``before``, and whether it is clamped."""
    a, b = before.float(), now.float()
    factor = (a * b).sum() / a.square().sum()
    largest = b.abs().max()
    multiple = (b - factor * a).abs().max() <= 16 * torch.finfo(now.dtype).eps * largest
    clamped = (b == a.clamp(-largest, largest)).all() & (b != a).any()
    return torch.stack([factor, multiple.to(factor), clamped.to(factor)])


def called_without_gradient(
    closure: Callable[[], Any], params: Iterable[Tensor]
) -> tuple[bool, Any]:
    """Whether a closure made no gradient for the smallest parameter that has one; its value."""
    made: list[Tensor] = []
    trained = [p for p in params if p.requires_grad and p.grad is not None]
    if not trained:
        return False, None
    param = min(trained, key=Tensor.numel)
    before = param.grad
    version = before._version if before is not None else 0
    handle = param.register_post_accumulate_grad_hook(made.append)
    try:
        with torch.enable_grad():
            loss = closure()
    finally:
        handle.remove()
    kept = before is not None and param.grad is before and before._version == version
    return kept and not made, loss


class Watch:
    """Everything that an optimizer looks out for while a step measures.

    Buffers and batches only the first time, gradients in the first `LOOKS` steps.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._looks, self._blanks = LOOKS, BLANKS
        self._first = True
        self._buffers: BufferWatch | None = None
        self._batches: BatchWatch | None = None
        self._gradients: GradientWatch | None = None

    def is_worth_holding(self, grads: Sequence[Tensor]) -> bool:
        """Whether any is not zero; after so many that were, all are taken to be."""
        if self._blanks == 0 or not any(bool(grad.any()) for grad in grads):
            self._blanks = max(self._blanks - 1, 0)
            return False
        return True

    def start(self) -> Watch:
        """A measuring step begins."""
        if self._first:
            self._buffers, self._batches = BufferWatch(self._model), BatchWatch()
        self._gradients = GradientWatch() if self._looks else None
        self._first = False
        return self

    @property
    def is_looking(self) -> bool:
        """Whether this step's gradients are looked at."""
        return self._gradients is not None

    def begin(self) -> None:
        """A round of it begins."""
        for watch in (self._batches, self._gradients):
            if watch is not None:
                watch.begin()

    def saw(self, inputs: Any) -> None:
        """The model is called with this."""
        if self._batches is not None and self._batches.saw(inputs):
            self._batches = None
            warn(SLIPS["batches"])

    def end(self, sites: Sequence[Site]) -> None:
        """A round has left its gradients."""
        if self._gradients is not None:
            self._gradients.end(sites)

    def finish(self) -> None:
        """All rounds are over; warn if each one's gradients were clipped by themselves."""
        how = self._gradients.clipped() if self._gradients is not None else ""
        self._looks = 0 if how else max(self._looks - 1, 0)
        if how:
            warn(
                f"gradients were clipped after backward, in each evaluation by itself ({how}), and "
                "the difference will look like curvature. Use Alice(..., max_grad_norm=...), which "
                "clips all by the same factor"
            )

    def stop(self) -> None:
        """The step's rounds are over, one way or another."""
        if self._gradients is not None:
            self._gradients.stop()
        changed = self._buffers.changed() if self._buffers is not None else ""
        self._buffers = self._batches = self._gradients = None
        if changed:
            outside = "" if self._model is None else " outside the model given"
            warn(
                f"the probes also updated buffers of {changed}{outside}: construct Alice(..., "
                "model=model) to guard them; where a closure uses several networks, with "
                "nn.ModuleList([a, b])"
            )
