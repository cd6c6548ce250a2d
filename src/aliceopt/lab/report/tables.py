"""The tables of a report: methods, comparisons, settings, runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.comparisons import Comparison
from aliceopt.lab.results.deviations import STEP_NAMES, combination
from aliceopt.lab.results.numbers import (
    decimals,
    show_count,
    show_seconds,
    show_value,
)
from aliceopt.lab.results.summary import (
    MethodSummary,
    Summary,
    best_method,
    describe_finished,
    outcome,
    reason,
)
from aliceopt.lab.spec import Chosen, Plan

__all__ = [
    "Cell",
    "Row",
    "Table",
    "comparison_table",
    "method_table",
    "run_table",
    "settings_table",
]


class Cell(NamedTuple):
    """Text, and the number to sort by if it is one."""

    text: str
    value: float | None = None
    number: bool = False
    wrap: bool = False


class Row(NamedTuple):
    """A row: its name, cells, family, and whether it stands out."""

    name: str
    cells: Sequence[Cell]
    family: str = ""
    best: bool = False


class Table(NamedTuple):
    """A table; a head that begins with a space is of a column of text."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Row]
    filtered: bool = False


def method_table(plan: Plan, summary: Summary) -> Table:
    """Results and costs by method; the best median of each family stands out."""
    paper = plan.paper
    best = {s.method for f in ("alice", "baseline") if (s := best_method(plan, summary, f))}
    heads = ["Method", "Rate", "Min", "Median", "Max", *(["Paper's median"] if paper else [])]
    heads += [
        "Gradients",
        "Time",
        "Gradients to target",
        "Time to target",
        "Reached target",
        " Finished",
    ]
    rows = []
    for s in summary.methods:
        cells = [_rate(plan, s.method)]
        cells += [_result(v, plan) for v in (s.low, s.median, s.high)]
        if paper:
            mine = paper.get(s.method)
            cells.append(_result(mine[len(mine) // 2] if mine else None, plan))
        cells += [_count(s.gradients), _time(s.seconds)]
        cells += [_count(s.to_target_gradients), _time(s.to_target_seconds)]
        cells += [_reached(s), Cell(describe_finished(s))]
        rows.append(Row(s.label, cells, s.family, s.method in best))
    return Table("Results by method", heads, rows, filtered=True)


def _result(value: float | None, plan: Plan) -> Cell:
    return Cell(show_value(value, plan.metric), value, number=True)


def _count(value: float | None) -> Cell:
    return Cell(show_count(value), value, number=True)


def _rate(plan: Plan, method: str) -> Cell:
    rate = plan.methods[method].lr
    return Cell("\u2013" if rate is None else f"{rate:.3g}", rate, number=True)


def _time(value: float | None) -> Cell:
    return Cell(show_seconds(value), value, number=True)


def _reached(s: MethodSummary) -> Cell:
    return Cell(f"{s.reached} of {s.judged}", float(s.reached), number=True)


def comparison_table(plan: Plan, comparisons: Sequence[Comparison]) -> Table:
    """Every comparison with its interval, corrected p-value and verdict."""
    rows = []
    for c in comparisons:
        places = 3 if c.low is None or c.high is None else decimals((c.high - c.low) / 2) + 1
        told = c.turned if c.scale.ratio else c  # of losses the first's over the second's
        ends = [c.scale.number(end, places) for end in (told.low, told.high) if end is not None]
        p = "\u2013" if c.corrected_p is None else _p(c.corrected_p)
        cells = [
            Cell(str(c.seeds), c.seeds, number=True),
            Cell(c.scale.number(told.gain, places), told.gain, number=True),
            Cell(" to ".join(ends) or "\u2013", told.low, number=True),
            Cell(p, c.corrected_p, number=True),
            Cell(c.verdict),
        ]
        rows.append(Row(_names(plan, c), cells, best=c.verdict in ("better", "worse")))
    gain = comparisons[0].scale.head if comparisons else ""
    heads = ["First compared to second", "Seeds", gain, "95% interval", "Corrected p"]
    return Table("Comparisons", [*heads, " Verdict on the first"], rows)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _names(plan: Plan, c: Comparison) -> str:
    if c.question == "steps":
        return f"{STEP_NAMES[c.first]} to {STEP_NAMES[c.second]}, mean over terms"
    first, second = (combination(plan, m) for m in (c.first, c.second))
    said = {"terms": f"{first} to no term", "best": f"the best, {first}, to {second}"}
    return said.get(c.question, f"{first} to {second}")


def settings_table(plan: Plan) -> Table:
    """Every method with the options it ran with."""
    rows = []
    tuned = plan.tuned
    chosen = tuned.chosen if tuned else {}
    for method, about in plan.methods.items():
        options = {k: v for k, v in about.options.items() if k not in ("terms", "step")}
        shown = ", ".join(f"{k} {_plain(v)}" for k, v in options.items() if k != "lr")
        cells = [
            _rate(plan, method),
            *([Cell(_tried(chosen.get(method)))] if chosen else []),
            Cell(str(about.terms or "\u2013")),
            Cell(str(about.step or "\u2013")),
            Cell(shown or "defaults", wrap=True),
        ]
        rows.append(Row(about.label, cells, about.family))
    heads = ["Method", "Learning rate", *([" Of those tried"] if chosen else [])]
    return Table("Settings by method", [*heads, " Terms", " Step", " Other options"], rows)


def _tried(chosen: Chosen | None) -> str:
    if chosen is None:
        return ""
    edge = " (at the edge)" if chosen.edge else ""
    return ", ".join(f"{tried.lr:.3g}" for tried in chosen.tried) + edge


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_plain, value)) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def run_table(plan: Plan, runs: Sequence[RunRecord]) -> Table:
    """Every planned run, whatever became of it."""
    rows = []
    for run in runs:
        end = run.end or {}
        cells = [
            Cell(str(run.seed), run.seed, number=True),
            Cell(outcome(run)),
            _result(run.final, plan),
            _result(end.get("best"), plan),
            _count(run.gradients if run.status != "missing" else None),
            _time(run.seconds if run.status != "missing" else None),
            Cell(reason(run), wrap=True),
        ]
        rows.append(Row(run.label, cells, plan.methods[run.method].family))
    heads = ["Method", "Seed", " Status", "Final", "Best on the way", "Gradients", "Time"]
    return Table("All runs", [*heads, " Reason"], rows)
