"""Results for people: a table with a progress bar. Results for programs: plain records.

Needs rich, which only ``pip install "aliceopt[lab]"`` brings; it is imported on use.
"""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import aliceopt

from .registry import OF_MEASUREMENTS, OF_TRAINING, Claim, Context, Measurement, Result, run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["as_records", "print_results", "run_with_progress", "summary"]

_STYLES = {
    "confirmed": "green",
    "corrected": "yellow",
    "failed": "bold red",
    "reproduced": "green",
    "not reproduced": "yellow",
    "cannot tell": "cyan",
}


def run_with_progress(claims: Sequence[Claim], context: Context) -> list[Result]:
    """Test claims, with a progress bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    results = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("claims", total=len(claims))
        for claim, result in zip(claims, run(claims, context), strict=True):
            results.append(result)
            progress.update(task, advance=1, description=claim.id)
    return results


def print_results(results: Sequence[Result], console: Console) -> None:
    """The table, why rows are corrected or failed, and the summary."""
    from rich.text import Text

    console.print(_table(results, console.width))
    for verdict in ("corrected", "failed"):
        reasons: dict[str, list[str]] = {}
        for result in results:
            if result.verdict == verdict:
                reasons.setdefault(_why(result), []).append(result.claim.id)
        for reason, ids in reasons.items():
            label = (verdict, _STYLES[verdict])
            line = Text.assemble(label, " ", (", ".join(ids), "bold"), f": {reason}")
            console.print(line, soft_wrap=True)
    console.print(summary(results), soft_wrap=True)


def summary(results: Sequence[Result]) -> str:
    """``N confirmed, N corrected, N failed; N reproduced, N not reproduced, N cannot tell``."""
    counts = Counter(result.verdict for result in results)
    kinds = (OF_MEASUREMENTS, OF_TRAINING)
    return "; ".join(", ".join(f"{counts[v]} {v}" for v in verdicts) for verdicts in kinds)


def _why(result: Result) -> str:
    if result.verdict == "failed":
        return result.note if result.measurement is None else "measured and expected disagree"
    return result.claim.correction or "the paper's value differs from the measured one"


def _table(results: Sequence[Result], width: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    wide = width >= 96
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 1, 0), pad_edge=False, expand=True)
    table.add_column("claim (place): statement", ratio=1, overflow="fold")
    table.add_column("paper", width=14 if wide else 11, overflow="fold")
    table.add_column("expected", width=12 if wide else 9, overflow="fold")
    table.add_column("measured", width=17 if wide else 9, overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for result in results:
        claim = result.claim
        expected, measured = _numbers(result)
        note = f"\n{result.note}" if result.note else ""
        table.add_row(
            Text.assemble(
                (claim.id, "bold"), f" ({claim.place}):\n", claim.statement, (note, "dim")
            ),
            Text(claim.paper),
            Text(expected),
            Text(measured),
            Text(result.verdict, style=_STYLES[result.verdict]),
        )
    return table


def _numbers(result: Result) -> tuple[str, str]:
    """The cells for the expected and the measured value."""
    m = result.measurement
    if m is None:
        return "", "training" if result.claim.training is not None else "nothing"
    return _expected(m), _measured(m)


def _expected(m: Measurement) -> str:
    value = f"{m.expected:.4g}"
    if m.relation != "=":
        return f"{m.relation} {value}"
    visible = m.tolerance > 5e-4 * abs(m.expected)
    return f"{value} ± {m.tolerance:.1g}" if visible else value


def _measured(m: Measurement) -> str:
    if not m.error > 0 or not math.isfinite(m.error):
        return f"{m.measured:.4g}"
    digits = max(0, 1 - math.floor(math.log10(m.error)))
    return f"{m.measured:.{digits}f} ± {m.error:.{digits}f}"


def as_records(results: Sequence[Result], context: Context) -> list[dict[str, Any]]:
    """One self-contained record a claim; numbers that are not finite become null."""
    versions = {
        "aliceopt": aliceopt.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return [
        {
            "id": result.claim.id,
            "place": result.claim.place,
            "statement": result.claim.statement,
            "paper": result.claim.paper,
            **_fields(result.measurement),
            "verdict": result.verdict,
            "correction": result.claim.correction if result.verdict == "corrected" else "",
            "note": result.note,
            "decided_by": training.experiment if (training := result.claim.training) else "",
            "seed": context.seed,
            "samples": context.samples,
            "versions": versions,
        }
        for result in results
    ]


def _fields(m: Measurement | None) -> dict[str, Any]:
    """The numbers of a measurement, or as many nulls."""
    names = {
        "expected": "expected",
        "measured": "measured",
        "relation": "relation",
        "standard_error": "error",
        "tolerance": "tolerance",
        "paper_value": "paper",
        "paper_relation": "paper_relation",
        "paper_tolerance": "paper_tolerance",
        "spread": "spread",
    }
    return {key: None if m is None else _plain(getattr(m, name)) for key, name in names.items()}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
