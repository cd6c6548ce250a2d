"""The figure of any experiment, from the folder of its records."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.outcomes import Row
from aliceopt.lab.figures.power_law import draw_power_law
from aliceopt.lab.plans.plan import TERM_NAMES
from aliceopt.lab.records import RecordError, Records
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.results.summary import summarize
from aliceopt.lab.results.table import unique_labels
from aliceopt.lab.spec import PlannedMethod

LONG = 24
"""Characters of a label, of which two do not fit beside each other in the legend."""

_STEPS = {"full": ("a) Full quasi-Newton steps", "full"), "naq": ("b) NAQ steps", "NAQ")}


def draw_terms(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 4 to ``out``: which terms help, a column for each kind of step and its bound.

    Above, validation during training; below, final results by terms beside the paper's.
    """
    outcomes.check_kind(records, "terms")
    rates = [method.lr for method in records.plan.methods.values()]
    usual = max(rates, key=rates.count)

    def step_of(method: PlannedMethod) -> tuple[str, str]:
        title, word = _STEPS.get(method.step or "", ("Other methods", ""))
        if method.lr in (usual, None):
            return title, word
        kind = {"full": "Full steps", "naq": "NAQ steps"}.get(method.step or "", "Others")
        return f"{kind}, \u03bb max {method.lr:g}", f"{word} {method.lr:g}"

    return _draw_columns(records, out, step_of)


def draw_limit(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 5 to ``out``: the same with a column for each lambda_max (`lr`)."""
    outcomes.check_kind(records, "limit")

    def bound_of(method: PlannedMethod) -> tuple[str, str]:
        text = "default" if method.lr is None else f"{method.lr:g}"
        return f"\u03bb max = {text}", text

    return _draw_columns(records, out, bound_of)


def _draw_columns(
    records: Records,
    out: str | os.PathLike[str],
    name_of: Callable[[PlannedMethod], tuple[str, str]],
) -> Path:
    """Curves above, one column for each setting, and all results below.

    ``name_of`` gives a method's setting, as the title of a column and as a word for a row.
    """
    target = style.checked_path(out)
    columns: dict[str, list[Row]] = {}
    rows = []
    for key, method in records.plan.methods.items():
        title, word = name_of(method)
        terms = method.terms
        label = TERM_NAMES.get(terms, terms) if terms else method.label
        row = Row(key, label, outcomes.look_of_terms(terms))
        columns.setdefault(title, []).append(row)
        group = list(columns).index(title)
        rows.append(replace(row, label=f"{label}, {word}" if word else label, group=group))
    rows.sort(key=lambda row: row.group)
    below = ["ours", "paper"] if records.plan.paper else ["ours"]
    side = min(2, len(columns))  # curves beside each other: there is no room for three
    titles = [*columns, *["."] * (-len(columns) % side)]
    lines = [titles[i : i + side] for i in range(0, len(titles), side)]
    panels: list[Any] = [[title for title in line for _ in below] for line in lines]
    panels.append([panel for panel in below for _ in range(side)])  # all lines are as wide
    ratios = [*[2.0] * len(lines), 0.5 + 0.28 * len(rows)]
    with style.look():
        figure = style.new_figure(height=1.0 + 2.6 * len(lines) + 0.28 * len(rows))
        mosaic = figure.subplot_mosaic(panels, height_ratios=ratios)
        for i, (title, mine) in enumerate(columns.items()):
            outcomes.draw_curves(mosaic[title], records, mine)
            mosaic[title].set_title(title)
            if i == 0:
                mosaic[title].legend(handlelength=2.2, borderaxespad=0.1)
            if i % side:
                mosaic[title].set_ylabel("")
        outcomes.focus([mosaic[title] for title in columns], records)
        outcomes.draw_results(mosaic, records, rows)
    return outcomes.finish(figure, records, target, "Small dots: single runs.")


def draw_methods(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 6, training methods compared, to ``out`` and return its path.

    Above, validation against gradient evaluations; below, final results beside the paper's, with
    gradient evaluations and seconds of a run (medians).
    """
    target = style.checked_path(out)
    outcomes.check_kind(records, "methods")
    summary = summarize(records.plan, records.runs)
    plain, with_costs = [], []
    for i, (key, label) in enumerate(unique_labels(records.plan).items()):
        plain.append(Row(key, label, outcomes.look_of(i)))
        cost = summary[key]
        if cost.gradients is not None:
            gradients = outcomes.short_count(cost.gradients)
            label = f"{label}\n{gradients} gradients, {show_seconds(cost.seconds)}"
        with_costs.append(replace(plain[-1], label=label))
    columns = 1 if any(len(row.label) > LONG for row in plain) else 2
    legend = 0.2 * max(0, -(-len(plain) // columns) - 3)  # inches beyond three lines
    each = 0.45 if len(plain) <= 10 else 0.36  # inches of a row
    with style.look():
        figure = style.new_figure(height=3.5 + each * len(plain) + legend)
        below = ["ours", "paper"] if records.plan.paper else ["ours"]
        panels: list[Any] = [["curves"] * len(below), below]
        heights = [2.0 + legend, 0.5 + each * len(plain)]
        mosaic = figure.subplot_mosaic(panels, height_ratios=heights)
        outcomes.draw_curves(mosaic["curves"], records, plain)
        outcomes.focus([mosaic["curves"]], records)
        mosaic["curves"].legend(
            loc="lower left", bbox_to_anchor=(-0.2, 1.0), ncols=columns, handlelength=4.0
        )
        outcomes.draw_results(mosaic, records, with_costs)
    note = "Under each method: gradients and seconds of a run, medians. Small dots: single runs."
    return outcomes.finish(figure, records, target, note)


FIGURES: dict[str, Callable[[Records, Path], Path]] = {
    "power_law": draw_power_law,
    "terms": draw_terms,
    "limit": draw_limit,
    "methods": draw_methods,
}
"""Figures by the name that a plan has for them."""


def draw_experiment(records: Records, out: str | os.PathLike[str] | None = None) -> Path:
    """Draw the figure that the plan names, by default to ``figures/`` in the records' folder.

    Of results that are kept in a file, by default to the current folder.
    """
    name, kind = records.plan.name, records.plan.figure
    if kind not in FIGURES:
        raise RecordError(
            f"the plan in {str(records.folder)!r} has the figure {kind!r}; "
            f"there is {', '.join(FIGURES)}"
        )
    folder = Path() if records.folder.is_file() else records.folder / "figures"
    return FIGURES[kind](records, folder / f"{name}.png" if out is None else Path(out))
