"""What a method makes of every learning rate it was tried at, from kept results."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.ticker import FuncFormatter, NullLocator

from aliceopt.lab.figures import style
from aliceopt.lab.figures.outcomes import LOOKS
from aliceopt.lab.plans.plan import settings_of
from aliceopt.lab.records import RecordError
from aliceopt.lab.results.kept import Kept, check_alike
from aliceopt.lab.results.numbers import limits, signed
from aliceopt.lab.words import meant

_ROW = 0.08  # of the height of a figure that a row of text takes

Tried = dict[float, list[float | None]]
"""Final metrics by learning rate, of every seed; None where a run diverged."""


def rates_of(
    lines: Sequence[Kept], methods: Sequence[str] | None = None
) -> dict[str, tuple[str, Tried]]:
    """For each method its label, and what it was tried at.

    Without ``methods``: all that were tried at two rates or more.
    """
    found: dict[str, tuple[str, Tried]] = {}
    for line in lines:
        name, rate = line.method.partition("@")[0], line.config.options.get("lr")
        if rate is not None:
            label = line.called.partition(", lr ")[0]
            found.setdefault(name, (label, {}))[1].setdefault(rate, []).append(line.final)
    if methods is None:
        return {name: there for name, there in found.items() if len(there[1]) > 1}
    for name in methods:
        if name not in found:
            raise RecordError(f"no kept run of method {name!r}{meant(name, found)}")
    return {name: found[name] for name in methods}


def short(rate: float) -> str:
    """A rate in as few characters as it takes.

    >>> short(0.0005), short(0.002), short(0.25)
    ('5e-4', '2e-3', '0.25')
    """
    mantissa, _, exponent = f"{rate:.2e}".partition("e")
    brief = f"{float(mantissa):g}e{int(exponent)}"
    return brief if len(brief) <= len(f"{rate:g}") else f"{rate:g}"


def draw_rates(
    lines: Sequence[Kept], path: str | os.PathLike[str], methods: Sequence[str] | None = None
) -> Path:
    """Final metric against learning rate: every seed a dot, a line through the means.

    The axis ends where one bad rate would squeeze all others: an arrow there points at a mean
    outside, with its value, a triangle at seeds outside whose mean is inside. A run that diverged
    is a cross at that end. All runs must be of one experiment, scale, device and precision.
    """
    target = style.checked_path(path)
    check_alike(lines)
    curves = rates_of(lines, methods)
    if not 1 <= len(curves) <= len(LOOKS):
        raise RecordError(
            f"1 to {len(LOOKS)} methods can be told apart, got {len(curves)}: name some of "
            f"{', '.join(curves) or 'them'}"
        )
    one = lines[0]
    finals = [v for _, tried in curves.values() for row in tried.values() for v in row]
    told = [value for value in finals if value is not None]
    if not told:
        raise RecordError("every run diverged: there is nothing to draw")
    with style.look():
        figure = style.new_figure(3.4)
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        inside = framed(told, one.better)
        outside = _outside([tried for _, tried in curves.values()], inside)
        bad = _make_room(axes, inside, one.better, max(map(len, outside.values()), default=0))
        # The first named lie on top of those that come after them.
        for i, (look, (label, tried)) in enumerate(zip(LOOKS, curves.values(), strict=False)):
            _draw(axes, look, style.safe(label, 40), tried, inside, bad, above=len(curves) - i)
        for rate, means in outside.items():
            _point_at(axes, rate, means, bad)
        rates = sorted({rate for _, tried in curves.values() for rate in tried})
        axes.set_xticks(rates)
        axes.set_xlim(rates[0] / 1.3, rates[-1] * 1.3)  # also where all at a rate lie outside
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: short(rate)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"{one.metric} ({one.better} is better)")
        title = settings_of(one.experiment, one.scale)["title"].removeprefix("Does it pay? ")
        axes.set_title(", ".join((title, one.device, one.precision)))
        longest = max(len(label) for label, _ in curves.values())
        figure.legend(loc="outside lower center", ncols=3 if longest < 22 else 2)
        return style.save(figure, target)


def framed(values: Sequence[float], better: str) -> tuple[float, float]:
    """The ends of an axis for these values: all of them, unless the worst take half of it."""
    low, high = min(values), max(values)
    if low == high:
        return low - (abs(low) or 1.0) / 10, high + (abs(high) or 1.0) / 10
    room = 0.06 * (high - low)
    every, most = (low - room, high + room), limits(values, better)
    return most if every[1] - every[0] > 2 * (most[1] - most[0]) else every


def _means(tried: Tried) -> dict[float, float]:
    """Over the seeds that finished, by rate."""
    told = {rate: [v for v in finals if v is not None] for rate, finals in sorted(tried.items())}
    return {rate: fmean(values) for rate, values in told.items() if values}


def _outside(
    curves: Sequence[Tried], inside: tuple[float, float]
) -> dict[float, list[tuple[str, float]]]:
    """By rate: the colours of methods whose mean lies outside, and these means."""
    found: dict[float, list[tuple[str, float]]] = {}
    for look, tried in zip(LOOKS, curves, strict=False):
        for rate, mean in _means(tried).items():
            if not inside[0] <= mean <= inside[1]:
                found.setdefault(rate, []).append((look["color"], mean))
    return found


def _make_room(axes: Any, inside: tuple[float, float], better: str, rows: int) -> float:
    """Set the axis, with room at its bad end for so many rows of text; returns that end."""
    low, high = inside
    room = _ROW * rows * (high - low)
    low, high = (low, high + room) if better == "lower" else (low - room, high)
    axes.set_ylim(low, high)
    return high if better == "lower" else low


def _draw(
    axes: Any,
    look: dict[str, Any],
    label: str,
    tried: Tried,
    inside: tuple[float, float],
    bad: float,
    above: int,
) -> None:
    means = _means(tried)
    place = {"color": look["color"], "zorder": 2 + 0.01 * above}
    at_end = {**place, "ls": "", "clip_on": False}
    for rate, finals in tried.items():
        told = [v for v in finals if v is not None and inside[0] <= v <= inside[1]]
        axes.plot([rate] * len(told), told, marker=".", ls="", ms=4, alpha=0.6, **place)
        if None in finals:
            axes.plot([rate], [bad], marker="x", ms=7, **at_end)
        beyond = len(told) + finals.count(None) < len(finals)
        if beyond and inside[0] <= means[rate] <= inside[1]:
            axes.plot([rate], [bad], marker="^" if bad > inside[0] else "v", ms=5, **at_end)
    shown = [mean if inside[0] <= mean <= inside[1] else math.nan for mean in means.values()]
    style_of = {**place, "marker": look["marker"], "ls": look["ls"], "ms": 4}
    axes.plot(list(means), shown, label=label, lw=1.2, **style_of)


def _point_at(axes: Any, rate: float, means: Sequence[tuple[str, float]], bad: float) -> None:
    """One row a mean that lies beyond the bad end of the axis, the furthest next to it."""
    inward, arrow = (-1, "\u2191") if bad == axes.get_ylim()[1] else (1, "\u2193")
    for row, (color, mean) in enumerate(sorted(means, key=lambda one: inward * one[1])):
        axes.annotate(
            f"{arrow} {signed(mean, 2)}",
            (rate, bad),
            xytext=(0, inward * (8 + 11 * row)),
            textcoords="offset points",
            ha="center",
            va="center",
            color=color,
        )
