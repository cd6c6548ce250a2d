"""What the figures of experiments share: results over seeds, training curves, and the small print.

Ours are filled markers: the median over seeds, a line from minimum to maximum, and every seed as a
dot. The paper's are hollow, beside ours in a panel of their own; both panels have the same axis
only if the settings are the same.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from aliceopt.lab.figures import style
from aliceopt.lab.records import RecordError, Records, RunRecord
from aliceopt.lab.results.deviations import differences, lost, remark, setting, title_of
from aliceopt.lab.results.summary import finals, outcome
from aliceopt.lab.results.table import check_begun
from aliceopt.lab.spec import Plan

_WIDTH = 78  # characters of the smallest text in a line
_LINE = 0.165  # inches of a line of text
_EARLY = 0.25  # of a run, left out of the range of curves: everybody is bad at first

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": style.BLUE, "marker": "o", "ls": "-"},
    {"color": style.VERMILLION, "marker": "s", "ls": "--"},
    {"color": style.GREEN, "marker": "D", "ls": "-."},
    {"color": style.ORANGE, "marker": "^", "ls": ":"},
    {"color": style.SKY, "marker": "P", "ls": (0, (5, 1, 1, 1, 1, 1))},
    {"color": style.BLACK, "marker": "v", "ls": (0, (1, 1))},
    {"color": style.GRAY, "marker": "X", "ls": "-"},
)
_TERMS = ("glass", "abs", "glass+abs", "rms", "signed", "glass+signed", "none")


@dataclass(frozen=True)
class Row:
    """One method in a panel of results; rows of one ``group`` stand together."""

    method: str
    label: str
    look: Mapping[str, Any]
    group: int = 0


def check_kind(records: Records, kind: str) -> None:
    """Refuse records of which no run has begun, or whose figure is of another kind."""
    check_begun(records)
    if records.plan.figure != kind:
        raise RecordError(
            f"records in {str(records.folder)!r} are of {records.plan.name!r}, whose figure is "
            f"{records.plan.figure!r}, not {kind!r}"
        )


def look_of(number: int) -> dict[str, Any]:
    """Of the so-manieth method; forty-nine of them differ in colour or in marker."""
    again, first = divmod(number, len(LOOKS))
    other = LOOKS[(first + again) % len(LOOKS)]
    return {**other, "color": LOOKS[first]["color"]}


def look_of_terms(terms: str | None) -> dict[str, Any]:
    """Colour, marker and line of a curvature term, the same in every figure."""
    return LOOKS[_TERMS.index(terms) if terms in _TERMS else -1]


def metric_name(plan: Plan) -> str:
    """For an axis: ``validation loss``."""
    return f"validation {plan.metric}" + (" (%)" if plan.metric == "accuracy" else "")


# ---- curves ----------------------------------------------------------------------------------


def draw_curves(axes: Axes, records: Records, rows: Sequence[Row]) -> None:
    """The metric against gradient evaluations: median of finished runs, band to the extremes.

    Runs that did not finish are thin lines that end in a cross. The step is not the unit, since
    methods need different numbers of gradients for one.
    """
    for row in rows:
        runs = records.of(row.method)
        done = [run for run in runs if outcome(run) == "finished" and run.evaluations]
        x, low, middle, high = _over_runs(done)
        axes.fill_between(x, low, high, color=row.look["color"], alpha=0.18, lw=0)
        every = max(1, len(x) // 8)
        look = {**row.look, "ms": 4, "lw": 1.4, "markevery": every}
        axes.plot(x, middle, label=row.label, **look)
        for run in runs:
            if outcome(run) != "finished" and run.evaluations:
                x, _, y, _ = _over_runs([run])
                axes.plot(x, y, color=row.look["color"], lw=0.7, marker="x", markevery=[-1])
    axes.set_xlabel("gradient evaluations")
    axes.set_ylabel(metric_name(records.plan))
    if records.plan.metric == "perplexity":
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(_ticks(4))
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))


def _over_runs(runs: Sequence[RunRecord]) -> tuple[list[float], ...]:
    """Gradients, and minimum, median and maximum of the metric, at every evaluation."""
    at: dict[int, tuple[float, list[float]]] = {}
    for run in runs:
        for event in run.evaluations:
            if event.get("metric") is not None:
                at.setdefault(event["step"], (event["gradients"], []))[1].append(event["metric"])
    points = [at[step] for step in sorted(at)]
    columns = [(x, min(values), median(values), max(values)) for x, values in points]
    return tuple([column[i] for column in columns] for i in range(4))


def focus(axes_list: Sequence[Axes], records: Records) -> None:
    """One range for all curves, without the first quarter of the runs, nor what ran away."""
    late, most = [], worst_start(records)
    for run in records.runs:
        values = [(e["step"], e["metric"]) for e in run.evaluations if e.get("metric") is not None]
        last = values[-1][0] if values else 0
        late += [v for step, v in values if step >= _EARLY * last and v <= most]
    if not late:
        return
    low, high = min(late), max(late)
    if records.plan.metric == "perplexity":
        low, high = low / 1.05, high * 1.05
    else:
        margin = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
        low, high = low - margin, high + margin
    for axes in axes_list:
        axes.set_ylim(low, high)
        if high < 10 * low:  # powers of ten alone would leave an axis without numbers
            axes.yaxis.set_major_locator(_ticks(5))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def worst_start(records: Records) -> float:
    """The highest metric before a first step; what is higher later has run away.

    Where higher is better nothing has.
    """
    starts = [run.evaluations[0].get("metric") for run in records.runs if run.evaluations]
    told = [start for start in starts if start is not None]
    return max(told, default=math.inf) if records.plan.better == "lower" else math.inf


def short_count(value: float) -> str:
    """``1500`` as 1.5k."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"


