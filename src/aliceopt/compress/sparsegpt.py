"""SparseGPT: remove weights of a layer, and let the rest of each row make up for them.

Frantar and Alistarh, "SparseGPT: massive language models can be accurately pruned in one-shot",
2023. A row w of a layer with inputs x should go on giving the same outputs; its squared error over
the inputs is ``(w - w') H (w - w')`` with ``H = sum x x'``, the same for all rows. Columns are gone
through from left to right. If the weight of column j goes, the best change of the columns from j
on, those before being settled, is the Optimal Brain Surgeon's::

    w[j:] -= w_j / V_jj  V[j, :],       V the inverse of H[j:, j:]

and it costs ``w_j^2 / V_jj``, which is the score. All the V needed are in one Cholesky factor U of
the inverse of H, ``H^-1 = U'U``: ``V[j, :] = U_jj U[j, j:]``. Needs forward passes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .layerwise import check_damping, damped, layer_by_layer
from .pruning import Pruned, apply_masks, two_of_four
from .weights import Weight, weights_of

__all__ = ["reconstruct", "sparsegpt"]

BLOCK = 128
"""Columns whose weights are compared with each other; a multiple of four."""


@torch.no_grad()
def sparsegpt(
    model: nn.Module,
    forward: Callable[[Any], Any],
    batches: Iterable[Any],
    sparsity: float = 0.5,
    *,
    structure: str = "unstructured",
    names: Iterable[str] | None = None,
    damping: float = 0.01,
) -> Pruned:
    """Remove a share of every layer's weights and update the others, in place, with masks on.

    Layers are taken in the order in which they are called, each with the inputs that those
    pruned before it give: as many passes over the batches as there are layers, each as far as
    that layer. Buffers and random state stay; if it fails, weights and masks too. Linear layers,
    and 2-D convolutions without groups by the patches they see.

    Args:
        model: its linear and convolution layers, see `weights_of`.
        forward: runs the model on one batch.
        batches: are kept in memory meanwhile.
        sparsity: the same share of each `BLOCK` columns; with "2:4" it is one half.
        structure: "unstructured" or "2:4".
        names: of the weights, all by default.
        damping: added to the diagonal of H, in units of its mean.
    """
    _check(sparsity, structure, damping)
    share = None if structure == "2:4" else sparsity
    weights = weights_of(model, names)
    dense = [n for n, w in weights.items() if share is None and w.parameter[0].numel() % 4]

    def change(weight: Weight, gram: Tensor) -> None:
        if weight.name not in dense:
            rows = weight.values().flatten(1)
            gone = None if weight.mask is None else (weight.mask == 0).flatten(1)
            new, mask = reconstruct(rows, gram, share, gone=gone, damping=damping)
            weight.parameter.copy_(new.view_as(weight.parameter))
            apply_masks({weight.name: weight}, {weight.name: mask.view_as(weight.parameter)})

    layer_by_layer(model, weights, forward, list(batches), change)
    return apply_masks(weights_of(model, names), {}, tuple(dense))


def _check(sparsity: float, structure: str, damping: float) -> None:
    if not isinstance(sparsity, int | float) or not 0 < sparsity < 1:
        raise ValueError(f"sparsity must be a number in (0, 1), got {sparsity!r}")
    if structure not in ("unstructured", "2:4"):
        raise ValueError(f"structure must be one of unstructured, 2:4; got {structure!r}")
    if structure == "2:4" and sparsity != 0.5:
        raise ValueError(f"2:4 removes one half; got sparsity {sparsity!r}")
    check_damping(damping)


def reconstruct(
    weight: Tensor,
    gram: Tensor,
    sparsity: float | None,
    *,
    gone: Tensor | None = None,
    damping: float = 0.01,
) -> tuple[Tensor, Tensor]:
    """A weight ``[rows, n]`` after removal and update, and the mask of what is kept.

    ``gram`` is H, ``[n, n]``; ``sparsity`` None: 2:4. What is ``gone`` already goes first.
    """
    w, n = weight.double().clone(), weight.shape[1]
    gone = torch.zeros_like(w, dtype=torch.bool) if gone is None else gone
    w[:, gram.diagonal() == 0] = 0  # what meets no input does nothing
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped(gram, damping)))
    upper = torch.linalg.cholesky(inverse, upper=True)
    mask = torch.ones_like(w, dtype=torch.bool)
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        part, kept, u = w[:, start:end], mask[:, start:end], upper[start:end, start:end]
        lost = gone[:, start:end]
        if sparsity is not None:
            wanted = round(sparsity * len(w) * end) - round(sparsity * len(w) * start)
            kept.copy_(_chosen(part, u.diagonal(), lost, wanted))
        errors = torch.zeros_like(part)
        for j in range(end - start):
            if sparsity is None and j % 4 == 0:
                four = slice(j, j + 4)
                worth = (part[:, four] / u.diagonal()[four]).square()
                worth = worth.masked_fill(lost[:, four], -torch.inf)
                kept[:, four] = two_of_four(worth) & ~lost[:, four]
            errors[:, j] = torch.where(kept[:, j], 0, part[:, j]) / u[j, j]
            part[:, j:] -= errors[:, j, None] * u[j, j:]
        w[:, end:] -= errors @ upper[start:end, end:]
    return (w * mask).to(weight), mask


def _chosen(part: Tensor, root: Tensor, lost: Tensor, wanted: int) -> Tensor:
    """The mask of a block from which the ``wanted`` cheapest go, all rows compared."""
    worth = (part / root).square().masked_fill(lost, -torch.inf).flatten()
    kept = torch.ones_like(worth, dtype=torch.bool)
    kept[worth.argsort(stable=True)[:wanted]] = False
    return kept.view_as(part) & ~lost
