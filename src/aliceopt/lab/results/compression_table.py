"""A comparison of pruning criteria in rows and sentences, for a terminal, a page or a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from aliceopt.lab.calibration import PREDICTIONS, Calibration
from aliceopt.lab.compression import Result
from aliceopt.lab.compression_rows import ROWS, row_of
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.results.paired import ALPHA, Paired

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Group",
    "Rows",
    "as_table",
    "calibration_rows",
    "compression_rows",
    "decision",
    "group_of",
    "groups_of",
    "layer_rows",
    "radius_rows",
]

Rows = list[list[str]]
"""A head, and below it what it names; in all but the first column numbers."""

NOTHING = "\u2013"
"""In a cell without a number."""

PREDICTED = {
    "fisher": "Fisher",
    "point": "h at a point",
    "radius": "h over a radius",
    "glass": "with gradient and glass",
}


class Group(NamedTuple):
    """What results of one table share."""

    structure: str
    rounds: int
    finetune: float
    budget: int

    def in_words(self) -> str:
        """For a heading.

        >>> Group("2:4", 1, 2, 300).in_words()
        '2:4, 300 gradients, in one round, 2 epochs of training with the masks on'
        """
        said = ["2:4"] if self.structure == "2:4" else []
        said.append(f"{self.budget} gradients")
        said.append("in one round" if self.rounds == 1 else f"in {self.rounds} rounds")
        if self.finetune:
            epochs = "epoch" if self.finetune == 1 else "epochs"
            said.append(f"{self.finetune:g} {epochs} of training with the masks on")
        return ", ".join(said)


def group_of(result: Result) -> Group:
    """The table that a result belongs to."""
    return Group(result.structure, result.rounds, result.finetune, result.budget)


def groups_of(results: Iterable[Result]) -> dict[Group, list[Result]]:
    """Results by table; the whole networks stand in each."""
    told = list(results)
    whole = [r for r in told if r.criterion == "none"]
    found: dict[Group, list[Result]] = {}
    for result in told:
        if result.criterion != "none":
            found.setdefault(group_of(result), [*whole]).append(result)
    return found


def at(results: Sequence[Result], criterion: str, sparsity: float) -> dict[int, Result]:
    """By seed."""
    return {r.seed: r for r in results if (r.criterion, r.sparsity) == (criterion, sparsity)}


def sparsities(results: Iterable[Result]) -> list[float]:
    """What was removed, from little to much."""
    return sorted({r.sparsity for r in results if r.sparsity})


def criteria(results: Iterable[Result]) -> list[str]:
    """In the order in which they are filed, and by radius."""
    order = list(ROWS)

    def place(name: str) -> tuple[int, float]:
        return order.index(name.partition("@")[0]), row_of(name).radius or 0.0

    return sorted({r.criterion for r in results if r.criterion != "none"}, key=place)


def loss_at(results: Sequence[Result], criterion: str, sparsity: float) -> float:
    """The mean over seeds; infinite where there is none, or one is no number."""
    losses = [r.loss for r in at(results, criterion, sparsity).values()]
    mean = fmean(losses) if losses else math.inf
    return math.inf if math.isnan(mean) else mean


def compression_rows(
    results: Sequence[Result], metric: str, best: Callable[[str], str] = str
) -> Rows:
    """Loss and metric by criterion and sparsity, means over seeds; ``best`` marks the lowest.

    With a column of seconds where any are known; seeds are told one by one where rows have others.
    """
    shares, names = sparsities(results), criteria(results)
    known = any(r.seconds is not None for r in results if r.criterion != "none")
    costs = ["gradients", "seconds", "seeds"] if known else ["gradients", "seeds"]
    rows = [["criterion", *(f"\u2212{100 * share:g}%" for share in shares), *costs]]
    whole = _cell(at(results, "none", 0.0).values(), metric)
    rows.append(["none removed", *[whole] * len(shares), *[""] * len(costs)])
    lowest = {s: min(names, key=lambda name: loss_at(results, name, s)) for s in shares}
    for name in names:
        cells = []
        for share in shares:
            cell = _cell(at(results, name, share).values(), metric)
            cells.append(best(cell) if lowest[share] == name else cell)
        mine = [r for r in results if r.criterion == name]
        timed = [r.seconds for r in mine if r.seconds is not None]
        told = {
            "gradients": f"{fmean(r.gradients for r in mine):.0f}",
            "seconds": show_seconds(fmean(timed)) if timed else NOTHING,
            "seeds": _seeds(mine, alike=len(_seed_sets(results)) < 2),
        }
        rows.append([row_of(name).label, *cells, *(told[cost] for cost in costs)])
    return rows


def _seed_sets(results: Sequence[Result]) -> set[frozenset[int]]:
    """The sets of seeds that criteria have; one, where their means can be compared."""
    names = criteria(results)
    return {frozenset(r.seed for r in results if r.criterion == name) for name in names}


def _seeds(results: Iterable[Result], *, alike: bool) -> str:
    """How many, and which if not ``alike`` in every row: ``3: 0 to 2``."""
    found = sorted({r.seed for r in results})
    if alike:
        return str(len(found))
    runs: list[list[int]] = []
    for seed in found:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    told = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{len(found)}: {', '.join(told)}"


def _cell(results: Iterable[Result], metric: str) -> str:
    """The mean loss, and the metric if it is another; a dash where there is none."""
    told = list(results)
    if not told:
        return NOTHING
    loss = f"{fmean(r.loss for r in told):.3f}"
    return loss if metric == "loss" else f"{loss} / {fmean(r.metric for r in told):.1f}"


def radius_rows(results: Sequence[Result], metric: str) -> Rows:
    """Losses of h at every radius that was tried, and at the default, by sparsity.

    Nothing where no criterion was given a radius with @.
    """
    tried = {name: row_of(name).radius for name in criteria(results) if "@" in name}
    ours = {name: radius for name, radius in tried.items() if name.startswith("curvature@")}
    if not ours:
        return []
    shares = sparsities(results)
    rows = [["radius", *(f"\u2212{100 * share:g}%" for share in shares)]]
    default = default_radius_of(results)
    places = {name: radius or 0.0 for name, radius in ours.items()}
    if default is not None:
        places["curvature"] = default
    for name, radius in sorted(places.items(), key=lambda pair: pair[1]):
        text = f"{radius:.2g}, the default" if name == "curvature" else f"{radius:g}"
        cells = [_cell(at(results, name, share).values(), metric) for share in shares]
        rows.append([text, *cells])
    return rows


def default_radius_of(results: Iterable[Result]) -> float | None:
    """The mean over seeds of the radius that was taken where none was given."""
    radii = [r.radius for r in results if r.criterion == "curvature" and r.radius is not None]
    return fmean(radii) if radii else None


def layer_rows(found: Calibration) -> Rows:
    """A row a layer, of one network."""
    rows = [["layer", "measured", *PREDICTED.values()]]
    for layer in found.layers:
        cells = (layer.measured, *(layer.predicted[name] for name in PREDICTIONS))
        rows.append([layer.layer, *(f"{value:.4g}" for value in cells)])
    return rows


def calibration_rows(found: Mapping[int, Calibration]) -> Rows:
    """What each prediction is worth: by seed, then the median over seeds."""
    rows = [["", *PREDICTED.values()]]
    ranks = {seed: [one.correlation(name) for name in PREDICTIONS] for seed, one in found.items()}
    ratios = {seed: [one.ratio(name) for name in PREDICTIONS] for seed, one in found.items()}
    for what, table, shown in (
        ("rank correlation", ranks, "{:.2f}"),
        ("median of predicted / measured", ratios, "{:.2g}"),
    ):
        columns = list(zip(*table.values(), strict=True))
        if len(table) == 1:
            rows.append([what, *(shown.format(column[0]) for column in columns)])
            continue
        cells = [
            f"{shown.format(median(c))} ({shown.format(min(c))} to {shown.format(max(c))})"
            for c in columns
        ]
        rows.append([f"{what}, {len(table)} networks", *cells])
    return rows


def decision(results: Sequence[Result]) -> list[str]:
    """For every sparsity: the criterion to use, and its lead over the best of the other kind."""
    said = []
    for sparsity in sparsities(results):
        losses = {name: loss_at(results, name, sparsity) for name in criteria(results)}
        first, *others = sorted(losses, key=lambda name: losses[name])
        rivals = [name for name in others if _is_ours(name) != _is_ours(first)]
        text = f"{100 * sparsity:g}%: {row_of(first).label}, loss {losses[first]:.3f}"
        if rivals:
            kind = "the others" if _is_ours(first) else "curvature"
            text += f"; best of {kind}: {row_of(rivals[0]).label}, {losses[rivals[0]]:.3f}"
            text += f" ({lead(results, first, rivals[0], sparsity)})"
        said.append(text)
    if len(_seed_sets(results)) > 1:
        said.append(
            "Not all criteria have the same seeds: means of others are not of the same networks, "
            "and only the differences are."
        )
    return said


def _is_ours(name: str) -> bool:
    """Whether it goes by curvature over a distance, or at a point, and not by gradients alone."""
    return row_of(name).gradients > 1


def lead(results: Sequence[Result], first: str, second: str, sparsity: float) -> str:
    """How much lower the loss of the first is, with half of its 95% interval over seeds."""
    mine, other = (at(results, name, sparsity) for name in (first, second))
    both = [other[seed].loss - r.loss for seed, r in mine.items() if seed in other]
    if len(both) < 2:
        shared = "one seed" if both else "no seed in common"
        return f"{shared}: no difference is established"
    paired = Paired(tuple(both))
    half = paired.half_width(ALPHA)
    verdict = "established" if paired.mean > half else "not established"
    return f"difference {paired.mean:.3f} \u00b1 {half:.3f}, {verdict}"


def as_table(rows: Rows) -> Table:
    """For a terminal."""
    from rich.text import Text

    from aliceopt.lab.terminal import new_table

    table = new_table(*rows[0])
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table
