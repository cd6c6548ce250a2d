"""How sure a number is, over random directions and over batches.

Every batch has random directions of its own, so what is measured is a table x[batch, direction],
and a result is a function f of its mean. Two jackknives tell where its error comes from::

    directions:  var_d = sum_j (n-1)/n sum_k (f_(-jk) - mean_k)^2    one direction of one batch out
    both:        var_t = (m-1)/m sum_j (f_(-j) - mean)^2             one batch out

The second holds both sources, and is an estimate from m numbers; the first is one from m n, which
is surer, and enough where batches add nothing. So the larger of the two counts, with its degrees of
freedom: the interval is ``f +- t sqrt(var)``, with Student's t of m - 1 or of m (n - 1). What
batches add of their own is told as ``var_b = max(0, var_t - var_d)``. In the hardest case, where
batches add about as much as directions do, the interval holds the truth in 94 of 100 cases with
four batches or more, in 92 with three, and with two batches of many directions in 87.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Estimate", "estimates", "student"]

_T975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


@dataclass(frozen=True)
class Estimate:
    """A number, its standard errors by source, and its 95% interval from both.

    ``error_directions`` is over random directions, ``error_batches`` what batches add to that: 0
    if they differ no more than their directions make them. NaN means that it cannot be told: the
    one for a single direction a batch (then the other holds both), the other for a single batch,
    which leaves an interval that speaks of that batch alone.
    """

    value: float
    low: float
    high: float
    error_directions: float
    error_batches: float

    @property
    def error(self) -> float:
        """The standard error from both sources, as far as they can be told; NaN if none can."""
        known = [e for e in (self.error_directions, self.error_batches) if not math.isnan(e)]
        return math.hypot(*known) if known else math.nan

    @property
    def relative_error(self) -> float:
        """The standard error over the size of the number; NaN for zero."""
        return self.error / abs(self.value) if self.value else math.nan


def estimates(table: Tensor, result: Callable[[Tensor], Tensor]) -> list[Estimate]:
    """Every result with its interval, from a table [batches, directions, ...].

    ``result`` takes means [replicates, ...] to results [replicates, results].
    """
    batches, directions = table.shape[:2]
    by_batch = table.mean(1)
    mean = by_batch.mean(0)
    value = result(mean[None])[0]
    over_directions = over_both = torch.full_like(value, math.nan)
    if directions > 1:
        without = mean + (by_batch[:, None] - table) / ((directions - 1) * batches)
        found = result(without.flatten(0, 1)).unflatten(0, (batches, directions))
        over_directions = _scatter(found, directions, 1).sum(0)
    if batches > 1:
        over_both = _scatter(result(mean + (mean - by_batch) / (batches - 1)), batches, 0)
    columns = (value.tolist(), over_directions.tolist(), over_both.tolist())
    return [
        _estimate(one, inner, both, batches, directions)
        for one, inner, both in zip(*columns, strict=True)
    ]


def _scatter(found: Tensor, count: int, dim: int) -> Tensor:
    """The jackknife's variance, of results with one of ``count`` left out."""
    return (count - 1) / count * (found - found.mean(dim, keepdim=True)).square().sum(dim)


def _estimate(value: float, inner: float, both: float, batches: int, directions: int) -> Estimate:
    outer = both if directions == 1 else both - inner
    outer = 0.0 if outer < 0 else outer  # NaN stays
    parts = [(inner, batches * (directions - 1)), (both, batches - 1)]
    known = [(variance, freedom) for variance, freedom in parts if freedom > 0]
    half = math.nan
    if known and all(math.isfinite(variance) for variance, _ in known):
        variance, freedom = max(known)
        half = student(freedom) * math.sqrt(variance)
    return Estimate(value, value - half, value + half, _root(inner), _root(outer))


def _root(variance: float) -> float:
    return math.sqrt(variance) if variance >= 0 else math.nan


def student(freedom: int) -> float:
    """97.5% quantile of Student's t: tabled, then by the Cornish-Fisher series (to 1e-4)."""
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z, n = 1.959964, freedom
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2) + third
