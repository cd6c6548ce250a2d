"""``aliceopt table``: our results beside the paper's, with what they cost.

The rows are plain records; a terminal gets them as a table. Whether the two columns may be
compared is said below it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from aliceopt.lab.records import RecordError, Records, RunRecord
from aliceopt.lab.results.describe import precision_note
from aliceopt.lab.results.deviations import lost, remark, setting, title_of
from aliceopt.lab.results.numbers import show_count, show_seconds
from aliceopt.lab.results.summary import describe_counts, outcome, summarize
from aliceopt.lab.spec import Plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "block_rows",
    "check_begun",
    "experiment_table",
    "method_rows",
    "print_table",
    "unique_labels",
]

Row = dict[str, Any]
NONE = "\u2013"
_NEAR = 0.2  # an exponent this close to 2 is near 2
_WIDE = 96  # columns of a terminal with room for spaces between numbers


def check_begun(records: Records) -> None:
    """Refuse records of which not one run has begun."""
    if all(run.status == "missing" for run in records.runs):
        raise RecordError(
            f"no records in {str(records.folder)!r}: none of its {len(records.runs)} planned runs "
            f"has begun; start them with `aliceopt run {records.plan.name}`"
        )


def experiment_table(records: Records) -> dict[str, Any]:
    """All that ``aliceopt table`` says, as plain values.

    ``rows`` are `method_rows`, ``blocks`` are `block_rows` (empty unless exponents were measured).
    """
    check_begun(records)
    plan, runs = records.plan, records.runs
    return {
        "experiment": plan.name,
        "title": title_of(plan, runs),
        "metric": plan.metric,
        "better": plan.better,
        "setting": setting(plan, runs),
        "reference": plan.reference,
        "precision": precision_note(plan, runs),
        "remark": remark(plan, runs),
        "lost": lost(runs),
        "rows": method_rows(plan, runs),
        "blocks": block_rows(runs),
    }


def method_rows(plan: Plan, runs: Sequence[RunRecord]) -> list[Row]:
    """One row a method: minimum, median and maximum of ours and of the paper's.

    Ours are over finished seeds, at the end of the schedule; None where none finished.
    ``gradients`` and ``seconds`` are medians of a finished run.
    """
    rows, labels = [], unique_labels(plan)
    for s in summarize(plan, runs).methods:
        paper = plan.paper.get(s.method)
        rows.append(
            {
                "method": s.method,
                "label": labels[s.method],
                "ours": None if s.median is None else [s.low, s.median, s.high],
                "finished": s.finished,
                "planned": sum(s.counts.values()),
                "status": describe_counts(s.counts),
                "paper": paper,
                "gradients": s.gradients,
                "seconds": s.seconds,
            }
        )
    return rows


def unique_labels(plan: Plan) -> dict[str, str]:
    """Labels of methods; those that share one are told apart by the options that differ.

    Where options do not tell them apart, their keys do.
    """
    sharing: dict[str, list[str]] = {}
    for key, method in plan.methods.items():
        sharing.setdefault(method.label, []).append(key)
    labels = {}
    for key, method in plan.methods.items():
        others = sharing[method.label]
        said = _apart({other: plan.methods[other].options for other in others})
        labels[key] = f"{method.label}, {said[key]}" if len(others) > 1 else method.label
    return labels


def _apart(options: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By key, the options that not all have alike; the key itself where two would say the same."""
    names = dict.fromkeys(name for mine in options.values() for name in mine)
    differ = [n for n in names if any(a.get(n) != b.get(n) for a, b in pairwise(options.values()))]
    said = {
        key: ", ".join(f"{name} {mine[name]}" for name in differ if name in mine)
        for key, mine in options.items()
    }
    times = Counter(said.values())
    return {key: text if text and times[text] == 1 else key for key, text in said.items()}