def _ticks(count: int) -> MaxNLocator:
    return MaxNLocator(count, steps=[1, 2, 2.5, 5, 10])


# ---- results ---------------------------------------------------------------------------------


def draw_results(mosaic: Mapping[str, Axes], records: Records, rows: Sequence[Row]) -> None:
    """Ours in ``mosaic["ours"]`` and, where there is such a panel, the paper's beside it.

    The paper's values may be read on the same axis only if the settings are the same.
    """
    # From the top, with a gap between groups.
    heights = [-(i + 0.6 * (row.group - rows[0].group)) for i, row in enumerate(rows)]
    _draw_finals(mosaic["ours"], records, rows, heights)
    mosaic["ours"].set_yticks(heights, [row.label for row in rows])
    mosaic["ours"].set_title("Ours")
    panels = [mosaic["ours"]]
    same = not differences(records.plan, records.runs)
    if "paper" in mosaic:
        _draw_published(mosaic["paper"], records, rows, heights)
        mosaic["paper"].set_yticks(heights, [""] * len(rows))
        mosaic["paper"].set_title("Paper" if same else "Paper (not comparable)")
        panels.append(mosaic["paper"])
    for axes in panels:
        axes.set_ylim(heights[-1] - 0.7, 0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", lw=0.4, color="#DDDDDD")
        axes.set_axisbelow(True)
        axes.margins(x=0.08)
        axes.xaxis.set_major_locator(_ticks(4))
        axes.set_xlabel(f"{metric_name(records.plan)}\n({records.plan.better} is better)")
    if same:
        limits = [axes.get_xlim() for axes in panels]
        for axes in panels:
            axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))


def _draw_finals(
    axes: Axes, records: Records, rows: Sequence[Row], heights: Sequence[float]
) -> None:
    """Our results: a line over the range of seeds, a marker at the median, the seeds below it.

    What ran away is told in words; a line then begins at the others, and has no median.
    """
    values, most = finals(records.runs), worst_start(records)
    for row, y in zip(rows, heights, strict=True):
        found = sorted(values.get(row.method, {}).values())
        color = row.look["color"]
        if not found:
            said = lost(records.of(row.method)).partition(": ")[2]
            _say(axes, y, f"no result ({said})" if said else "no result")
            continue
        there = [value for value in found if value <= most]
        ends = [there[0], there[-1]] if there else []
        axes.plot(ends, [y] * len(ends), color=color, lw=1.4)
        axes.plot(there, [y - 0.3] * len(there), ".", color=color, ms=3.5, gid="seeds")
        if away := found[len(there) :]:
            _say(axes, y, f"ran away: {', '.join(f'{v:.1e}' for v in away)}", side="right")
        else:
            look = {"marker": row.look["marker"], "color": color}
            axes.plot([median(found)], [y], ms=6.5, mec="white", **look)


def _draw_published(
    axes: Axes, records: Records, rows: Sequence[Row], heights: Sequence[float]
) -> None:
    """The paper's minimum, median and maximum, hollow."""
    for row, y in zip(rows, heights, strict=True):
        paper = records.plan.paper.get(row.method)
        if paper is None:
            _say(axes, y, "not in the paper")
            continue
        look = {"color": row.look["color"], "mfc": "white"}
        axes.plot([paper[0], paper[2]], [y, y], marker="|", ms=5, lw=1.0, **look)
        axes.plot([paper[1]], [y], marker=row.look["marker"], ms=7, ls="", **look)


def _say(axes: Axes, y: float, text: str, side: Literal["left", "right"] = "left") -> None:
    place = ("axes fraction", "data")
    x = 0.02 if side == "left" else 0.98
    axes.annotate(text, (x, y), xycoords=place, va="center", ha=side, color=style.GRAY)


# ---- small print -----------------------------------------------------------------------------


def finish(figure: Figure, records: Records, target: Path, note: str) -> Path:
    """Title above, small print below: data, scale, batch, seeds, what is missing; then save."""
    plan, runs = records.plan, records.runs
    said = [setting(plan, runs) + "."]
    if gone := lost(runs):
        said.append(f"Not finished, {gone}.")
    said.append(note)
    if plan.paper:
        said.append(remark(plan, runs))
    title = textwrap.wrap(title_of(plan, runs), 62)
    lines = textwrap.wrap(" ".join(said), _WIDTH)
    figure.suptitle("\n".join(title), x=0.01, ha="left", weight="bold", fontsize=10.5)
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=style.SMALLEST_TEXT)
    # The words get room of their own, so that panels are as high as they were planned.
    figure.set_figheight(figure.get_figheight() + _LINE * (len(title) + len(lines)))
    return style.save(figure, target)
