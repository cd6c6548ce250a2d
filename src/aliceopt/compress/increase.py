"""What removing or rounding weights should cost, and what it does cost.

A displacement d of some weights is predicted to raise the loss by

    sum g d  +  1/2 sum h d^2  +  sqrt(2/3pi) sqrt(sum rho |d|^3)

the first-order term, the Hessian's and, jointly over the weights, the glass's of Theorem 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..probe import BufferGuard, RandomState
from ..sharding import is_dtensor
from ..theory.glass_bound import GLASS_LOSS_FACTOR
from .averages import CURVATURES, Sensitivity
from .weights import Weight, weights_of

__all__ = ["Increase", "measured_increase", "predicted_increase"]


@dataclass(frozen=True)
class Increase:
    """Of one layer, or of all: the terms of a predicted increase, None where not measured."""

    first: float | None
    hessian: float | None
    glass: float | None

    @property
    def total(self) -> float:
        """The sum of the terms that were measured."""
        return sum(term for term in (self.first, self.hessian, self.glass) if term is not None)


def removal(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The displacement that masks make, before they are applied: minus the weight where it goes."""
    weights = weights_of(model, masks)
    _check_whole(weights)
    return {
        name: torch.where(mask.bool(), 0.0, -weights[name].values().float())
        for name, mask in masks.items()
    }


def predicted_increase(
    measured: Sensitivity,
    moves: Mapping[str, Tensor],
    *,
    hessian: str = "signed",
    radius: float | None = None,
) -> tuple[Increase, dict[str, Increase]]:
    """Of all moves together, and of every layer's alone.

    ``moves`` are displacements by name (see `removal`); ``hessian`` says by which term, "signed"
    being the one whose expectation is the diagonal. What was not measured is left out.
    """
    if hessian not in CURVATURES:
        raise ValueError(f"hessian must be one of {', '.join(CURVATURES)}; got {hessian!r}")
    known = {term: _term(measured, term, radius) for term in ("gradient", hessian, "glass")}
    if all(mean is None for mean in known.values()):
        raise ValueError(
            f"nothing to predict from: measure gradient, {hessian} or glass, not only "
            f"{', '.join(measured.terms)}"
        )
    layers: dict[str, Increase] = {}
    cubes = 0.0
    for name, move in moves.items():
        if any(mean is not None and name not in mean for mean in known.values()):
            raise ValueError(f"{name!r} was not measured")
        there = {term: None if mean is None else mean[name] for term, mean in known.items()}
        cube = _sum(there["glass"], move.abs() ** 3)
        cubes += cube or 0.0
        half = _sum(there[hessian], move.square())
        layers[name] = Increase(
            _sum(there["gradient"], move),
            None if half is None else half / 2,
            None if cube is None else GLASS_LOSS_FACTOR * math.sqrt(cube),
        )
    glass = None if known["glass"] is None else GLASS_LOSS_FACTOR * math.sqrt(cubes)
    first, second = (
        _total([getattr(one, n) for one in layers.values()]) for n in ("first", "hessian")
    )
    return Increase(first, second, glass), layers


def _term(measured: Sensitivity, term: str, radius: float | None) -> dict[str, Tensor] | None:
    if term not in measured.terms:
        return None
    return (
        measured.curvature(term, radius) if term in ("rms", "free") else measured.mean(term, radius)
    )


def _sum(weights: Tensor | None, values: Tensor) -> float | None:
    return (
        None if weights is None else float((weights.double() * values.to(weights).double()).sum())
    )


def _total(parts: list[float | None]) -> float | None:
    told = [part for part in parts if part is not None]
    return sum(told) if told else None


def _check_whole(weights: Mapping[str, Weight]) -> None:
    for name, weight in weights.items():
        if is_dtensor(weight.parameter):
            raise ValueError(f"{name!r} is sharded: move the whole model in one process")


@torch.no_grad()
def measured_increase(
    model: nn.Module,
    moves: Mapping[str, Tensor],
    loss_of: Callable[[Any], Tensor],
    batches: Iterable[Any],
) -> float:
    """The loss after the moves minus the loss before, averaged over batches.

    ``loss_of`` gives the loss of a batch. Both losses start from the same buffers and random state;
    these and the weights are as before afterwards, also if it fails.
    """
    weights = weights_of(model, moves)
    _check_whole(weights)
    random = RandomState({weight.parameter.device for weight in weights.values()})
    buffers = BufferGuard(model)

    def loss(batch: Any) -> float:
        torch.clear_autocast_cache()  # casts of weights that were elsewhere
        try:
            return float(loss_of(batch))
        finally:
            random.restore()
            buffers.restore()

    home = {name: weight.parameter.detach().clone() for name, weight in weights.items()}
    rises: list[float] = []
    for batch in batches:
        before = loss(batch)
        if not math.isfinite(before):
            raise ValueError(f"batch {len(rises) + 1}: the loss is {before}, with nothing moved")
        try:
            for name, weight in weights.items():
                weight.parameter.add_(moves[name].to(weight.parameter))
            rises.append(loss(batch) - before)
        finally:
            for name, weight in weights.items():
                weight.parameter.copy_(home[name])
            torch.clear_autocast_cache()
    if not rises:
        raise ValueError("there are no batches: nothing was measured")
    return sum(rises) / len(rises)
