"""Which terms help: the final metric by curvature term and kind of step, a dot for every seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from aliceopt.lab.figures import style
from aliceopt.lab.figures.study_look import (
    TERM_NAMES,
    Picture,
    Results,
    clip,
    limits,
    metric_label,
    safe,
)
from aliceopt.lab.results.numbers import show_value
from aliceopt.lab.results.summary import Summary, best_method, finals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_study_terms"]

_STEPS: dict[str, dict[str, Any]] = {
    "naq": {"color": style.BLUE, "marker": "o", "mfc": style.BLUE},
    "full": {"color": style.VERMILLION, "marker": "s", "mfc": "white"},
}
_NAMES = {"naq": "NAQ steps", "full": "full steps"}
_OFFSET = 0.2


def draw_study_terms(results: Results, path: Path) -> Picture | None:
    """Draw the grid of terms and steps; None if no run of it finished."""
    plan, summary, values = results.plan, results.summary, finals(results.runs)
    places = _places(plan, values)
    if not places:
        return None
    terms = list(dict.fromkeys(term for term, _ in places))
    with style.look():
        figure = style.new_figure(height=3.3)
        axes = figure.subplots()
        baseline = best_method(plan, summary, "baseline")
        shown = [v for method in places.values() for v in values[method].values()]
        reference = None if baseline is None else baseline.median
        axes.set_ylim(*limits(shown + ([] if reference is None else [reference]), plan["better"]))
        if baseline is not None and reference is not None:
            label = f"best baseline, {safe(baseline.label)}"
            axes.axhline(reference, color=style.GRAY, ls="--", lw=1.2, zorder=1, label=label)
        for step in dict.fromkeys(step for _, step in places):
            _draw_step(
                axes, step, terms, {t: m for (t, s), m in places.items() if s == step}, values
            )
        _mark_unstable(axes, terms, places, summary)
        axes.set_xticks(range(len(terms)), [TERM_NAMES.get(t, safe(t)) for t in terms])
        axes.set_xlim(-0.5, len(terms) - 0.5)
        axes.set_xlabel("curvature term")
        axes.set_ylabel(metric_label(plan))
        figure.legend(loc="outside upper center", ncols=3, handlelength=2.0)
    caption = (
        "Each dot is one seed, each bar a median; an arrow at the edge marks a result outside the "
        "range, a cross runs that diverged or failed."
    )
    alt, question = _alt(plan, places, summary), "Which curvature terms help?"
    return Picture(style.save(figure, path), question, caption, alt)


def _places(
    plan: Mapping[str, Any], values: Mapping[str, Mapping[int, float]]
) -> dict[tuple[str, str], str]:
    """Methods by term and step that have results and a place of their own."""
    places: dict[tuple[str, str], str] = {}
    for method, about in plan["methods"].items():
        place = (about.get("terms"), about.get("step"))
        if None not in place and values.get(method) and place not in places:
            places[place] = method
    return places


def _draw_step(
    axes: Axes,
    step: str,
    terms: list[str],
    methods: Mapping[str, str],
    values: Mapping[str, Mapping[int, float]],
) -> None:
    """The dots of one kind of step, spread so that seeds do not hide each other."""
    look = _STEPS.get(step, {"color": style.BLACK, "marker": "D", "mfc": "white"})
    shift = {"naq": -_OFFSET, "full": _OFFSET}.get(step, 0.0)
    label = _NAMES.get(step, safe(step))
    for term, method in methods.items():
        found = [v for _, v in sorted(values[method].items())]
        center = terms.index(term) + shift
        spread = [center + 0.2 * ((i + 0.5) / len(found) - 0.5) for i in range(len(found))]
        clip(axes, spread, found, ms=4.5, mew=1.1, label=label, zorder=3, alpha=0.85, **look)
        label = "_"
        middle, (low, high) = median(found), axes.get_ylim()
        if low <= middle <= high:
            ends = (center - 0.15, center + 0.15)
            axes.plot(ends, (middle, middle), color=look["color"], lw=2.4, zorder=2)


def _mark_unstable(
    axes: Axes, terms: list[str], places: Mapping[tuple[str, str], str], summary: Summary
) -> None:
    for (term, step), method in places.items():
        count = summary[method].unstable
        if count:
            x = terms.index(term) + {"naq": -_OFFSET, "full": _OFFSET}.get(step, 0.0)
            cross = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
            bottom = (x, axes.get_ylim()[0])
            axes.annotate(f"\u00d7{count}", bottom, color=style.BLACK, **cross)  # type: ignore[arg-type]


def _alt(plan: Mapping[str, Any], places: Mapping[tuple[str, str], str], summary: Summary) -> str:
    medians = [
        f"{term} with {_NAMES.get(step, step)} {show_value(summary[method].median, plan['metric'])}"
        for (term, step), method in places.items()
    ]
    return f"Final {plan['metric']} by curvature term and step; medians: {', '.join(medians)}."
