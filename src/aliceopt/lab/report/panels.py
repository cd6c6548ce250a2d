"""Plots of lines: rates tried, learning curves, curvature by block."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from aliceopt.lab.records import RunRecord
from aliceopt.lab.report.axes import Axis
from aliceopt.lab.results.numbers import limits
from aliceopt.lab.results.summary import outcome
from aliceopt.lab.spec import Plan

COSTS = {"step": "steps", "gradients": "gradient evaluations", "seconds": "seconds of training"}
MOST_BLOCKS = 6
_LATE = 3  # curves are framed by what comes after the first third
_TAG = 9.0  # percent of a plot's height that a label takes, on the smallest screen
_GAP = 2.0  # percent between a label and where its line ends

Band = tuple[float, float, float, float]
"""A place, and the least, middle and most that was seen there."""


@dataclass(frozen=True)
class Line:
    """A line as drawn in a square of 1000: its path, a band around it, dots, and where it ends.

    ``tag`` is where the label's lower edge stands, in percent.
    """

    name: str
    label: str
    path: str
    end: tuple[float, float]
    band: str = ""
    dots: str = ""
    chosen: str = ""
    lost: list[float] = field(default_factory=list)
    tag: float = 0.0


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


def place_tags(lines: Sequence[Line], together: Collection[str] = ()) -> list[Line]:
    """Lines with places for labels: inside, above where lines end, and one of two below.

    Labels of the two shown ``together`` keep the order in which their lines end, and
    each other's distance; any other is shown alone.
    """
    top = 100 - _TAG
    tags = {line.name: min(line.end[1] + _GAP, top) for line in lines}
    pair = sorted((line for line in lines if line.name in together), key=lambda one: one.end[1])
    if len(pair) == 2:
        lower, upper = pair
        below = lower.end[1] - _GAP - _TAG
        at = below if below >= 0 else tags[lower.name]
        tags[upper.name] = min(max(tags[upper.name], at + _TAG), top)
        tags[lower.name] = min(at, tags[upper.name] - _TAG)
    return [replace(line, tag=round(tags[line.name], 2)) for line in lines]


def rate_panel(plan: Plan, together: Collection[str] = ()) -> Panel | None:
    """Final metric against learning rate at the seeds of tuning, for every method."""
    chosen = plan.tuned.chosen if plan.tuned else {}
    tried = [one for mine in chosen.values() for one in mine.tried]
    told = [v for one in tried for v in one.finals if v is not None]
    if not told:
        return None
    rates = [one.lr for one in tried]
    x = Axis(min(rates) / 1.3, max(rates) * 1.3, log=True)
    y = _framed(told, plan.metric, plan.better)
    lines = []
    for method, mine in chosen.items():
        dots = [(one.lr, v) for one in mine.tried for v in one.finals if v is not None]
        means = {rate: fmean(v for at, v in dots if at == rate) for rate, _ in dots}
        if not means:
            continue
        shown = mine.lr if mine.lr in means else max(means)
        lines.append(
            Line(
                name=method,
                label=plan.methods[method].label,
                path=_path(list(means.items()), x, y),
                end=(x.at(shown), min(100.0, max(0.0, y.at(means[shown])))),
                dots=_dots(dots, x, y),
                chosen=_dots([(shown, means[shown])], x, y) if shown == mine.lr else "",
                lost=[x.at(one.lr) for one in mine.tried if None in one.finals],
            )
        )
    best = "; ".join(f"{plan.methods[m].label} {mine.lr:.3g}" for m, mine in chosen.items())
    alt = f"Final {plan.metric} against learning rate. Chosen: {best}."
    title = f"final validation {plan.metric}"
    lines = place_tags(lines, together)
    return Panel(title, "learning rate", x.ticks(8), y.ticks(), lines, alt)


def _framed(values: Sequence[float], metric: str, better: str) -> Axis:
    """An axis for most of these values; a label has room below the best of low ones."""
    low, high = limits(values, better)
    low = max(low, 0.9 * min(values)) if min(values) > 0 else low
    axis = Axis(low, high, log=metric != "accuracy" and 0 < 3 * low < high)
    return axis.with_room(_TAG + _GAP) if better == "lower" else axis


def curve_panels(
    plan: Plan, runs: Sequence[RunRecord], together: Collection[str] = ()
) -> list[Panel]:
    """Training loss and validation metric against each cost, medians over finished seeds.

    Labels of the methods shown ``together`` are all there at once.
    """
    done = [run for run in runs if outcome(run) == "finished"]
    by_method = {m: [run for run in done if run.method == m] for m in plan.methods}
    training = {m: [run.training for run in mine] for m, mine in by_method.items()}
    validation = {m: [run.evaluations[1:] for run in mine] for m, mine in by_method.items()}
    sources = {
        "training loss": ("loss", "loss", "lower", training),
        f"validation {plan.metric}": ("metric", plan.metric, plan.better, validation),
    }
    panels = []
    for cost, across in COSTS.items():
        for title, (key, metric, better, events) in sources.items():
            bands = {m: found for m, mine in events.items() if (found := _bands(mine, cost, key))}
            late = [v for found in bands.values() for *_, v, _ in found[len(found) // _LATE :]]
            if not late:
                continue
            x = Axis(0.0, max(found[-1][0] for found in bands.values()) or 1.0)
            y = _framed(late, metric, better)
            labels = {method: plan.methods[method].label for method in bands}
            drawn = [_line(m, labels[m], found, x, y) for m, found in bands.items()]
            lines = place_tags(drawn, together)
            ends = "; ".join(f"{labels[m]} {found[-1][2]:.4g}" for m, found in bands.items())
            alt = f"{title.capitalize()} against {across}. At the end: {ends}."
            panels.append(Panel(title, across, x.ticks(), y.ticks(), lines, alt, cost))
    return panels


def _bands(runs: Sequence[Sequence[Mapping[str, Any]]], cost: str, key: str) -> list[Band]:
    """Event by event over runs, which all record at the same steps."""
    bands: list[Band] = []
    for same in zip(*runs, strict=False):
        values = [event[key] for event in same if event.get(key) is not None]
        if values and all(map(math.isfinite, values)):
            place = median(float(event[cost]) for event in same)
            bands.append((place, min(values), median(values), max(values)))
    return bands


# ---- curvature ---------------------------------------------------------------------------------

_SHARES = {
    "glass_share": "share of the curvature that is glass, %",
    "at_upper": "share of coordinates at the upper bound, %",
}


def curvature_panels(plan: Plan, runs: Sequence[RunRecord]) -> tuple[str, list[Panel]] | None:
    """Alice's own account by block, and the method it is of; None without any number of it."""
    measured = {run.method for run in runs if any(t.get("blocks") for t in run.telemetry)}
    about = {m: (a.terms or "", a.step) for m, a in plan.methods.items() if m in measured}
    glassy = [m for m, (terms, _) in about.items() if "glass" in terms]
    if not glassy:
        return None
    # Both terms and accelerated steps if there are such records, else any that measure glass.
    method = next((m for m in glassy if about[m] == ("glass+abs", "naq")), glassy[0])
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
        panels.append(Panel(title, "steps", x.ticks(), y.ticks(), place_tags(lines), alt))
    return (plan.methods[method].label, panels) if panels else None


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
        for record in (record for run in runs for record in run.telemetry):
            blocks = [record["blocks"][m] for m in members if m in record["blocks"]]
            pairs = [(b["coordinates"], b[key]) for b in blocks if b.get(key) is not None]
            if total := sum(n for n, _ in pairs):
                mean = sum(n * share for n, share in pairs) / total
                by_step.setdefault(record["step"], []).append(100 * mean)
        if by_step:
            told = [about[m] for m in members if m in about and len(members) == 1]
            points = [(step, median(found)) for step, found in sorted(by_step.items())]
            series[": ".join([label, *told])] = points
    return series
