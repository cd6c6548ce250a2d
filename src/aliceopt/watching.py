"""What goes on around the evaluations of a step, and would make them wrong without a word.

A measuring step compares gradients. Buffers that every evaluation updates, gradients that are
clipped each by a factor of its own, batches that differ: each looks like curvature, or hides it.
Looking costs next to nothing: a hook on one parameter, and a look at the first measuring step.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .sharding import is_distributed
from .site import Site
from .warning import SLIPS, warn

__all__ = ["BatchWatch", "BufferWatch", "GradientWatch", "Watch"]

LOOKS = 8
"""How often edited gradients are compared with what they were; on a GPU that waits for it."""


class BufferWatch:
    """Names the modules outside ``model`` whose buffers change while it watches.

    Looks at every module that is alive: which ones an evaluation calls is not known beforehand, and
    hooks on all of them would make torch.compile compile anew. Statistics may be updated by a
    kernel that leaves no mark on them, but then a counter beside them has one.
    """

    def __init__(self, model: nn.Module | None) -> None:
        guarded = set(map(id, model.modules())) if model is not None else set()
        alive = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
        self._marks = [
            (module, _marks(module))
            for module in alive
            if module.__dict__.get("_buffers") and id(module) not in guarded
        ]

    def changed(self) -> str:
        """The types of those that changed."""
        changed = {type(module).__name__ for module, mark in self._marks if _marks(module) != mark}
        return ", ".join(sorted(changed))


def _marks(module: nn.Module) -> list[tuple[int, int]]:
    return [(id(b), b._version) for b in module._buffers.values() if b is not None]


class BatchWatch:
    """Compares what the model is called with, first in each round, with the round before."""

    def __init__(self) -> None:
        self._inputs: list[Tensor] = []
        self._seen = False

    def begin(self) -> None:
        """Another round."""
        self._seen = False

    def saw(self, inputs: Any) -> None:
        """The model was called; only a round's first call is compared."""
        if self._seen:
            return
        now = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
        before, self._inputs, self._seen = self._inputs, now, True
        if before and not _same(before, now):
            warn(SLIPS["batches"])


def _same(before: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    kinds = [[(t.shape, t.dtype, t.device) for t in tensors] for tensors in (before, now)]
    if kinds[0] != kinds[1]:
        return False
    return all(a is b or torch.equal(a, b) for a, b in zip(before, now, strict=True))


class GradientWatch:
    """Follows one parameter's gradient through a step: is it edited between backward and the end?

    It is the smallest that got a gradient in the first round; what people do to gradients, they do
    to all. In a process group nothing is said: reducing over processes is an edit, too.
    """

    def __init__(self) -> None:
        self.center: Tensor | None = None
        self._param: Tensor | None = None
        self._handle: Any = None
        self._found: tuple[int, Tensor] | None = None
        self._factors: list[Tensor | float] = []

    def begin(self) -> None:
        """Another round."""
        self._found = None

    def end(self, sites: Sequence[Site]) -> None:
        """A round's gradients are there: by what factor were they changed since backward?"""
        if self._param is None:
            self._choose(sites)
        elif self._found is not None and self._param.grad is not None:
            version, before = self._found
            now = self._param.grad.detach()
            edited = self._param.grad._version != version
            self._factors.append((now * before).sum() / before.square().sum() if edited else 1.0)
            self.center = now.clone()

    def _choose(self, sites: Sequence[Site]) -> None:
        given = [site.param for site in sites if type(site.param.grad) is Tensor]
        if given and not is_distributed():
            self._param = min(given, key=Tensor.numel)
            self._handle = self._param.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, param: Tensor) -> None:
        if param.grad is not None:
            self._found = param.grad._version, param.grad.detach().clone()

    def factors(self) -> list[float]:
        """Of each round that was followed; empty if none was edited."""
        edited = not all(isinstance(factor, float) for factor in self._factors)
        return [float(factor) for factor in self._factors] if edited else []

    def is_harmless(self) -> bool:
        """Whether the center's gradient, touched after the rounds, is what it was."""
        grad = self._param.grad if self._param is not None else None
        return grad is not None and self.center is not None and torch.equal(grad, self.center)

    def stop(self) -> None:
        """Follow it no longer."""
        if self._handle is not None:
            self._handle.remove()


class Watch:
    """Everything that an optimizer looks out for while a step measures.

    Buffers and batches only the first time; gradients as long as ``looks`` are left.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self.looks = self._blanks = LOOKS
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
        self._gradients = GradientWatch() if self.looks > 0 else None
        self._first = False
        return self

    def begin(self) -> None:
        """A round of it begins."""
        for watch in (self._batches, self._gradients):
            if watch is not None:
                watch.begin()

    def saw(self, inputs: Any) -> None:
        """The model is called with this."""
        if self._batches is not None:
            self._batches.saw(inputs)

    def end(self, sites: Sequence[Site]) -> None:
        """A round has left its gradients."""
        if self._gradients is not None:
            self._gradients.end(sites)

    def finish(self) -> None:
        """All rounds are over; warn if each one's gradients were changed by a factor of its own."""
        factors = self._gradients.factors() if self._gradients is not None else []
        if not factors:
            return
        self.looks -= 1
        low, high = min(factors), max(factors)
        if math.isfinite(low) and math.isfinite(high) and high - low > 1e-5 * abs(high):
            self.looks = 0
            warn(
                "gradients were changed after backward, in each evaluation by a factor of its own "
                f"({low:.3g} to {high:.3g}), and the difference will look like curvature. To clip "
                "gradients, use Alice(..., max_grad_norm=...), which clips all by the same factor"
            )

    def is_harmless(self) -> bool:
        """Whether the center's gradients, touched after the rounds, are what they were."""
        return self._gradients is not None and self._gradients.is_harmless()

    def stop(self) -> None:
        """The step's rounds are over, one way or another."""
        if self._gradients is not None:
            self._gradients.stop()
        changed = self._buffers.changed() if self._buffers is not None else ""
        self._buffers = self._batches = None
        if changed:
            outside = "" if self._model is None else " outside the model given"
            warn(
                f"the probes also updated buffers of {changed}{outside}: construct Alice(..., "
                "model=model) to guard them; where a closure uses several networks, with "
                "nn.ModuleList([a, b])"
            )
