"""What a method makes of every learning rate it was tried at, from kept results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.ticker import FuncFormatter, NullLocator

from aliceopt.lab.figures import style
from aliceopt.lab.figures.outcomes import LOOKS
from aliceopt.lab.records import RecordError
from aliceopt.lab.results.kept import Kept, check_alike
from aliceopt.lab.words import meant

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
            label = line.label.partition(", lr ")[0]
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

    A run that diverged is a cross at the edge of the bad. All runs must be of one experiment,
    scale, device and precision.
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
    edge = min(told) if one.better == "higher" else max(told)
    with style.look():
        figure = style.new_figure(3.2)
        axes = figure.add_subplot()
        for look, (label, tried) in zip(LOOKS, curves.values(), strict=False):
            _draw(axes, look, label, tried, edge)
        axes.set_xscale("log", base=2)
        rates = sorted({rate for _, tried in curves.values() for rate in tried})
        axes.set_xticks(rates)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: short(rate)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"{one.metric} ({one.better} is better)")
        axes.set_title(", ".join((one.experiment, one.device, one.precision)))
        figure.legend(loc="outside right upper")
        return style.save(figure, target)


def _draw(axes: Any, look: dict[str, Any], label: str, tried: Tried, edge: float) -> None:
    means = {}
    for rate, finals in tried.items():
        told = [value for value in finals if value is not None]
        axes.plot([rate] * len(told), told, color=look["color"], marker=".", ls="", ms=4, alpha=0.6)
        if told:
            means[rate] = fmean(told)
        if len(told) < len(finals):
            axes.plot([rate], [edge], color=look["color"], marker="x", ls="", ms=7)
    rates = sorted(means)
    style_of = {"color": look["color"], "marker": look["marker"], "ls": look["ls"], "ms": 4}
    axes.plot(rates, [means[rate] for rate in rates], label=label, lw=1.2, **style_of)
