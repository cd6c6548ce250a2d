"""Plots of lines: rates tried, learning curves, curvature by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from aliceopt.lab.records import RunRecord
from aliceopt.lab.report.axes import Axis, limits
from aliceopt.lab.results.summary import outcome
from aliceopt.lab.spec import Plan

__all__ = [
    "COSTS",
    "Line",
    "Panel",
    "curvature_panels",
    "curve_panels",
    "merge_blocks",
    "rate_panel",
]

COSTS = {"step": "steps", "gradients": "gradient evaluations", "seconds": "seconds of training"}
MOST_BLOCKS = 6
_LATE = 3  # curves are framed by what comes after the first third

Band = tuple[float, float, float, float]
"""A place, and the least, middle and most that was seen there."""


@dataclass(frozen=True)
class Line:
    """A line as drawn in a square of 1000: its path, a band around it, dots, and where it ends."""

    name: str
    label: str
    path: str
    end: tuple[float, float]
    band: str = ""
    dots: str = ""
    chosen: str = ""
    lost: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Panel:
    """Lines over two axes."""

    title: str
    across: str
    xticks: list[tuple[float, str]]
    yticks: list[tuple[float, str]]
    lines: list[Line]
    alt: str
    cost: str = ""


def _path(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    return "M" + "L".join(f"{10 * x.at(a):.0f} {1000 - 10 * y.at(b):.0f}" for a, b in points)


def _dots(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    """Lines of no length, which round caps make dots whatever the plot's shape."""
    return "".join(f"{_path([point], x, y)}h0" for point in points)


def _line(name: str, label: str, bands: Sequence[Band], x: Axis, y: Axis) -> Line:
    middle = [(place, value) for place, _, value, _ in bands]
    above = [(place, most) for place, _, _, most in bands]
    below = [(place, least) for place, least, _, _ in reversed(bands)]
    end = (x.at(middle[-1][0]), min(100.0, max(0.0, y.at(middle[-1][1]))))
    band = _path(above + below, x, y) + "z" if len(bands) > 1 else ""
    return Line(name, label, _path(middle, x, y), end, band)


def rate_panel(plan: Plan) -> Panel | None:
    """Final metric against learning rate at the seeds of tuning, for every method."""
    tuned = plan.tuned
    if not tuned:
        return None
    found = {method: chosen.tried for method, chosen in tuned.chosen.items()}
    told = [v for tried in found.values() for one in tried for v in one.finals if v is not None]
    if not told:
        return None
    x = Axis.around([one.lr for tried in found.values() for one in tried], log=True)
    y = _framed(told, plan.metric, plan.better)
    lines = []
    for method, tried in found.items():
        ends = [(one.lr, [v for v in one.finals if v is not None]) for one in tried]
        means = {rate: fmean(values) for rate, values in ends if values}
        if not means:
            continue
        mine = tuned.chosen[method].lr
        shown = mine if mine in means else max(means)
        lines.append(
            Line(
                name=method,
                label=plan.methods[method].label,
                path=_path(list(means.items()), x, y),
                end=(x.at(shown), min(100.0, max(0.0, y.at(means[shown])))),
                dots=_dots([(rate, v) for rate, values in ends for v in values], x, y),
                chosen=_dots([(mine, means[mine])], x, y) if mine in means else "",
                lost=[x.at(one.lr) for one in tried if None in one.finals],
            )
        )
    best = "; ".join(
        f"{plan.methods[method].label} {chosen.lr:.3g}" for method, chosen in tuned.chosen.items()
    )
    alt = f"Final {plan.metric} against learning rate. Chosen: {best}."
    title = f"final validation {plan.metric}"
    return Panel(title, "learning rate", x.ticks(8), y.ticks(), lines, alt)


def _framed(values: Sequence[float], metric: str, better: str) -> Axis:
    low, high = limits(values, better)
    low = max(low, 0.9 * min(values)) if min(values) > 0 else low
    return Axis(low, high, log=metric != "accuracy" and 0 < 3 * low < high)


