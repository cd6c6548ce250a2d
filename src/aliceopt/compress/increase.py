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

from ..theory.glass_bound import GLASS_LOSS_FACTOR
from .sensitivity import Sensitivity
from .weights import weights_of

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
    """The displacement that masks make: minus the weight where it goes."""
    weights = weights_of(model, masks)
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
    known = {term: _term(measured, term, radius) for term in ("gradient", hessian, "glass")}
    layers: dict[str, Increase] = {}
    cubes = 0.0
    for name, move in moves.items():
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


@torch.no_grad()
def measured_increase(
    model: nn.Module,
    moves: Mapping[str, Tensor],
    loss_of: Callable[[Any], Tensor],
    batches: Iterable[Any],
) -> float:
    """The loss after the moves minus the loss before, averaged over batches.

    ``loss_of`` gives the loss of a batch. The weights are as before afterwards, also if it fails.
    """
    weights = weights_of(model, moves)
    home = {name: weight.parameter.detach().clone() for name, weight in weights.items()}
    rises = []
    for batch in batches:
        before = float(loss_of(batch))
        try:
            for name, weight in weights.items():
                weight.parameter.add_(moves[name].to(weight.parameter))
            rises.append(float(loss_of(batch)) - before)
        finally:
            for name, weight in weights.items():
                weight.parameter.copy_(home[name])
    if not rises:
        raise ValueError("there are no batches: nothing was measured")
    return sum(rises) / len(rises)
