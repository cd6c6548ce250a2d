"""The tables of a report: methods, comparisons, settings, runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from aliceopt.lab.records import RunRecord
from aliceopt.lab.results import numbers
from aliceopt.lab.results.comparisons import Comparison
from aliceopt.lab.results.deviations import STEP_NAMES, combination
from aliceopt.lab.results.summary import (
    Summary,
    best_of_families,
    describe_finished,
    outcome,
    reason,
)
from aliceopt.lab.spec import Plan


class Cell(NamedTuple):
    """Text, and the number to sort by if it is one."""

    text: str
    value: float | None = None
    number: bool = False
    wrap: bool = False


class Row(NamedTuple):
    """A row: its name, cells, family, whether it stands out, and a word behind its name."""

    name: str
    cells: Sequence[Cell]
    family: str = ""
    best: bool = False
    note: str = ""


class Table(NamedTuple):
    """A table; a head that begins with a space is of a column of text."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Row]
    filtered: bool = False


def _number(value: Any, show: Callable[[Any], str]) -> Cell:
    return Cell(show(value), value, number=True)


def method_table(plan: Plan, summary: Summary, choice: str | None = None) -> Table:
    """Results and costs by method; the best median of each family and the choice stand out."""
    best = {s.method for s in best_of_families(plan, summary).values()}
    result = partial(numbers.show_value, metric=plan.metric)
    heads = ["Method", "Rate", "Min", "Median", "Max", *(["Paper's median"] if plan.paper else [])]
    heads += ["Gradients", "Time", "Gradients to target", "Time to target", "Reached target"]
    rows = []
    for s in summary.methods:
        cells = [_number(plan.methods[s.method].lr, numbers.show_rate)]
        cells += [_number(value, result) for value in (s.low, s.median, s.high)]
        if plan.paper:
            theirs = plan.paper.get(s.method)
            cells.append(_number(theirs[len(theirs) // 2] if theirs else None, result))
        cells += [
            _number(s.gradients, numbers.show_count),
            _number(s.seconds, numbers.show_seconds),
            _number(s.to_target_gradients, numbers.show_count),
            _number(s.to_target_seconds, numbers.show_seconds),
            Cell(f"{s.reached} of {s.judged}", float(s.reached), number=True),
            Cell(describe_finished(s)),
        ]
        note = "use this" if s.method == choice else ""
        rows.append(Row(s.label, cells, s.family, s.method in best, note))
    return Table("Results by method", [*heads, " Finished"], rows, filtered=True)


_FAMILIES: dict[str, str] = {
    **dict.fromkeys(("ahead", "curvature"), "of Alice's parts"),
    **dict.fromkeys(("terms", "steps"), "of terms and steps"),
    "best": "with the best",
}


def comparison_table(plan: Plan, comparisons: Sequence[Comparison]) -> Table:
    """Every comparison with its interval, corrected p-value and verdict."""
    rows = []
    families = Counter(_FAMILIES[c.question] for c in comparisons)
    for c in comparisons:
        told = c.turned if c.scale.ratio else c  # of losses the first's over the second's
        places = numbers.decimals((told.ends[1] - told.ends[0]) / 2) + 1 if told.ends else 3
        interval = c.scale.interval(places, *told.ends)
        if c.question == "steps":
            name = f"{STEP_NAMES[c.first]} to {STEP_NAMES[c.second]}, mean over terms"
        else:
            first, second = (combination(plan, m) for m in (c.first, c.second))
            second = "no term" if c.question == "terms" else second
            name = f"{first} to {second}"
        cells = [
            _number(c.seeds, str),
            Cell(c.scale.number(told.gain, places), told.gain, number=True),
            Cell(interval or numbers.NONE, told.low, number=True),
            _number(c.corrected_p, _p),
            Cell(f"{families[_FAMILIES[c.question]]} {_FAMILIES[c.question]}"),
            Cell(c.verdict),
        ]
        rows.append(Row(name, cells, best=c.verdict in ("better", "worse")))
    gain = "Ratio" if comparisons and comparisons[0].scale.ratio else "Mean gain"
    heads = ["First compared to second", "Seeds", gain, "95% interval", "Corrected p"]
    return Table("Comparisons", [*heads, " As one of", " Verdict on the first"], rows)


def _p(value: float | None) -> str:
    if value is None:
        return numbers.NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def settings_table(plan: Plan) -> Table:
    """Every method with the options it ran with."""
    rows = []
    chosen = plan.tuned.chosen if plan.tuned else {}
    for method, about in plan.methods.items():
        left_out = ("terms", "step", "lr")
        options = {k: _plain(v) for k, v in about.options.items() if k not in left_out}
        cells = [_number(about.lr, numbers.show_rate)]
        if chosen:
            mine = chosen.get(method)
            rates = ", ".join(numbers.show_rate(one.lr) for one in mine.tried) if mine else ""
            cells.append(Cell(f"{rates} (at the edge)" if mine and mine.edge else rates))
        cells += [
            Cell(about.terms or numbers.NONE),
            Cell(about.step or numbers.NONE),
            Cell(", ".join(f"{k} {v}" for k, v in options.items()) or "defaults", wrap=True),
        ]
        rows.append(Row(about.label, cells, about.family))
    heads = ["Method", "Learning rate", *([" Of those tried"] if chosen else [])]
    return Table("Settings by method", [*heads, " Terms", " Step", " Other options"], rows)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_plain, value)) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def run_table(plan: Plan, runs: Sequence[RunRecord]) -> Table:
    """Every planned run, whatever became of it."""
    rows = []
    result = partial(numbers.show_value, metric=plan.metric)
    for run in runs:
        begun = run.status != "missing"
        cells = [
            _number(run.seed, str),
            Cell(outcome(run)),
            _number(run.final, result),
            _number((run.end or {}).get("best"), result),
            _number(run.gradients if begun else None, numbers.show_count),
            _number(run.seconds if begun else None, numbers.show_seconds),
            Cell(reason(run), wrap=True),
        ]
        rows.append(Row(run.label, cells, plan.methods[run.method].family))
    heads = ["Method", "Seed", " Status", "Final", "Best on the way", "Gradients", "Time"]
    return Table("All runs", [*heads, " Reason"], rows)
