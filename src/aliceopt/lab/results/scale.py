"""On which scale results are compared: by their differences, or by their ratios.

Losses of a study that are all positive are compared by ratio, so by the differences of their
logarithms: losses of one method may lie powers of ten apart between seeds, and then the largest
alone would decide a mean and its interval. Accuracies, results that are not all positive, and
experiments, whose results are published as differences, keep the units of the metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from aliceopt.lab.results.numbers import (
    decimals,
    show_difference,
    show_percent,
    show_times,
    signed,
    unit,
)
from aliceopt.lab.spec import Plan

__all__ = ["Scale", "scale_of"]

_FACTOR = math.log(2)
"""Ratios up to two are said in percent, larger ones as a factor."""

_ANY = math.log(1000)
"""Ratios whose interval reaches further than that from their mean could be any."""


@dataclass(frozen=True)
class Scale:
    """How results of a metric are compared, and how that is said.

    A *gain* is positive where the first of two results is better: their difference, or with
    ``ratio`` the logarithm of how many times lower the first is.
    """

    metric: str
    better: str
    ratio: bool = False

    def standing(self, result: float) -> float:
        """Where a result stands, higher being better: what differences and means are taken of."""
        if self.ratio:
            return -math.log(result)
        return result if self.better == "higher" else -result

    def gain(self, first: float, second: float) -> float:
        """Of the first result over the second."""
        return self.standing(first) - self.standing(second)

    def grain(self, step: float, results: Iterable[float]) -> float:
        """What the smallest step of the metric makes of a gain, at most, among these results.

        Positive multiples of a step are no smaller than it is, so the ratio is bounded.
        """
        return min(1.0, step / min(results)) if self.ratio else step

    def on_axis(self, gain: float) -> float:
        """What an axis shows of a gain: itself, or how many times the first the second is."""
        return _exp(gain) if self.ratio else gain

    def number(self, gain: float, places: int) -> str:
        """The same as text, with so many decimals if it is a difference."""
        return show_times(_exp(gain), least=2) if self.ratio else signed(gain, places)

    def knows_nothing(self, *ends: float) -> bool:
        """Whether ends of an interval of ratios are more than a thousand times off its middle."""
        return self.ratio and len(ends) == 2 and abs(ends[1] - ends[0]) / 2 > _ANY

    def interval(self, places: int, *ends: float) -> str:
        """``1.2 to 2.7``, or nothing without ends.

        Where ratios could be anything it is ``any``, or as far as it leaves out no difference
        ``1.2 or more`` and ``0.8 or less``.
        """
        if not self.knows_nothing(*ends):
            return " to ".join(self.number(end, places) for end in ends)
        low, high = sorted(ends)
        if low > 0:
            return f"{self.number(low, places)} or more"
        return f"{self.number(high, places)} or less" if high < 0 else "any"

    def said(self, gain: float, *ends: float) -> str:
        """``better by 0.4 points``, ``12% lower in loss`` or ``1.8 times lower in loss``.

        With the ends of an interval that leaves out no gain: ``... (95% interval 1.2 to 2.7)``, of
        ratios that could be far larger ``... (95% interval 1.2 or more)``.
        """
        lower = gain > 0
        sizes = [abs(gain), *sorted(end if lower else -end for end in ends)]
        if not self.ratio:
            size = show_difference(self.metric, *sizes) if ends else self.size(gain)
            return f"{'better' if lower else 'worse'} by {size}"
        if max(sizes) >= _FACTOR:
            mean, *interval = (show_times(_exp(size)) for size in sizes)
            mean = f"{mean} times"
            if self.knows_nothing(*ends):
                interval = [f"{interval[0]} or more"]
        else:  # 10% lower is a ratio of 1 to 0.9, 10% higher of 1.1 to 1
            shares = [-math.expm1(-size) if lower else math.expm1(size) for size in sizes]
            mean, *interval = show_percent(*(100 * share for share in shares))
        said = f"{mean} {'lower' if lower else 'higher'} in {self.metric}"
        return f"{said} (95% interval {' to '.join(interval)})" if ends else said

    def size(self, gain: float) -> str:
        """On either side: ``0.5 points``, ``12% in loss`` or ``a factor of 3.0 in loss``."""
        width = abs(gain)
        if not self.ratio:
            return f"{signed(width, max(1, decimals(width / 2)))} {unit(self.metric)}"
        if width >= _FACTOR:
            return f"a factor of {show_times(_exp(width))} in {self.metric}"
        percent = 100 * math.expm1(width)
        return f"{signed(percent, decimals(percent / 2))}% in {self.metric}"

    @property
    def note(self) -> str:
        """What a table's numbers are."""
        if self.ratio:
            return f"Ratios of {self.metric}, the first to the second; below 1 is better."
        units = "points" if self.metric == "accuracy" else f"units of {self.metric}"
        return f"In {units}; a positive gain is better."


def scale_of(plan: Plan, results: Iterable[float]) -> Scale:
    """The scale on which these results, all of a plan, are compared."""
    values = list(results)
    positive = bool(values) and min(values) > 0
    ratio = plan.kind == "study" and plan.better == "lower" and positive
    return Scale(plan.metric, plan.better, ratio)


def _exp(value: float) -> float:
    """Without overflow: an interval of two seeds may reach anywhere."""
    return math.exp(max(-700.0, min(700.0, value)))
