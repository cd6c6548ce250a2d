"""Figure 6: training methods compared, with what they cost."""

from __future__ import annotations

import os
from pathlib import Path

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.outcomes import Row, look_of
from aliceopt.lab.records import Records
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.results.summary import summarize
from aliceopt.lab.results.table import unique_labels

__all__ = ["draw_methods"]

LONG = 24
"""Characters of a label, of which two do not fit beside each other in the legend."""


def draw_methods(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 6 from the records of an experiment to ``out`` and return its path.

    Above, validation against gradient evaluations; below, final results beside the paper's, with
    gradient evaluations and seconds of a run (medians).
    """
    target = style.checked_path(out)
    outcomes.check_kind(records, "methods")
    plain = [
        Row(key, label, look_of(i))
        for i, (key, label) in enumerate(unique_labels(records.plan).items())
    ]
    columns = 1 if any(len(row.label) > LONG for row in plain) else 2
    legend = 0.2 * max(0, -(-len(plain) // columns) - 3)  # inches beyond three lines
    each = 0.45 if len(plain) <= 10 else 0.36  # inches of a row
    with style.look():
        figure = style.new_figure(height=3.5 + each * len(plain) + legend)
        paper = ["paper"] if records.plan.paper else []
        mosaic = figure.subplot_mosaic(
            [["curves"] * (1 + len(paper)), ["ours", *paper]],
            height_ratios=[2.0 + legend, 0.5 + each * len(plain)],
        )
        outcomes.draw_curves(mosaic["curves"], records, plain)
        outcomes.focus([mosaic["curves"]], records)
        mosaic["curves"].legend(
            loc="lower left", bbox_to_anchor=(-0.2, 1.0), ncols=columns, handlelength=4.0
        )
        outcomes.draw_results(mosaic, records, _with_costs(records, plain))
    note = "Under each method: gradients and seconds of a run, medians. Small dots: single runs."
    return outcomes.finish(figure, records, target, note)


def _with_costs(records: Records, rows: list[Row]) -> list[Row]:
    summary = summarize(records.plan, records.runs)
    named = []
    for row in rows:
        cost = summary[row.method]
        label = row.label
        if cost.gradients is not None:
            gradients = outcomes.short_count(cost.gradients)
            label += f"\n{gradients} gradients, {show_seconds(cost.seconds)}"
        named.append(Row(row.method, label, row.look))
    return named
