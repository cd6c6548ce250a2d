"""A comparison of pruning criteria as a table, a decision and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from aliceopt.lab.calibration import PREDICTIONS, Calibration
from aliceopt.lab.compression import Result, row_of
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.results.paired import ALPHA, Paired

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "calibration_table",
    "compression_table",
    "criteria",
    "decision",
    "results_at",
    "sparsities",
]


def _is_ours(name: str) -> bool:
    """Whether it goes by curvature over a distance, or at a point, and not by gradients alone."""
    return row_of(name).gradients > 1


def results_at(results: Sequence[Result], criterion: str, sparsity: float) -> dict[int, Result]:
    """By seed."""
    return {r.seed: r for r in results if (r.criterion, r.sparsity) == (criterion, sparsity)}


def sparsities(results: Sequence[Result]) -> list[float]:
    """Those that anything was removed at, ascending."""
    return sorted({r.sparsity for r in results if r.sparsity})


def criteria(results: Sequence[Result]) -> list[str]:
    """Those that chose what was removed."""
    return [name for name in dict.fromkeys(r.criterion for r in results) if name != "none"]


def compression_table(results: Sequence[Result], metric: str) -> Table:
    """Loss and metric by criterion and sparsity, means over seeds."""
    from rich import box
    from rich.table import Table

    shares = sparsities(results)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("criterion", overflow="fold")
    for sparsity in shares:
        table.add_column(f"\u2212{100 * sparsity:g}%", justify="right", no_wrap=True)
    for head in ("gradients", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    whole = _cell(list(results_at(results, "none", 0.0).values()), metric)
    table.add_row("none removed", *[whole] * len(shares), "", "")
    for name in criteria(results):
        mine = [list(results_at(results, name, sparsity).values()) for sparsity in shares]
        flat = [r for cell in mine for r in cell]
        cells = [_cell(cell, metric) for cell in mine]
        cost = show_seconds(fmean(r.seconds for r in flat))
        table.add_row(row_of(name).label, *cells, str(flat[0].gradients), cost)
    return table


def _cell(results: Sequence[Result], metric: str) -> str:
    """The mean loss, and the metric if it is another."""
    loss = f"{fmean(r.loss for r in results):.3f}"
    return loss if metric == "loss" else f"{loss} / {fmean(r.metric for r in results):.1f}"


def calibration_table(found: Calibration) -> Table:
    """A row a layer, and below what each prediction is worth."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("layer", overflow="fold")
    heads = ("measured", "Fisher", "h at a point", "h over a radius", "with gradient and glass")
    for head in heads:
        table.add_column(head, justify="right")
    for layer in found.layers:
        cells = (layer.measured, *(layer.predicted[name] for name in PREDICTIONS))
        table.add_row(layer.layer, *(f"{value:.4g}" for value in cells))
    table.add_section()
    ranks = [f"{found.correlation(name):.2f}" for name in PREDICTIONS]
    ratios = [f"{found.ratio(name):.2g}" for name in PREDICTIONS]
    table.add_row("rank correlation", "", *ranks)
    table.add_row("median of predicted / measured", "", *ratios)
    return table


def decision(results: Sequence[Result]) -> list[str]:
    """For every sparsity: the criterion to use, and its lead over the best of the other kind."""
    said = []
    for sparsity in sparsities(results):
        losses = {
            name: fmean(r.loss for r in results_at(results, name, sparsity).values())
            for name in criteria(results)
        }
        first, *others = sorted(losses, key=lambda name: losses[name])
        rivals = [name for name in others if _is_ours(name) != _is_ours(first)]
        text = f"{100 * sparsity:g}%: {row_of(first).label}, loss {losses[first]:.3f}"
        if rivals:
            kind = "the others" if _is_ours(first) else "curvature"
            text += f"; best of {kind}: {row_of(rivals[0]).label}, {losses[rivals[0]]:.3f}"
            text += f" ({_lead(results, first, rivals[0], sparsity)})"
        said.append(text)
    return said


def _lead(results: Sequence[Result], first: str, second: str, sparsity: float) -> str:
    mine, other = (results_at(results, name, sparsity) for name in (first, second))
    both = [other[seed].loss - r.loss for seed, r in mine.items() if seed in other]
    if len(both) < 2:
        return "one seed: no difference is established"
    paired = Paired(tuple(both))
    half = paired.half_width(ALPHA)
    verdict = "established" if paired.mean > half else "not established"
    return f"difference {paired.mean:.3f} \u00b1 {half:.3f}, {verdict}"
