"""Rows of a plot: differences with their intervals, and results seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from aliceopt.lab.records import RunRecord
from aliceopt.lab.report.axes import Axis
from aliceopt.lab.results.comparisons import Comparison
from aliceopt.lab.results.numbers import (
    decimals,
    limits,
    show_count,
    show_seconds,
    show_value,
    unit,
)
from aliceopt.lab.results.scale import Scale
from aliceopt.lab.results.summary import Summary, finals
from aliceopt.lab.spec import Plan


@dataclass(frozen=True)
class Strip:
    """One row: places in percent, what they say in words, and whether it stands out."""

    method: str
    label: str
    family: str
    text: str
    dots: list[float]
    middle: float
    low: float | None = None
    high: float | None = None
    sure: bool = False
    note: str = ""

    @property
    def cut(self) -> tuple[bool, bool]:
        """Whether any of it lies outside the axis, on the low side and on the high side."""
        ends = [end for end in (self.low, self.high) if end is not None]
        places = [*self.dots, self.middle, *ends]
        return min(places) < 0, max(places) > 100


@dataclass(frozen=True)
class Strips:
    """Rows over one axis; ``zero`` is the place of no difference, if it means anything."""

    axis: str
    ticks: list[tuple[float, str]]
    rows: list[Strip]
    alt: str
    zero: float | None = None

    @property
    def cut(self) -> bool:
        """Whether anything lies outside the axis."""
        return any(any(row.cut) for row in self.rows)


def forest(plan: Plan, comparisons: Sequence[Comparison], choice: str | None) -> Strips | None:
    """How much worse than the best result every other method is, the nearest first."""
    drawn = sorted((c for c in comparisons if c.question == "best"), key=lambda c: c.gain)
    if not drawn:
        return None
    best = plan.methods[drawn[0].first].label
    axis = f"{unit(plan.metric).removeprefix('in ')} behind {best}"
    if drawn[0].scale.ratio:
        axis = f"{plan.metric}, times that of {best} (log)"
    named = [(c.second, plan.methods[c.second].label, c) for c in drawn]
    return _differences(plan, named, axis, choice)


def term_strips(plan: Plan, comparisons: Sequence[Comparison]) -> Strips | None:
    """How much better than no term every term is, at the same kind of step; and NAQ than full.

    Losses are shown as multiples of those without a term.
    """
    short = {"naq": "NAQ", "full": "full"}
    named = [
        (c.first, f"{plan.methods[c.first].terms}, {short[c.step or '']}", c)
        for c in comparisons
        if c.question == "terms"
    ]
    if not named:
        return None
    named += [("", "NAQ against full", c) for c in comparisons if c.question == "steps"]
    if named[0][2].scale.ratio:
        turned = [(method, label, c.turned) for method, label, c in named]
        return _differences(plan, turned, f"{plan.metric}, times that of no term (log)")
    units = unit(plan.metric).removeprefix("in ")
    return _differences(plan, named, f"gain in {units} over no term")


def _differences(
    plan: Plan,
    named: Sequence[tuple[str, str, Comparison]],
    title: str,
    choice: str | None = None,
) -> Strips:
    scale = named[0][2].scale
    axis = _around_no_gain([c for _, _, c in named], scale)
    places = max(1, decimals(median(abs(c.gain) for _, _, c in named) / 2))
    rows = []
    for method, label, c in named:
        low, high = [axis.at(scale.on_axis(end)) for end in c.ends] or (None, None)
        mean = scale.number(c.gain, places)
        interval = scale.interval(places, *c.ends)
        rows.append(
            Strip(
                method=method,
                label=label,
                family=plan.methods[method].family if method else "",
                text=f"{mean} ({interval})" if c.ends else mean,
                dots=[axis.at(scale.on_axis(d)) for d in c.differences],
                middle=axis.at(scale.on_axis(c.gain)),
                low=low,
                high=high,
                sure=c.verdict in ("better", "worse"),
                note="use this" if method == choice else "",
            )
        )
    alt = f"{title}: {'; '.join(f'{row.label} {row.text}' for row in rows)}."
    return Strips(title, axis.ticks(), rows, alt, axis.at(scale.on_axis(0.0)))


def _around_no_gain(comparisons: Sequence[Comparison], scale: Scale) -> Axis:
    """No gain and most of what was seen; intervals reach out of it where seeds are too few."""
    sizes = [max(map(abs, c.differences)) for c in comparisons]
    reach = 1.5 * (min(max(sizes), 4 * median(sizes)) or 1.0)
    lows = [c.gain if c.low is None else c.low for c in comparisons]
    highs = [c.gain if c.high is None else c.high for c in comparisons]
    ends = max(min([0.0, *lows]), -reach), min(max([0.0, *highs]), reach)
    room = 0.05 * (ends[1] - ends[0]) or 1.0
    low, high = (scale.on_axis(end) for end in (ends[0] - room, ends[1] + room))
    return Axis(low, high, log=scale.ratio)


def result_strips(plan: Plan, runs: Sequence[RunRecord], summary: Summary) -> Strips | None:
    """Final results by method, the best on top: a dot for every seed, and what a run took."""
    values = finals(runs)
    sign = -1 if plan.better == "higher" else 1
    done = [s for s in summary.methods if s.median is not None]
    done.sort(key=lambda s: sign * (s.median or 0.0))
    if not done:
        return None
    shown = [v for s in done for v in values[s.method].values()]
    axis = Axis(*limits(shown, plan.better))
    rows = [
        Strip(
            method=s.method,
            label=s.label,
            family=s.family,
            text=f"{show_count(s.gradients)} gradients, {show_seconds(s.seconds)}",
            dots=[axis.at(v) for _, v in sorted(values[s.method].items())],
            middle=axis.at(s.median or 0.0),
            note=", ".join(f"{s.counts[w]} {w}" for w in ("diverged", "failed") if s.counts[w]),
        )
        for s in done
    ]
    told = [f"{s.label} {show_value(s.median, plan.metric)}" for s in done]
    title = f"final validation {plan.metric}"
    alt = f"Final {plan.metric} by method, medians, best first: {', '.join(told)}."
    return Strips(title, axis.ticks(), rows, alt)
