"""Remove the weights that score least, with masks that torch.nn.utils.prune understands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from ..sharding import is_dtensor
from .averages import Sensitivity
from .channels import shrink
from .criteria import scores
from .weights import Weight, weights_of

__all__ = ["Pruned", "masks_of", "prune"]

SCOPES = ("global", "layer", "row")
STRUCTURES = ("unstructured", "2:4", "channels")


@dataclass(frozen=True)
class Pruned:
    """What was removed: the share of all weights, and that of every layer.

    If channels went, the first is the share of all parameters.
    ``dense`` names layers that 2:4 left alone, because their rows have no whole number of fours.
    """

    sparsity: float
    layers: dict[str, float]
    dense: tuple[str, ...] = ()


def prune(
    model: nn.Module,
    measured: Sensitivity | Mapping[str, Tensor] | None,
    sparsity: float = 0.5,
    *,
    scope: str = "global",
    structure: str = "unstructured",
    criterion: str = "curvature",
    radius: float | None = None,
    temper: float = 1.0,
    recompute: int = 1,
    measure: Callable[[], Sensitivity | Mapping[str, Tensor]] | None = None,
    inputs: Any = None,
) -> Pruned:
    """Mask the least of a model's weights, in place.

    Every layer gets the buffer ``weight_mask`` and the parameter ``weight_orig``, as
    torch.nn.utils.prune does it: masked weights stay zero in training, and
    ``torch.nn.utils.prune.remove(layer, "weight")`` makes it final. If anything is wrong, nothing
    is changed, whichever round it was.

    Args:
        model: its linear and convolution layers, see `weights_of`.
        measured: a sensitivity, or scores by name; None for "magnitude", which needs neither.
        sparsity: the share to be removed, of all weights that were measured, those removed before
            included; with "2:4" it is one half.
        scope: "global" compares all weights with each other; "layer" removes that share of each
            layer, and "row" of each of its outputs.
        structure: "unstructured"; "2:4", two of every four neighbours in a row of inputs; or
            "channels": then there are no masks but smaller layers, ``sparsity`` is the share of
            the channels, and an optimizer has to be made anew.
        criterion: see `scores`.
        radius: which, of a sensitivity that has several.
        temper: see `scores`.
        recompute: rounds, between which ``measure`` is asked for a new sensitivity, or scores; the
            share that is kept falls by the same factor in each.
        measure: measures the model as it is then.
        inputs: for "channels", a batch that the model can be called on.
    """
    _check(sparsity, scope, structure, recompute, measure)
    with undone_if_it_fails(weights_of(model)):
        for turn in range(1, recompute + 1):
            if turn > 1 and measure is not None:
                measured = measure()
            share = 1 - (1 - sparsity) ** (turn / recompute)
            worth = (
                scores(model, measured, criterion, radius=radius, temper=temper)
                if measured is None or isinstance(measured, Sensitivity)
                else dict(measured)
            )
            weights, worth = _fitting(model, worth, share)
            if structure == "channels":
                return _smaller(model, worth, sparsity, inputs, scope)
            chosen, dense = masks_of(worth, share, scope=scope, structure=structure)
            found = apply_masks(weights, chosen, dense)
    return found


def _smaller(
    model: nn.Module, worth: Mapping[str, Tensor], sparsity: float, inputs: Any, scope: str
) -> Pruned:
    before = sum(p.numel() for p in model.parameters())
    layers = shrink(model, worth, sparsity, inputs, scope)
    return Pruned(1 - sum(p.numel() for p in model.parameters()) / before, layers)


@contextmanager
def undone_if_it_fails(weights: Mapping[str, Weight]) -> Iterator[None]:
    """Within, masks that were made go again if anything is raised, and older ones come back."""
    before = [(w.layer, w.mask, list(w.layer._parameters)) for w in weights.values()]
    try:
        yield
    except BaseException:
        for layer, mask, order in before:
            _put_back(layer, mask, order)
        raise


def _put_back(layer: nn.Module, mask: Tensor | None, order: Sequence[str]) -> None:
    if not hasattr(layer, "weight_mask"):
        return
    trained = layer.get_parameter("weight_orig")
    layer.weight_mask = torch.ones_like(trained) if mask is None else mask
    if mask is not None:
        layer.weight = trained * mask
    else:
        torch_prune.remove(layer, "weight")
        for name in order:  # which an optimizer goes by
            layer._parameters[name] = layer._parameters.pop(name)


def masks_of(
    worth: Mapping[str, Tensor], sparsity: float, *, scope: str, structure: str = "unstructured"
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Boolean masks of what is kept, and the layers that 2:4 leaves dense.

    Exactly the number asked for is removed: of equal scores, those that come first.
    """
    if structure == "2:4":
        fit = {name: score for name, score in worth.items() if score.flatten(1).shape[1] % 4 == 0}
        masks = {name: two_of_four(score) for name, score in fit.items()}
        return masks, tuple(name for name in worth if name not in fit)
    if scope == "row":
        return {name: _by_row(score, sparsity) for name, score in worth.items()}, ()
    groups = [dict(worth)] if scope == "global" else [{name: s} for name, s in worth.items()]
    masks = {}
    for group in groups:
        flat = torch.cat([score.flatten() for score in group.values()])
        mask = torch.ones_like(flat, dtype=torch.bool)
        order = torch.argsort(flat, stable=True)
        mask[order[: round(sparsity * len(flat))]] = False
        parts = mask.split([score.numel() for score in group.values()])
        masks |= {
            name: part.view_as(score)
            for (name, score), part in zip(group.items(), parts, strict=True)
        }
    return masks, ()


