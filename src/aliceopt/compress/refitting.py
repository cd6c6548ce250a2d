"""What masks have left, fitted anew: least squares, row by row, to the outputs of before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .layerwise import check_damping, damped, layer_by_layer
from .weights import Weight, weights_of

__all__ = ["refit", "refitted"]

_MOST = 2**27
"""Numbers in memory for the systems that are solved at once."""


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
    inputs that those before it give by then. If it fails, weights are as before. A row with k
    weights left takes k^3 operations: hours for the widest language models, where `sparsegpt`'s
    update in one sweep is the affordable one. Returns the names of the layers.
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

    return layer_by_layer(weights, forward, list(batches), change)


def refitted(weight: Tensor, gram: Tensor, kept: Tensor, damping: float = 0.01) -> Tensor:
    """Rows w', zero where not kept, of least ``(w - w') H (w - w')``: ``H_kk w'_k = (H w)_k``.

    Those with about as many weights left are solved together.
    """
    h = damped(gram, damping)
    target = weight.double() @ h
    new = torch.zeros_like(target)
    counts = kept.sum(1)
    left = counts.argsort(descending=True)
    while len(left) and (k := int(counts[left[0]])):
        rows, left = left.tensor_split([max(1, _MOST // k**2)])
        columns = kept[rows].int().argsort(dim=1, descending=True, stable=True)[:, :k]
        there = kept[rows].gather(1, columns)
        both = there[:, :, None] & there[:, None, :]
        systems = torch.where(both, h[columns[:, :, None], columns[:, None, :]], 0.0)
        systems += (~there).double().diag_embed()  # rows with fewer: their rest is zero
        right = torch.where(there, target[rows].gather(1, columns), 0.0)
        found = torch.cholesky_solve(right[..., None], torch.linalg.cholesky(systems))[..., 0]
        new[rows] = torch.zeros_like(target[rows]).scatter_(1, columns, found)
    return new.to(weight)
