"""Results for a terminal: a study with its finding; an experiment beside the paper's numbers.

The rows of ``aliceopt table`` are plain records. Whether its two columns may be compared is said
below it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aliceopt.lab.records import RecordError, Records, RunRecord
from aliceopt.lab.results import deviations, numbers
from aliceopt.lab.results.exponents import Series, late_cells, series_of
from aliceopt.lab.results.finding import find
from aliceopt.lab.results.summary import (
    Summary,
    best_method,
    describe_counts,
    describe_finished,
    summarize,
)
from aliceopt.lab.spec import Plan
from aliceopt.lab.terminal import new_table
from aliceopt.lab.words import counted

__all__ = ["experiment_table", "method_rows", "print_summary", "print_table"]

Row = dict[str, Any]
_WIDE = 96  # columns of a terminal with room for spaces between numbers
_WIDER = 112  # and with room for all costs of a study


def print_summary(plan: Plan, runs: Sequence[RunRecord], console: Console) -> None:
    """The table of results and the finding, for a terminal."""
    summary = summarize(plan, runs)
    metric, seeds = plan.metric, counted(len(plan.seeds), "seed")
    judged = f"Final validation {metric} over {seeds} ({plan.better} is better)"
    console.print(Text(f"{judged}; costs are medians"))
    console.print(_summary_table(plan, summary, wide=console.width >= _WIDER))
    console.print(Text(deviations.precision_note(plan, runs)), style="dim")
    if summary.target is not None:
        value = numbers.show_value(summary.target.value, metric)
        console.print(Text(f"Target: {metric} {value}, {summary.target.rule}."), style="dim")
    finding = find(plan, runs, summary)
    console.print(Padding(Text(finding.decision, style="bold"), (1, 0)))
    if finding.worth:
        console.print(Text(finding.worth + "\n"))
    if finding.lines:
        console.print(Text(finding.lines + "\n"), soft_wrap=True)
    for said in finding.bullets:
        bullet = Table.grid(padding=(0, 1, 0, 0))
        bullet.add_row("-", Text(said))
        console.print(bullet)


def _summary_table(plan: Plan, summary: Summary, *, wide: bool) -> Table:
    best = best_method(plan, summary)
    costs = ["grads", "time", "time to\ntarget"]
    if wide:
        costs = ["gradients", "time", "gradients\nto target", "time\nto target"]
    table = new_table("method", "rate", "min", "median", "max", *costs, space=int(wide))
    if wide:
        table.add_column("finished")
    family = None
    for s in summary.methods:
        if family not in (None, s.family):
            table.add_section()
        family = s.family
        total = sum(s.counts.values())
        whole = wide or s.finished == total
        table.add_row(
            Text(s.label if whole else f"{s.label} ({s.finished} of {total})"),
            numbers.show_rate(plan.methods[s.method].lr),
            *(numbers.show_value(v, plan.metric) for v in (s.low, s.median, s.high)),
            numbers.show_count(s.gradients),
            numbers.show_seconds(s.seconds),
            *([numbers.show_count(s.to_target_gradients)] if wide else []),
            numbers.show_seconds(s.to_target_seconds),
            *([describe_finished(s)] if wide else []),
            style="bold" if best is not None and s.method == best.method else "",
        )
    return table


# ---- experiments -------------------------------------------------------------------------------


def check_begun(records: Records) -> None:
    """Refuse records of which not one run has begun."""
    if all(run.status == "missing" for run in records.runs):
        raise RecordError(
            f"no records in {str(records.folder)!r}: none of its {len(records.runs)} planned runs "
            f"has begun; start them with `aliceopt run {records.plan.name}`"
        )


def experiment_table(records: Records) -> dict[str, Any]:
    """All that ``aliceopt table`` says, as plain values.

    ``rows`` are `method_rows`; ``exponents`` has an entry for every network and place where they
    were measured.
    """
    check_begun(records)
    plan, runs = records.plan, records.runs
    return {
        "experiment": plan.name,
        "title": deviations.title_of(plan, runs),
        "metric": plan.metric,
        "better": plan.better,
        "setting": deviations.setting(plan, runs),
        "reference": plan.reference,
        "precision": deviations.precision_note(plan, runs),
        "remark": deviations.remark(plan, runs),
        "lost": deviations.lost(runs),
        "rows": method_rows(plan, runs),
        "exponents": [
            {"method": one.method, "label": one.label, **one.place._asdict(), "rows": one.rows()}
            for one in series_of(plan, runs)
        ],
    }


def method_rows(plan: Plan, runs: Sequence[RunRecord]) -> list[Row]:
    """One row a method: minimum, median and maximum of ours and of the paper's.

    Ours are over finished seeds, at the end of the schedule; None where none finished.
    ``gradients`` and ``seconds`` are medians of a finished run.
    """
    labels = unique_labels(plan)
    return [
        {
            "method": s.method,
            "label": labels[s.method],
            "ours": None if s.median is None else [s.low, s.median, s.high],
            "finished": s.finished,
            "planned": sum(s.counts.values()),
            "status": describe_counts(s.counts),
            "paper": plan.paper.get(s.method),
            "gradients": s.gradients,
            "seconds": s.seconds,
        }
        for s in summarize(plan, runs).methods
    ]


def unique_labels(plan: Plan) -> dict[str, str]:
    """Labels of methods; those that share one are told apart by the options that differ.

    Where options do not tell them apart, their keys do.
    """
    sharing: dict[str, dict[str, Mapping[str, Any]]] = {}
    for key, method in plan.methods.items():
        sharing.setdefault(method.label, {})[key] = method.options
    labels = {key: method.label for key, method in plan.methods.items()}
    for label, options in sharing.items():
        if len(options) == 1:
            continue
        names = dict.fromkeys(name for mine in options.values() for name in mine)
        pairs = list(pairwise(options.values()))
        differ = [n for n in names if any(a.get(n) != b.get(n) for a, b in pairs)]
        said = {
            key: ", ".join(f"{name} {mine[name]}" for name in differ if name in mine)
            for key, mine in options.items()
        }
        times = Counter(said.values())
        for key, text in said.items():
            labels[key] = f"{label}, {text if text and times[text] == 1 else key}"
    return labels


def print_table(records: Records, console: Console) -> None:
    """The table for a terminal, with the setting above and the remark below."""
    found = experiment_table(records)
    console.print(Text(found["title"], style="bold"))
    console.print(Text(found["setting"]))
    if series := series_of(records.plan, records.runs):
        console.print(_first_and_last(series[0]))
        if len(series) > 1:
            console.print(
                Text("Means over the second half of training, 95% intervals over moments:")
            )
            console.print(_everywhere(series))
    metric = f"{found['metric']} ({found['better']} is better)"
    console.print(Text(f"{metric}: minimum / median / maximum over seeds".capitalize()))
    console.print(_method_table(found["rows"], found["metric"], console.width))
    console.print(Text(found["precision"]), style="dim")
    if found["reference"]:
        console.print(Text(f"Paper, {found['reference']}."), style="dim")
    if found["lost"]:
        console.print(Text(f"Not finished, {found['lost']}."), style="yellow")
    console.print(Text(found["remark"]))


def _method_table(rows: Sequence[Row], metric: str, width: int) -> Table:
    heads = ["method", "ours", "paper", "seeds", "gradients", "seconds"]
    lines = [heads, *method_cells(rows, metric)]
    if not any(row["paper"] for row in rows):
        lines = [line[:2] + line[3:] for line in lines]
    table = new_table(*lines[0])
    for label, *cells in lines[1:]:
        if width < _WIDE:
            cells = [cell.replace(" / ", "/") for cell in cells]
        table.add_row(Text(label), *cells)
    return table


def method_cells(rows: Sequence[Row], metric: str) -> list[list[str]]:
    """`method_rows` in words: label, ours, the paper's, seeds, gradients and time of a run."""
    lines = []
    for row in rows:
        ours = _triple(row["ours"], 2 if metric == "accuracy" else None)
        places = [len(f"{v:g}".partition(".")[2]) for v in row["paper"] or ()]
        paper = _triple(row["paper"], max(places, default=0))  # as many decimals as it has
        seeds = numbers.show_share(row["finished"], row["planned"])
        costs = numbers.show_count(row["gradients"]), numbers.show_seconds(row["seconds"])
        lines.append([row["label"], ours, paper, seeds, *costs])
    return lines