def _by_row(score: Tensor, sparsity: float) -> Tensor:
    rows = score.flatten(1)
    order = rows.argsort(dim=1, stable=True)[:, : round(sparsity * rows.shape[1])]
    return torch.ones_like(rows, dtype=torch.bool).scatter_(1, order, False).view_as(score)


def two_of_four(score: Tensor) -> Tensor:
    """The mask that keeps the better two of every four neighbours in a row."""
    fours = score.flatten(1).unflatten(1, (-1, 4))
    best = fours.topk(2, dim=-1).indices
    mask = torch.zeros_like(fours, dtype=torch.bool).scatter_(-1, best, True)
    return mask.flatten(1).view_as(score)


def _check(
    sparsity: float,
    scope: str,
    structure: str,
    recompute: int,
    measure: Callable[[], object] | None,
) -> None:
    number = isinstance(sparsity, int | float) and not isinstance(sparsity, bool)
    if not number or not 0 < sparsity < 1 or not math.isfinite(sparsity):
        raise ValueError(f"sparsity must be a number in (0, 1), got {sparsity!r}")
    if scope not in SCOPES:
        raise ValueError(f"scope must be one of {', '.join(SCOPES)}; got {scope!r}")
    if structure not in STRUCTURES:
        raise ValueError(f"structure must be one of {', '.join(STRUCTURES)}; got {structure!r}")
    if structure == "2:4" and (sparsity != 0.5 or recompute != 1):
        raise ValueError(
            f"2:4 removes one half in one round; got sparsity {sparsity!r}, recompute {recompute!r}"
        )
    if structure == "channels" and (scope == "row" or recompute != 1):
        raise ValueError(
            "channels go in one round, with scope global or layer; got scope "
            f"{scope!r}, recompute {recompute!r}"
        )
    if not isinstance(recompute, int) or isinstance(recompute, bool) or recompute < 1:
        raise ValueError(f"recompute must be a whole number >= 1, got {recompute!r}")
    if recompute > 1 and measure is None:
        raise ValueError(
            f"recompute={recompute} needs measure, a function that measures the model as it is then"
        )


def _fitting(
    model: nn.Module, worth: Mapping[str, Tensor], share: float
) -> tuple[dict[str, Weight], dict[str, Tensor]]:
    """The weights that are scored, and their scores, which must fit and be numbers.

    What masks have removed already goes first; a share below that cannot be had.
    """
    if not worth:
        raise ValueError("there are no scores: nothing says what is to be removed")
    weights = weights_of(model, worth)
    for name, score in worth.items():
        parameter = weights[name].parameter
        if is_dtensor(parameter):
            raise ValueError(f"{name!r} is sharded: prune the whole model in one process")
        if score.shape != parameter.shape:
            raise ValueError(
                f"the score of {name!r} has shape {tuple(score.shape)}, the weight "
                f"{tuple(parameter.shape)}"
            )
        if score.isnan().any():
            raise ValueError(f"the score of {name!r} is not a number in places")
    gone = {name: w.mask == 0 for name, w in weights.items() if w.mask is not None}
    already = sum(int(mask.sum()) for mask in gone.values())
    total = sum(weight.parameter.numel() for weight in weights.values())
    if already > round(share * total):
        raise ValueError(
            f"{100 * already / total:.3g}% are removed already, more than the {100 * share:.3g}% "
            "asked for"
        )
    first = {name: worth[name].masked_fill(mask, -torch.inf) for name, mask in gone.items()}
    return weights, {**worth, **first}


def apply_masks(
    weights: Mapping[str, Weight], masks: Mapping[str, Tensor], dense: tuple[str, ...] = ()
) -> Pruned:
    """Put masks on layers, as torch.nn.utils.prune does it."""
    for name, mask in masks.items():
        torch_prune.custom_from_mask(weights[name].layer, "weight", mask)
    sizes = {name: weight.parameter.numel() for name, weight in weights.items()}
    left = {name: _left(weight.layer, sizes[name]) for name, weight in weights.items()}
    shares = {name: 1 - left[name] / sizes[name] for name in weights}
    return Pruned(1 - sum(left.values()) / sum(sizes.values()), shares, dense)


def _left(layer: nn.Module, size: int) -> int:
    """What masks have left of a layer, earlier ones included."""
    mask = getattr(layer, "weight_mask", None)
    return size if mask is None else int(mask.sum())
