"""Bits where they are worth most: layers get them by what rounding should cost.

A weight rounded to a grid of b bits moves by a finite distance e, for ``h e^2 / 2``. A layer's cost
falls about fourfold with every bit. Bits are given one at a time to the layer whose cost falls most
for the memory that the bit takes: with costs convex in the number of bits and layers of one size no
other way to spend as many is cheaper, and with others the last bits may be spent a little better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .averages import Sensitivity
from .weights import weights_of

__all__ = ["Rounding", "bits", "rounded"]

_SHRINK = tuple(1 - 0.05 * k for k in range(11))
"""Ends of the grid, in units of the largest weight of a channel."""


@dataclass(frozen=True)
class Rounding:
    """Bits by layer, the scale of every output channel, and the average number of bits a weight."""

    bits: dict[str, int]
    scales: dict[str, Tensor]
    average: float


def rounded(weight: Tensor, bits: int, scale: Tensor) -> Tensor:
    """To the nearest of ``2^bits - 1`` multiples of a channel's scale, symmetric around zero."""
    most = 2 ** (bits - 1) - 1
    step = scale.view(-1, *[1] * (weight.dim() - 1))
    return (weight / step).round().clamp(-most, most) * step


def bits(
    model: nn.Module,
    measured: Sensitivity,
    average: float = 4.0,
    *,
    term: str = "rms",
    radius: float | None = None,
    least: int = 2,
    most: int = 8,
    temper: float = 1.0,
) -> Rounding:
    """Choose bits for every layer, so that the predicted cost of rounding is least.

    Scales minimise the weighted error of every output channel over eleven ends of the grid. The
    model is not touched: `rounded` gives the weights.
    """
    whole = isinstance(least, int) and isinstance(most, int)
    if not whole or not 2 <= least <= most <= 16:
        raise ValueError(f"bits must be 2 <= least <= most <= 16, got {least!r} and {most!r}")
    if not isinstance(average, int | float) or not least <= average <= most:
        raise ValueError(f"average must be a number from {least} to {most}, got {average!r}")
    curvature = measured.curvature(term, radius)
    weights = weights_of(model, curvature)
    values = {name: weight.values().float() for name, weight in weights.items()}
    tried = {
        name: [_best_scale(w, curvature[name].to(w) ** temper, b) for b in range(least, most + 1)]
        for name, w in values.items()
    }
    sizes = {name: w.numel() for name, w in values.items()}
    chosen = _spend(
        {n: [cost for cost, _ in rows] for n, rows in tried.items()}, sizes, average - least
    )
    return Rounding(
        {name: least + extra for name, extra in chosen.items()},
        {name: tried[name][extra][1] for name, extra in chosen.items()},
        sum((least + chosen[n]) * sizes[n] for n in sizes) / sum(sizes.values()),
    )


def _best_scale(weight: Tensor, curvature: Tensor, bits: int) -> tuple[float, Tensor]:
    """The predicted cost, and the scale of every output channel that makes it least."""
    rows, h = weight.flatten(1), curvature.flatten(1)
    ends = rows.abs().amax(1).clamp(min=torch.finfo(rows.dtype).tiny)
    costs, scales = [], []
    for shrink in _SHRINK:
        scale = shrink * ends / (2 ** (bits - 1) - 1)
        costs.append((h * (rounded(rows, bits, scale) - rows).square()).sum(1) / 2)
        scales.append(scale)
    best = torch.stack(costs).argmin(0, keepdim=True)
    cost = torch.stack(costs).gather(0, best).double().sum().item()
    return cost, torch.stack(scales).gather(0, best)[0]


def _spend(
    costs: Mapping[str, list[float]], sizes: Mapping[str, int], extra: float
) -> dict[str, int]:
    """How many steps up the list of costs every layer gets, for ``extra`` steps a weight in all."""
    left = extra * sum(sizes.values()) * (1 + 1e-12)
    chosen = dict.fromkeys(costs, 0)

    def gain(name: str) -> float:
        at, row = chosen[name], costs[name]
        if at + 1 == len(row) or sizes[name] > left:
            return -math.inf
        return (row[at] - row[at + 1]) / sizes[name]

    while (name := max(costs, key=gain)) and gain(name) > -math.inf:
        chosen[name] += 1
        left -= sizes[name]
    return chosen