def curve_panels(plan: Plan, runs: Sequence[RunRecord]) -> list[Panel]:
    """Training loss and validation metric against each cost, medians over finished seeds."""
    metric = plan.metric
    sources: dict[str, tuple[str, str, Callable[[RunRecord], list[dict[str, Any]]]]] = {
        "training loss": ("loss", "lower", lambda run: run.training),
        f"validation {metric}": ("metric", plan.better, lambda run: run.evaluations[1:]),
    }
    panels = []
    for cost, across in COSTS.items():
        for title, (value, better, series) in sources.items():
            bands = _bands(plan, runs, cost, value, series)
            late = [v for found in bands.values() for *_, v, _ in found[len(found) // _LATE :]]
            if not late:
                continue
            x = Axis(0.0, max(found[-1][0] for found in bands.values()) or 1.0)
            y = _framed(late, metric if value == "metric" else "loss", better)
            labels = {method: plan.methods[method].label for method in bands}
            lines = [_line(m, labels[m], found, x, y) for m, found in bands.items()]
            ends = "; ".join(f"{labels[m]} {found[-1][2]:.4g}" for m, found in bands.items())
            alt = f"{title.capitalize()} against {across}. At the end: {ends}."
            panels.append(Panel(title, across, x.ticks(), y.ticks(), lines, alt, cost))
    return panels


def _bands(
    plan: Plan,
    runs: Sequence[RunRecord],
    cost: str,
    value: str,
    series: Callable[[RunRecord], list[dict[str, Any]]],
) -> dict[str, list[Band]]:
    """By method, record by record over its finished runs, which all record at the same steps."""
    bands: dict[str, list[Band]] = {}
    for method in plan.methods:
        done = [series(r) for r in runs if r.method == method and outcome(r) == "finished"]
        for same in zip(*done, strict=False):
            values = [e[value] for e in same if e.get(value) is not None]
            if values and all(map(math.isfinite, values)):
                place = median(float(e[cost]) for e in same)
                band = (place, min(values), median(values), max(values))
                bands.setdefault(method, []).append(band)
    return bands


# ---- curvature ---------------------------------------------------------------------------------

_SHARES = {
    "glass_share": "share of the curvature that is glass, %",
    "at_upper": "share of coordinates at the upper bound, %",
}


def curvature_panels(plan: Plan, runs: Sequence[RunRecord]) -> tuple[str, list[Panel]] | None:
    """Alice's own account by block, and the method it is of; None without any number of it."""
    method = _glassy(plan, runs)
    if method is None:
        return None
    chosen = [run for run in runs if run.method == method and run.telemetry]
    panels = []
    for key, title in _SHARES.items():
        series = _shares(chosen, key)
        if not series:
            continue
        x = Axis(0.0, max(points[-1][0] for points in series.values()) or 1.0)
        y = Axis(0.0, 100.0)
        lines = [
            _line(f"block-{i}", label, [(step, v, v, v) for step, v in points], x, y)
            for i, (label, points) in enumerate(series.items())
        ]
        ends = ", ".join(f"{label} {points[-1][1]:.0f}%" for label, points in series.items())
        alt = f"{title.capitalize()}, at the end of training: {ends}."
        panels.append(Panel(title, "steps", x.ticks(), y.ticks(), lines, alt))
    return (plan.methods[method].label, panels) if panels else None


def _glassy(plan: Plan, runs: Sequence[RunRecord]) -> str | None:
    """Both terms and accelerated steps if there are such records, else any that measure glass."""
    measured = {run.method for run in runs if any(t.get("blocks") for t in run.telemetry)}
    about = {m: (a.terms, a.step) for m, a in plan.methods.items() if m in measured}
    glassy = [m for m, (terms, _) in about.items() if terms is not None and "glass" in terms]
    first = [m for m in glassy if about[m] == ("glass+abs", "naq")]
    return next(iter([*first, *glassy]), None)


def merge_blocks(names: Sequence[str], most: int = MOST_BLOCKS) -> dict[str, list[str]]:
    """Neighbouring blocks put together until there are at most ``most``, as even as counts allow.

    >>> merge_blocks(["a", "b", "c"], most=2)
    {'a': ['a'], 'b to c': ['b', 'c']}
    """
    count = min(most, len(names))
    merged = {}
    for i in range(count):
        members = list(names[i * len(names) // count : (i + 1) * len(names) // count])
        merged[members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}"] = members
    return merged


def _shares(runs: Sequence[RunRecord], key: str) -> dict[str, list[tuple[int, float]]]:
    """Percentages by block: step and median over seeds, weighted by coordinates in a block."""
    about = runs[0].start.get("blocks") or {}
    series: dict[str, list[tuple[int, float]]] = {}
    for label, members in merge_blocks(list(runs[0].telemetry[-1]["blocks"])).items():
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for record in run.telemetry:
                value = _mean(record["blocks"], members, key)
                if value is not None:
                    by_step.setdefault(record["step"], []).append(100 * value)
        if by_step:
            told = [about[m] for m in members[:1] if m in about and len(members) == 1]
            points = [(step, median(found)) for step, found in sorted(by_step.items())]
            series[": ".join([label, *told])] = points
    return series


def _mean(blocks: Mapping[str, Any], members: Sequence[str], key: str) -> float | None:
    pairs = [
        (blocks[m]["coordinates"], blocks[m][key])
        for m in members
        if m in blocks and blocks[m].get(key) is not None
    ]
    total = sum(n for n, _ in pairs)
    return sum(n * v for n, v in pairs) / total if total else None
