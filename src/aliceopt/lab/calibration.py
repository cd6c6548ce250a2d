"""Does a curvature say what a removal costs? Predicted against measured increases, layer by layer.

Of every layer the smaller weights are removed, of that layer alone, and the rise of the loss is
compared with three predictions from as many gradients each: half of Fisher's, of the pointwise
Hessian's diagonal, and of the diagonal over a radius with the first-order term and the glass.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from statistics import median

import torch

from aliceopt.compress import (
    Sensitivity,
    default_radius,
    masks_of,
    measured_increase,
    predicted_increase,
    removal,
    scores,
    sensitivity,
)
from aliceopt.lab.network import Network

__all__ = ["PREDICTIONS", "Calibration", "LayerIncrease", "calibrate", "rank_correlation"]

PREDICTIONS = ("fisher", "point", "radius", "glass")
"""Fisher; Hessian at a point; Hessian over a radius; the same with gradient and glass."""

MEASURED_BATCHES = 20
_POINT = 1e-4


@dataclass(frozen=True)
class LayerIncrease:
    """A layer: the rise that was measured, and the predictions."""

    layer: str
    measured: float
    predicted: dict[str, float]


@dataclass(frozen=True)
class Calibration:
    """All layers, and of every prediction its rank correlation and its median ratio."""

    sparsity: float
    layers: list[LayerIncrease]

    def correlation(self, prediction: str) -> float:
        """Spearman's, over layers; NaN below three."""
        told = [layer.predicted[prediction] for layer in self.layers]
        return rank_correlation(told, [layer.measured for layer in self.layers])

    def ratio(self, prediction: str) -> float:
        """The median of predicted over measured, of layers whose removal raised the loss."""
        ratios = [x.predicted[prediction] / x.measured for x in self.layers if x.measured > 0]
        return median(ratios) if ratios else float("nan")


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's coefficient, without ties.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    if len(a) < 3:
        return float("nan")
    ranks = [torch.tensor(x, dtype=torch.float64).argsort().argsort().double() for x in (a, b)]
    n = len(a)
    return 1 - 6 * float((ranks[0] - ranks[1]).square().sum()) / (n * (n * n - 1))


def calibrate(network: Network, seed: int, sparsity: float, gradients: int = 300) -> Calibration:
    """Predict and measure, for every layer alone; the network is not changed."""
    radius = default_radius(network.model, sparsity=sparsity)
    found = _measured(network, seed, gradients, radius)
    masks, _ = masks_of(scores(network.model, criterion="magnitude"), sparsity, scope="layer")
    layers = []
    for name, mask in masks.items():
        moves = removal(network.model, {name: mask})
        batches = islice(network.batches(seed + 1), MEASURED_BATCHES)
        rise = measured_increase(network.model, moves, network.loss, batches)
        fisher = found["fisher"].mean("fisher")[name] * network.train.batch_size
        over, _ = predicted_increase(found["radius"], moves)
        predicted = {
            "fisher": float((fisher * moves[name].to(fisher).square()).sum()) / 2,
            "point": predicted_increase(found["point"], moves)[0].total,
            "radius": over.hessian or 0.0,
            "glass": over.total,
        }
        layers.append(LayerIncrease(name, rise, predicted))
    return Calibration(sparsity, layers)


def _measured(network: Network, seed: int, gradients: int, radius: float) -> dict[str, Sensitivity]:
    """Three sensitivities, each from as many gradients; at a point in float32."""
    kinds = {
        "fisher": (("fisher",), 1, _POINT),
        "point": (("signed",), 2, _POINT),
        "radius": (("signed", "gradient", "glass"), 3, radius),
    }
    found = {}
    for name, (terms, each, length) in kinds.items():
        with network.precisely() if name == "point" else nullcontext(network) as there:
            found[name] = sensitivity(
                there.model,
                lambda batch, there=there: there.loss(batch).backward(),  # type: ignore[misc]
                islice(there.batches(seed), max(1, gradients // each)),
                length,
                terms=terms,
                seed=seed,
            )
    return found
