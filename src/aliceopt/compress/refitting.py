"""What masks have left, fitted anew: least squares, row by row, to the outputs of before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .layerwise import check_damping, damped, layer_by_layer
from .weights import Weight, weights_of

__all__ = ["refit", "refitted"]

_MOST = 1000
"""Iterations; each comes nearer, so that stopping early is safe."""

_NEAR = 1e-6
"""Of the size of the right-hand side, what may be left of it."""


@torch.no_grad()
def refit(
    model: nn.Module,
    forward: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    damping: float = 0.01,
) -> tuple[str, ...]:
    """Move what masks have left, in place, so that layers give nearly the outputs of before.

    For a model that `prune` has just masked: what is removed still stands under its mask, and is
    made up for. Forward passes only; layers in the order in which they are called, each with the
    inputs that those before it give by then. Buffers and random state stay, and if it fails,
    weights too. Returns the names of the layers.
    """
    check_damping(damping)
    weights = {name: w for name, w in weights_of(model).items() if w.mask is not None}
    if not weights:
        raise ValueError("the model has no masks: prune it first")

    def change(weight: Weight, gram: Tensor) -> None:
        assert weight.mask is not None
        rows, kept = weight.parameter.flatten(1), (weight.mask != 0).flatten(1)
        new = refitted(rows, gram, kept, damping)
        weight.parameter.copy_(new.view_as(weight.parameter))
        weight.layer.weight = weight.values()  # which the mask's hook renews at the next call only

    return layer_by_layer(model, weights, forward, list(batches), change)


def refitted(weight: Tensor, gram: Tensor, kept: Tensor, damping: float = 0.01) -> Tensor:
    """Rows w', zero where not kept, of least ``(w - w') H (w - w')``: ``H_kk w'_k = (H w)_k``.

    By conjugate gradients, scaled by the diagonal of H, all rows at once and each with its own
    columns: an iteration is one product with H, whatever the masks are.
    """
    h, mask = damped(gram, damping), kept.double()
    scale = mask / h.diagonal()
    target = (weight.double() @ h) * mask
    new = weight.double() * mask
    rest = target - (new @ h) * mask
    way = rest * scale
    size, enough = (rest * way).sum(1), _NEAR**2 * (target.square() * scale).sum(1)
    for _ in range(_MOST):
        going = size > enough
        if not going.any():
            break
        push = (way @ h) * mask
        far = torch.where(going, size / (way * push).sum(1), 0.0)[:, None]
        new += far * way
        rest -= far * push
        before, size = size, (rest.square() * scale).sum(1)
        way = rest * scale + torch.where(going, size / before, 0.0)[:, None] * way
    return new.to(weight)
