"""Figure 1: exponents of gradient variations, block by block, while a network trains.

A Hessian gives 2, glass gives 1, both in the limit of small radii. At a finite radius a smooth
gradient that saturates has less than 2 as well: one radius does not tell the two apart.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.outcomes import LOOKS
from aliceopt.lab.records import RecordError, Records


def draw_power_law(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 1 from the records of an experiment to ``out`` and return its path.

    Lines are medians over seeds, dots single seeds; bands are the 95% intervals over directions
    (from the lowest to the highest end, over seeds).
    """
    target = style.checked_path(out)
    outcomes.check_kind(records, "power_law")
    series = [run.power_law for run in records.runs if run.power_law]
    if not series:
        raise RecordError(
            f"no exponents in {str(records.folder)!r}: no run has measured a power law yet"
        )
    with style.look():
        figure = style.new_figure(height=3.8)
        axes = figure.subplots()
        names = list(series[0][0]["blocks"])
        exponents = []
        for i, name in enumerate(names):
            exponents += draw_block(axes, series, name, LOOKS[i % len(LOOKS)], name)
        # A range for the exponents and both lines; bands may be wider and are cut.
        low, high = min(exponents, default=1.0), max(exponents, default=2.0)
        axes.set_ylim(min(0.9, low - 0.15), max(2.2, high + 0.15))
        for power in (1, 2):
            axes.axhline(power, color=style.BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
        mark_powers(axes)
        axes.margins(x=0.02)
        axes.set_xlabel("epoch")
        axes.set_ylabel("exponent p of gradient variations")
        axes.legend(
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=3,
            handlelength=2.6,
            columnspacing=1.2,
        )
    return outcomes.finish(figure, records, target, _note(series[0][0]))


def draw_block(
    axes: Axes,
    series: Sequence[Sequence[dict[str, Any]]],
    name: str,
    look: dict[str, Any],
    label: str,
) -> list[float]:
    """One block's exponent over epochs, with its band; moments without one are left out.

    Gives the medians that were drawn.
    """
    at: dict[float, list[dict[str, Any]]] = {}
    for events in series:
        for event in events:
            law = event["blocks"].get(name)
            if law is not None and law.get("exponent") is not None:
                at.setdefault(event["epoch"], []).append(law)
    epochs = sorted(at)
    middle, low, high = [], [], []
    for epoch in epochs:
        exponents = [law["exponent"] for law in at[epoch]]
        ends = [[law[k] for law in at[epoch] if law.get(k) is not None] for k in ("low", "high")]
        middle.append(median(exponents))
        low.append(min(ends[0], default=min(exponents)))
        high.append(max(ends[1], default=max(exponents)))
    axes.fill_between(epochs, low, high, color=look["color"], alpha=0.15, lw=0)
    every = max(1, len(epochs) // 8)
    axes.plot(epochs, middle, label=label, ms=4.5, lw=1.5, markevery=every, **look)
    if len(series) > 1:
        for events in series:
            laws = [(e["epoch"], e["blocks"].get(name, {}).get("exponent")) for e in events]
            told = [(x, p) for x, p in laws if p is not None]
            dots = {"color": look["color"], "ms": 3, "alpha": 0.6, "gid": "seeds"}
            axes.plot([x for x, _ in told], [p for _, p in told], ".", **dots)
    return middle


def mark_powers(axes: Axes) -> None:
    """What exponents of 2 and 1 mean, at the right edge."""
    for power, meaning in ((2, "Hessian"), (1, "glass")):
        axes.annotate(
            f"p = {power}\n{meaning}",
            (1.0, power),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )


def _note(event: dict[str, Any]) -> str:
    radius, factor = event["radius"], event.get("factor", 2)
    text = f"Parameters displaced by {radius:g} against {factor * radius:g}"
    if event.get("directions"):
        text += f", {event['directions']} directions, bands: 95% intervals over them"
    text += ". The exponent depends on the batch size and on the radius: "
    return f"{text}a smooth gradient that saturates is below 2, too."