def block_rows(runs: Sequence[RunRecord]) -> list[Row]:
    """One row a block of parameters: its exponent at the first and the last measurement.

    Exponents are medians over seeds, with the extremes of their 95% intervals. Seeds are those
    that finished; if none did, the last measurement is the last one that all of them made. The
    paper expects the last block near 2 and the others below; ``as_expected`` judges the last
    measurement: within 0.2 of 2, or an interval that ends below 2.
    """
    finished = [run.power_law for run in runs if run.power_law and outcome(run) == "finished"]
    measured = finished or [run.power_law for run in runs if run.power_law]
    if not measured:
        return []
    common = min(map(len, measured)) - 1
    names = list(measured[0][0]["blocks"])
    rows = []
    for name in names:
        first = _over_seeds([series[0] for series in measured], name)
        last = _over_seeds([series[common] for series in measured], name)
        final = name == names[-1]
        rows.append(
            {
                "block": name,
                "first": first,
                "last": last,
                "expected": "near 2" if final else "below 2",
                "as_expected": _as_expected(last, final=final),
                "seeds": len(measured),
            }
        )
    return rows


def _over_seeds(events: Sequence[Mapping[str, Any]], name: str) -> Row:
    """The exponent of one block over seeds at one moment."""
    laws = [event["blocks"][name] for event in events if name in event["blocks"]]

    def told(key: str) -> list[float]:
        return [law[key] for law in laws if law.get(key) is not None]

    return {
        "epoch": median(event["epoch"] for event in events),
        "exponent": median(told("exponent")) if told("exponent") else None,
        "low": min(told("low"), default=None),
        "high": max(told("high"), default=None),
    }


def _as_expected(last: Row, *, final: bool) -> bool | None:
    p: float | None = last["exponent"]
    if p is None:
        return None
    most: float = p if last["high"] is None else last["high"]
    return abs(p - 2) <= _NEAR if final else most < 2


def print_table(records: Records, console: Console) -> None:
    """The table for a terminal, with the setting above and the remark below."""
    from rich.text import Text

    found = experiment_table(records)
    console.print(Text(found["title"], style="bold"))
    console.print(Text(found["setting"]))
    if found["blocks"]:
        console.print(_block_table(found["blocks"]))
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
    from rich.text import Text

    from aliceopt.lab.terminal import new_table

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
        whole = row["finished"] == row["planned"]
        count = str(row["finished"]) if whole else f"{row['finished']} of {row['planned']}"
        ours = _triple(row["ours"], 2 if metric == "accuracy" else None)
        paper = _triple(row["paper"], _decimals(row["paper"]))
        costs = show_count(row["gradients"]), show_seconds(row["seconds"])
        lines.append([row["label"], ours, paper, count, *costs])
    return lines


def _triple(values: Sequence[float] | None, places: int | None) -> str:
    """``93.23 / 93.41 / 93.73``, all with the same decimals: four digits unless told."""
    if values is None:
        return NONE
    if places is None:
        size = abs(values[1]) or 1.0
        places = min(6, max(0, 3 - math.floor(math.log10(size))))
    return " / ".join(f"{value:.{places}f}" for value in values)


def _decimals(values: Sequence[float] | None) -> int:
    """As many as the paper has."""
    return max((len(f"{v:g}".partition(".")[2]) for v in values or ()), default=0)


def _block_table(rows: Sequence[Row]) -> Table:
    from rich.text import Text

    from aliceopt.lab.terminal import new_table

    first, last = rows[0]["first"]["epoch"], rows[0]["last"]["epoch"]
    epochs = (f"epoch {first:.3g}", f"epoch {last:.3g}")
    table = new_table("exponent of", *epochs, "expected", "seen")
    verdicts = {True: "yes", False: "no", None: "cannot be told"}
    for row in rows:
        moments = [_law(row["first"]), _law(row["last"])]
        table.add_row(Text(row["block"]), *moments, row["expected"], verdicts[row["as_expected"]])
    return table


def _law(moment: Row) -> str:
    if moment["exponent"] is None:
        return NONE
    text = f"{moment['exponent']:.2f}"
    if moment["low"] is None or moment["high"] is None:
        return text
    return f"{text} ({moment['low']:.2f} to {moment['high']:.2f})"
