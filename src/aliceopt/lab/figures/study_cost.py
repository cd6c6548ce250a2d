"""What it costs: the metric against gradient evaluations and against seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from aliceopt.lab.figures import style
from aliceopt.lab.figures.study_look import (
    BEST_ALICE,
    BEST_BASELINE,
    OTHER,
    Picture,
    Results,
    curve,
    metric_label,
    safe,
)
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.numbers import show_count, show_seconds, show_value
from aliceopt.lab.results.summary import MethodSummary, Summary, best_method, outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_study_cost"]

_AXES = {"gradients": "gradient evaluations", "seconds": "seconds of training"}
_NO_TERM: dict[str, Any] = {"color": style.BLACK, "lw": 1.5, "ls": ":", "zorder": 3}


def draw_study_cost(results: Results, path: Path) -> Picture | None:
    """Draw learning curves against both costs; None if no run finished with evaluations."""
    by_method: dict[str, list[RunRecord]] = {}
    for run in results.runs:
        if outcome(run) == "finished" and _late(run):
            by_method.setdefault(run.method, []).append(run)
    if not by_method:
        return None
    plan = results.plan
    marked = _highlighted(plan, results.summary, by_method)
    with style.look():
        figure = style.new_figure(height=3.2)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, key in zip(panels, _AXES, strict=True):
            _draw_curves(axes, key, by_method, marked)
            _frame(axes, results, by_method, key)
        panels[0].set_ylabel(metric_label(plan))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, handlelength=2.8)
    told = [
        f"{s.label} ends at {show_value(s.median, plan['metric'])} after {show_count(s.gradients)} "
        f"gradient evaluations and {show_seconds(s.seconds)}"
        for s, _ in marked
    ]
    return Picture(
        path=style.save(figure, path),
        question="What does it cost?",
        caption="Medians over seeds against both costs, with the range over seeds shaded; all "
        "other methods are gray, and the thin dotted line is the target.",
        alt=f"Learning curves against gradient evaluations and seconds: {'; '.join(told)}.",
    )


def _highlighted(
    plan: Mapping[str, Any], summary: Summary, by_method: Mapping[str, list[RunRecord]]
) -> list[tuple[MethodSummary, dict[str, Any]]]:
    """The best Alice, the same without a curvature term, and the best baseline."""
    marked: dict[str, tuple[MethodSummary, dict[str, Any]]] = {}
    alice, baseline = (best_method(plan, summary, family) for family in ("alice", "baseline"))
    step = None if alice is None else alice.step
    plain = (s for s in summary.methods if (s.terms, s.step) == ("none", step))
    looks = ((alice, BEST_ALICE), (next(plain, None), _NO_TERM), (baseline, BEST_BASELINE))
    for s, look in looks:
        if s is not None and s.method in by_method:
            marked.setdefault(s.method, (s, look))
    return list(marked.values())


def _draw_curves(
    axes: Axes,
    key: str,
    by_method: Mapping[str, list[RunRecord]],
    marked: Sequence[tuple[MethodSummary, dict[str, Any]]],
) -> None:
    names = {s.method for s, _ in marked}
    for s, look in marked:
        x, low, middle, high = curve(by_method[s.method], key)
        axes.plot(x, middle, label=safe(s.label), **look)
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, lw=0, zorder=2)
    label = "other methods"
    for method, runs in by_method.items():
        if method not in names:
            x, _, middle, _ = curve(runs, key)
            axes.plot(x, middle, label=label, **OTHER)
            label = "_"


def _late(run: RunRecord) -> list[float]:
    """The metric after the first third of training, where methods differ."""
    late = run.evaluations[max(1, len(run.evaluations) // 3) :]
    return [e["metric"] for e in late if e.get("metric") is not None]


def _frame(
    axes: Axes, results: Results, by_method: Mapping[str, list[RunRecord]], key: str
) -> None:
    """Show the late part of the curves."""
    plan, target = results.plan, results.summary.target
    late = [value for runs in by_method.values() for run in runs for value in _late(run)]
    low, high = _range(late, plan)
    if plan["metric"] != "accuracy" and low > 0 and high > 3 * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low, high)
    axes.set_xlim(left=0)
    axes.set_xlabel(_AXES[key])
    if target is not None:
        axes.axhline(target.value, color=style.GRAY, ls=(0, (1, 2)), lw=1.0, zorder=0)


def _range(values: Sequence[float], plan: Mapping[str, Any]) -> tuple[float, float]:
    """From the best value to nine tenths of the way to the worst, whichever side is better."""
    ordered = sorted(values, reverse=plan["better"] == "higher")
    best, poor = ordered[0], ordered[int(0.9 * (len(ordered) - 1))]
    pad = 0.06 * (abs(best - poor) or abs(best) or 1.0)
    if plan["better"] == "higher":
        return poor - pad, best + pad
    return max(best - pad, 0.5 * best) if best > 0 else best - pad, poor + pad
