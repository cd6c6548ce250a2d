"""Paired differences over seeds: Student's t, and Holm's correction for many comparisons.

Two methods share a seed's data order and initial weights, so their difference at a seed is less
noisy than either result. The mean of such differences over n seeds has an interval of half-width
``t(n - 1) s / sqrt(n)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from scipy.special import stdtr, stdtrit  # Student's t: scipy.stats takes seconds to import

__all__ = ["ALPHA", "Paired", "holm", "resolution"]

ALPHA = 0.05
"""The chance, over a whole study without any true difference, of claiming one."""


@dataclass(frozen=True)
class Paired:
    """Differences of two methods, one a seed.

    ``grain`` is the smallest step the metric can make (one validation image more, say). Results
    rounded to a grain can agree by chance in every difference, so their spread is taken to be
    that of two rounding errors, ``grain / sqrt(6)``, at least.
    """

    differences: tuple[float, ...]
    grain: float = 0.0

    @property
    def mean(self) -> float:
        """The mean difference."""
        return fmean(self.differences)

    @property
    def error(self) -> float:
        """The standard error of the mean; at least two seeds are needed."""
        spread = max(stdev(self.differences), self.grain / math.sqrt(6))
        return spread / math.sqrt(len(self.differences))

    @property
    def p(self) -> float:
        """How often chance alone gives a mean at least so far from zero, on either side.

        Without any spread a difference of zero has probability 1, and any other has 0.
        """
        if self.error == 0:
            return float(self.mean == 0)
        return float(2 * stdtr(len(self.differences) - 1, -abs(self.mean / self.error)))

    def half_width(self, level: float) -> float:
        """Half of the interval that misses the true mean with probability ``level``."""
        return float(-stdtrit(len(self.differences) - 1, level / 2) * self.error)


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> tuple[list[float], list[float]]:
    """Holm's step-down correction: corrected p-values, and the level each one was tested at.

    The k-th smallest of m is tested at ``alpha / (m - k + 1)``, until one fails; all later ones
    stay at the level of that one. An interval of that level leaves out zero exactly where the
    corrected p-value is at most alpha. The chance of any false claim is at most alpha.

    >>> tuple(holm([0.01, 0.04, 0.03])[0])
    (0.03, 0.06, 0.06)
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, levels = [1.0] * len(order), [alpha] * len(order)
    worst, level = 0.0, alpha / max(1, len(order))
    for rank, i in enumerate(order):
        left = len(order) - rank
        if worst <= alpha:
            level = alpha / left
        worst = max(worst, min(1.0, left * p_values[i]))
        corrected[i], levels[i] = worst, level
    return corrected, levels


def resolution(values: Sequence[float]) -> float:
    """The smallest gap between different results, which bounds the grain of the metric.

    Gaps of rounding size, of the two results, are no gaps. Zero where all results are equal.
    """
    pairs = pairwise(sorted(values))
    gaps = [b - a for a, b in pairs if b - a > 1e-9 * max(abs(a), abs(b))]
    return min(gaps, default=0.0)