def _triple(values: Sequence[float] | None, places: int | None) -> str:
    """``93.23 / 93.41 / 93.73``, all with the same decimals: four digits unless told.

    What has run away is told by its power of ten.
    """
    if values is None:
        return numbers.NONE
    if places is None:
        size = abs(values[1]) or 1.0
        places = min(6, max(0, 3 - math.floor(math.log10(size))))
    return " / ".join(f"{v:.{places}f}" if abs(v) < 1e7 else f"{v:.3e}" for v in values)


def _first_and_last(series: Series) -> Table:
    """Of the paper's own place: what became of the exponents, and what was expected."""
    epochs = [series.law(series.blocks[0], moment).epoch for moment in (0, -1)]
    heads = [f"epoch {epoch:.3g}" for epoch in epochs]
    table = new_table("exponent of", *heads, "expected", "seen")
    verdicts = {True: "yes", False: "no", None: "cannot be told"}
    for row in series.rows():
        laws = [str(series.law(row["block"], moment)) for moment in (0, -1)]
        table.add_row(Text(row["block"]), *laws, row["expected"], verdicts[row["as_expected"]])
    return table


def _everywhere(series: Sequence[Series]) -> Table:
    """Exponents of every network once it is trained, at every place."""
    table = new_table("measured on", *(name.replace(" ", "\n") for name in series[0].blocks))
    for i, one in enumerate(series):
        if i == 0 or one.label != series[i - 1].label:
            table.add_section()
            table.add_row(Text(one.label, style="bold"))
        table.add_row(Text(str(one.place)), *(c.replace(" ", "\n", 1) for c in late_cells(one)))
    return table
