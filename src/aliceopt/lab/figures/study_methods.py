"""How the baselines compare: final results by method, best first, beside their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliceopt.lab.figures import style
from aliceopt.lab.figures.study_look import Picture, Results, limits, metric_label, safe
from aliceopt.lab.results.numbers import show_count, show_seconds, show_value
from aliceopt.lab.results.summary import MethodSummary, Summary, best_method, finals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_study_methods"]

_MOST_ROWS = 16


def draw_study_methods(results: Results, path: Path) -> Picture | None:
    """Draw the baselines and the best Alice of a study, or all methods of an experiment.

    None if none of them finished.
    """
    plan, values = results.plan, finals(results.runs)
    rows = _rows(plan, results.summary)
    if not rows:
        return None
    with style.look():
        figure = style.new_figure(height=0.9 + 0.3 * len(rows))
        axes = figure.subplots()
        shown = [v for s in rows for v in values[s.method].values()]
        shown += [v for s in rows for v in plan.get("paper", {}).get(s.method, ())]
        axes.set_xlim(*limits(shown, plan["better"]))
        for y, s in enumerate(rows):
            _draw_row(axes, y, s, list(values[s.method].values()))
        _draw_paper(axes, rows, plan.get("paper", {}))
        _label_rows(axes, rows, plan)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper center", ncols=2)
    study = plan["kind"] == "study"
    told = [f"{s.label} {show_value(s.median, plan['metric'])}" for s in rows]
    return Picture(
        path=style.save(figure, path),
        question="How do the baselines compare?" if study else "How do the methods compare?",
        caption="Each dot is one seed, each bar a median, the best on top; on the right, what one "
        "run took.",
        alt=f"Final {plan['metric']} by method, medians, best first: {', '.join(told)}.",
    )


def _rows(plan: Mapping[str, Any], summary: Summary) -> list[MethodSummary]:
    """The methods to show, the best first: of a study's grid of terms and steps only the best."""
    best = best_method(plan, summary, "alice")
    sign = -1 if plan["better"] == "higher" else 1
    chosen = [
        s
        for s in summary.methods
        if s.median is not None and (plan["kind"] != "study" or s.step is None or s is best)
    ]
    if plan["kind"] == "study" and all(s.family == "alice" for s in chosen):
        return []  # the figure of the terms shows it all
    return sorted(chosen, key=lambda s: sign * (s.median or 0.0))[:_MOST_ROWS]


def _draw_row(axes: Axes, y: int, s: MethodSummary, found: list[float]) -> None:
    color = style.BLUE if s.family == "alice" else style.VERMILLION
    low, high = axes.get_xlim()
    axes.axhline(y, color="#DDDDDD", lw=0.7, zorder=0)
    for i, v in enumerate(found):
        if low <= v <= high:  # equal results do not hide each other
            place = y + 0.24 * ((i + 0.5) / len(found) - 0.5)
            axes.plot(v, place, marker="o", ms=4.2, color=color, alpha=0.7, mew=0)
        else:
            edge, marker = (low, "<") if v < low else (high, ">")
            axes.plot(edge, y, marker=marker, ms=5.5, color=color, clip_on=False, zorder=5)
    if s.median is not None and low <= s.median <= high:
        axes.plot([s.median] * 2, [y - 0.22, y + 0.22], color=color, lw=2.4, zorder=4)


def _draw_paper(axes: Axes, rows: Sequence[MethodSummary], paper: Mapping[str, Any]) -> None:
    """The paper's minimum, median and maximum, a little above our own."""
    label = "the paper's minimum, median and maximum"
    for y, s in enumerate(rows):
        if paper.get(s.method):
            low, middle, high = paper[s.method]
            line: dict[str, Any] = {
                "color": style.GRAY,
                "marker": "|",
                "ms": 6,
                "lw": 1.2,
                "zorder": 2,
            }
            axes.plot([low, middle, high], [y - 0.3] * 3, label=label, **line)
            label = "_"


def _label_rows(axes: Axes, rows: Sequence[MethodSummary], plan: Mapping[str, Any]) -> None:
    axes.set_yticks(range(len(rows)), [safe(s.label) for s in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlabel(metric_label(plan))
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, pad=8)
    for y, s in enumerate(rows):
        cost = f"{show_count(s.gradients)} gradients, {show_seconds(s.seconds)}"
        lost = [f", {s.counts[w]} {w}" for w in ("diverged", "failed") if s.counts[w]]
        axes.annotate(
            cost + "".join(lost),
            (1.0, y),
            xytext=(8, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
        )
