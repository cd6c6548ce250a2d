"""Figure 1: exponents of gradient variations, block by block, while a network trains.

A Hessian gives 2, glass gives 1, both in the limit of small radii. At a finite radius a smooth
gradient that saturates has less than 2 as well: one radius does not tell the two apart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.outcomes import LOOKS
from aliceopt.lab.records import RecordError, Records
from aliceopt.lab.results.exponents import Series, series_of
from aliceopt.lab.spec import Place


def draw_power_law(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 1 from the records of an experiment to ``out`` and return its path.

    A row of panels a network, a column a radius, all on training batches of the usual size. Lines
    are medians over seeds, dots single seeds; bands are the 95% intervals over directions (from
    the lowest to the highest end, over seeds).
    """
    target = style.checked_path(out)
    outcomes.check_kind(records, "power_law")
    measured = series_of(records.plan, records.runs)
    if not measured:
        raise RecordError(
            f"no exponents in {str(records.folder)!r}: no run has measured a power law yet"
        )
    usual = [one for one in measured if (one.place.batch_size, one.place.held_out) == (None, False)]
    rows = list(dict.fromkeys(one.method for one in usual))
    columns = list(dict.fromkeys(one.place for one in usual))
    panels: list[Any] = [["legend"] * len(columns)]
    panels += [[f"{method}, {place}" for place in columns] for method in rows]
    with style.look():
        figure = style.new_figure(height=1.2 + 2.4 * len(rows))
        mosaic = figure.subplot_mosaic(panels, height_ratios=[0.35, *[2.4] * len(rows)])
        legend = mosaic.pop("legend")
        drawn = []
        for one in usual:
            axes = mosaic[f"{one.method}, {one.place}"]
            drawn += draw_series(axes, one)
            axes.set_xlabel("epoch" if one.method == rows[-1] else "")
            axes.set_ylabel("exponent p" if one.place == columns[0] else "")
            if one.place == columns[-1]:
                mark_powers(axes)
            if len(usual) > 1:
                axes.set_title(f"{one.label}, radius {one.place.radius:g}")
        # A range for the exponents and both lines; bands may be wider and are cut.
        low, high = min(drawn, default=1.0), max(drawn, default=2.0)
        for axes in mosaic.values():
            axes.set_ylim(min(0.9, low - 0.15), max(2.2, high + 0.15))
        legend.axis("off")
        legend.legend(*axes.get_legend_handles_labels(), loc="center", ncols=3, columnspacing=1.2)
    return outcomes.finish(figure, records, target, _note(usual[0].runs[0][0], columns))


def draw_series(axes: Axes, series: Series) -> list[float]:
    """All blocks of one network at one place, with lines at 1 and 2; gives the medians drawn."""
    drawn = []
    for i, name in enumerate(series.blocks):
        drawn += draw_block(axes, series.runs, name, LOOKS[i % len(LOOKS)], name)
    for power in (1, 2):
        axes.axhline(power, color=style.BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
    axes.margins(x=0.02)
    return drawn


def draw_block(
    axes: Axes,
    series: Sequence[Sequence[Mapping[str, Any]]],
    name: str,
    look: dict[str, Any],
    label: str,
) -> list[float]:
    """One block's exponent over epochs, with its band; moments without one are left out.

    Gives the medians that were drawn.
    """
    at: dict[float, list[Mapping[str, Any]]] = {}
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


def _note(event: Mapping[str, Any], places: Sequence[Place]) -> str:
    factor = event.get("factor", 2)
    apart = [f"{place.radius:g} against {factor * place.radius:g}" for place in places]
    text = f"Parameters displaced by {' and by '.join(apart)}"
    if event.get("directions"):
        text += f", {event['directions']} directions, bands: 95% intervals over them"
    text += ". The exponent depends on the batch size and on the radius: "
    return f"{text}a smooth gradient that saturates is below 2, too."
