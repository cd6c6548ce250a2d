"""Kept results as tables: means over seeds with their uncertainty, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aliceopt.lab.results.kept import Kept, mean_seconds, settings_apart_from_names
from aliceopt.lab.results.kept_compare import changes
from aliceopt.lab.results.numbers import NONE, decimals, show_count, show_seconds, show_share
from aliceopt.lab.results.paired import Paired
from aliceopt.lab.terminal import new_table
from aliceopt.lab.training.precision import in_words

_SHARED = ("experiment", "scale", "device", "precision", "metric", "better")


def mean_and_half(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half of its 95% interval by Student's t; None from a single value.

    >>> mean, half = mean_and_half([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    if len(values) < 2:
        return fmean(values), None
    return fmean(values), Paired(tuple(values)).half_width(0.05)


def kept_rows(lines: Sequence[Kept]) -> list[dict[str, Any]]:
    """One row for runs that differ in their seed only, means over those that finished.

    Other settings, another precision or another device make another row: nothing is mixed.
    """
    groups: dict[tuple[str, ...], list[Kept]] = {}
    for line in lines:
        shared = (getattr(line, name) for name in _SHARED)
        settings = json.dumps(settings_apart_from_names(line.config), sort_keys=True)
        groups.setdefault((*shared, settings), []).append(line)
    rows = []
    for runs in groups.values():
        group = list({line.seed: line for line in runs}.values())  # once, if it ran twice
        one = max(group, key=lambda line: "@" in line.method)  # whose name tells the rate
        finals = [line.final for line in group if line.final is not None]
        done = [line for line in group if line.final is not None]
        mean, half = mean_and_half(finals) if finals else (None, None)
        rows.append(
            {
                **{name: getattr(one, name) for name in _SHARED},
                "label": ", ".join([one.called, *changes(one)]),
                "mean": mean,
                "half": half,
                "finished": len(done),
                "seeds": len(group),
                "gradients": fmean(line.gradients for line in done) if done else None,
                "seconds": mean_seconds(done),
            }
        )
    return rows


def print_kept(lines: Sequence[Kept], console: Console) -> None:
    """A table for every experiment, scale and device."""
    rows = kept_rows(sorted(lines, key=_by_rate))
    for place in dict.fromkeys((r["experiment"], r["scale"], r["device"]) for r in rows):
        mine = [r for r in rows if (r["experiment"], r["scale"], r["device"]) == place]
        name, scale, device = place
        metric = f"{mine[0]['metric']}, {mine[0]['better']} is better"
        console.print(Text(f"{name}, {scale} scale, {device}: {metric}", style="bold"))
        console.print(_table(mine))
        said = [in_words(p) for p in dict.fromkeys(r["precision"] for r in mine)]
        console.print(Text(f"Precision: {'; '.join(said)}."), style="dim")
    console.print(
        Text(
            "Mean \u00b1 half of its 95% interval over finished seeds (Student's t); gradients and "
            "seconds are means of a run, evaluation not counted."
        ),
        style="dim",
    )


def _by_rate(line: Kept) -> tuple[Any, ...]:
    """Methods by name, and each by its learning rate as a number."""
    rate = line.config.options.get("lr") or 0.0
    return (line.scale, line.method.partition("@")[0], rate, line.precision)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = new_table("method", "seeds", "mean", "gradients", "seconds", "precision")
    for row in rows:
        table.add_row(
            Text(row["label"]),
            show_share(row["finished"], row["seeds"]),
            show_mean(row),
            show_count(row["gradients"]),
            show_seconds(row["seconds"]),
            row["precision"],
        )
    return table


def show_mean(row: dict[str, Any]) -> str:
    """Like 93.41 \u00b1 0.12; without a spread for one seed, and a dash for none."""
    if row["mean"] is None:
        return NONE
    if row["half"] is None:
        return f"{row['mean']:.2f}" if row["metric"] == "accuracy" else f"{row['mean']:.4g}"
    places = max(2 if row["metric"] == "accuracy" else 0, decimals(row["half"]))
    return f"{row['mean']:.{places}f} \u00b1 {row['half']:.{places}f}"
