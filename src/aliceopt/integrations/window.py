"""Micro-batches that arrive one after another, each evaluated at all points of their step.

A loop of one's own accumulates inside ``evaluations()``. A framework hands over one micro-batch at
a time, and logs, validates and synchronises between them. Gradients add up, so the sums at nu+,
nu- and nu may just as well grow side by side: the same numbers, to the bit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..alice import Alice
from ..probe import BufferGuard, RandomState
from ..sharding import local
from ..warning import warn

__all__ = ["Window", "clip_by_itself"]

Gradients = list[Tensor | None]


class Window:
    """The micro-batches of one step::

        window = Window()
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % 4 == 0
            for center in window.evaluations(optimizer, last=last):
                (loss_fn(model(x), y) / 4).backward()
            if last:
                optimizer.step()

    Between two micro-batches the parameters are at the position and ``.grad`` holds the sum at the
    center so far. Zeroing it gives the window up.
    """

    def __init__(self) -> None:
        self._sides: list[Gradients] | None = None  # None: no micro-batch yet
        self._left: Tensor | None = None  # a copy of the smallest gradient at the center

    def evaluations(self, optimizer: Alice, *, last: bool, scaler: Any = None) -> Iterator[bool]:
        """Rounds of one micro-batch; True for the one at the center, which comes last.

        Only the center's round leaves its mark on random state and buffers. After the rounds of
        the ``last`` micro-batch the step is due. Scale losses as for any accumulation.
        """
        params = [param for group in optimizer.param_groups for param in group["params"]]
        model = optimizer.model
        sums, kept, marks = self._sums(params), list[Gradients](), None
        rounds = cast(Generator[int], optimizer.evaluations(scaler=scaler))
        with contextlib.closing(rounds):
            for i in rounds:
                assert optimizer._probe is not None
                points = len(optimizer._probe.rounds)
                if sums is not None:
                    if len(sums) != points:
                        raise RuntimeError(
                            f"the micro-batches so far were evaluated at {len(sums)} point(s), "
                            f"this one at {points}: change lr, quick_steps and curvature terms "
                            "between steps, not within one"
                        )
                    _give(params, sums[i])
                if isinstance(model, FSDPModule):
                    # Whatever the trainer has switched off: FSDP2 adds up what it does not reduce
                    # in a place of its own, where three sums would become one.
                    model.set_requires_gradient_sync(True)
                center = i == points - 1
                yield center
                if not last:
                    _check_reduced(model, params)
                    marks = _Marks(optimizer, params) if center else None
                    kept.append(_take(params, sums[i] if sums is not None else []))
                    if center:
                        break  # which takes the excursion back, and with it the marks
        if marks is not None:
            marks.restore()
            _give(params, kept.pop())
            self._sides, self._left = kept, _smallest(params)

    def _sums(self, params: Sequence[nn.Parameter]) -> list[Gradients] | None:
        """The sums so far in the order of the rounds; None for the first micro-batch."""
        sides, self._sides = self._sides, None
        now = _smallest(params)
        if sides is None or now is None:
            return None
        if sides and not (self._left is not None and torch.equal(now, self._left)):
            if not now.any():
                return None  # zeroed
            warn(
                ".grad was changed between two micro-batches, but the probes' sums were not, and "
                "the difference will look like curvature. To clip gradients, use "
                "Alice(..., max_grad_norm=...)"
            )
        center = [param.grad for param in params]
        return [*sides, _take(params, center)]


def _smallest(params: Sequence[nn.Parameter]) -> Tensor | None:
    """A copy of one gradient; what people do to gradients, they do to all.

    Of a shard that is not empty, where there is one.
    """
    grads = [local(param.grad) for param in params if param.grad is not None]
    return min(grads, key=lambda grad: grad.numel() or math.inf).clone() if grads else None


def _take(params: Sequence[nn.Parameter], mine: Gradients) -> Gradients:
    """The gradients, copied where they are not ``mine`` grown in place.

    New ones may lie in a DDP bucket or a CUDA graph, which the next evaluation fills again.
    """
    own = {id(grad) for grad in mine}
    grads: Gradients = []
    for param in params:
        grad, param.grad = param.grad, None
        grads.append(grad if grad is None or id(grad) in own else grad.detach().clone())
    return grads


def _give(params: Sequence[nn.Parameter], grads: Gradients) -> None:
    """Continue a sum, *before* the backward pass: DDP reduces what it finds in ``.grad``."""
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad


def _check_reduced(model: nn.Module | None, params: Sequence[nn.Parameter]) -> None:
    if isinstance(model, FSDPModule) and all(param.grad is None for param in params):
        raise RuntimeError(
            "no gradient after a micro-batch: FSDP2 keeps what it does not reduce to itself. Call "
            "set_requires_gradient_sync(False) outside the rounds, or not at all"
        )


class _Marks:
    """What an evaluation at the center left behind: random state, buffers, others' gradients."""

    def __init__(self, optimizer: Alice, params: Sequence[nn.Parameter]):
        self._random = RandomState({param.device for param in params})
        self._buffers = BufferGuard(optimizer.model)
        mine = {id(param) for param in params}
        everyone = optimizer.model.parameters() if optimizer.model is not None else ()
        self._others = [(p, p.grad) for p in everyone if id(p) not in mine]

    def restore(self) -> None:
        self._random.restore()
        self._buffers.restore()
        for param, grad in self._others:
            param.grad = grad


def clip_by_itself(optimizer: Alice, limit: float) -> None:
    """Have Alice clip all gradients of a step with one factor, unless it has a limit already."""
    if optimizer.defaults["max_grad_norm"] is None:
        for group in optimizer.param_groups:
            group["max_grad_norm"] = float(limit)
