"""A comparison of pruning criteria in rows and sentences, for a terminal, a page or a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch

from aliceopt.lab.results.kept_compare import difference
from aliceopt.lab.results.numbers import MINUS, NONE, show_seconds
from aliceopt.lab.results.paired import ALPHA, Paired
from aliceopt.lab.words import counted
from aliceopt.trained.compress.records import (
    Calibrations,
    Line,
    calibrations_of,
    results_of,
)
from aliceopt.trained.compress.rows import (
    PREDICTED,
    ROWS,
    Ask,
    Group,
    LayerIncrease,
    Result,
    row_of,
)

if TYPE_CHECKING:
    from rich.console import Console

Rows = list[list[str]]
"""A head, and below it what it names; in all but the first column numbers."""

Told = tuple[str, Rows, Sequence[str]]
"""A title, a table, and what to say below it."""


def groups_of(results: Iterable[Result]) -> dict[Group, list[Result]]:
    """Results by table; the whole networks stand in each that has pruned them."""
    told = list(results)
    found: dict[Group, list[Result]] = {}
    for result in told:
        if result.criterion != "none":
            found.setdefault(result.group, []).append(result)
    for mine in found.values():
        seeds = {r.seed for r in mine}
        mine[:0] = [r for r in told if r.criterion == "none" and r.seed in seeds]
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
    whole = _cell(results, "none", 0.0, metric)
    rows.append(["none removed", *[whole] * len(shares), *[""] * len(costs)])
    lowest = {s: min(names, key=lambda name: loss_at(results, name, s)) for s in shares}
    for name in names:
        cells = []
        for share in shares:
            cell = _cell(results, name, share, metric)
            cells.append(best(cell) if lowest[share] == name else cell)
        mine = [r for r in results if r.criterion == name]
        timed = [r.seconds for r in mine if r.seconds is not None]
        told = {
            "gradients": f"{fmean(r.gradients for r in mine):.0f}",
            "seconds": show_seconds(fmean(timed)) if timed else NONE,
            "seeds": _seeds(mine, alike=len(_seed_sets(results)) < 2),
        }
        rows.append([row_of(name).label, *cells, *(told[cost] for cost in costs)])
    return rows


def _seed_sets(results: Iterable[Result]) -> dict[frozenset[int], list[float]]:
    """Shares removed by the seeds that were run there, of one criterion or of all.

    One set of seeds, where means can be compared.
    """
    seeds: dict[tuple[str, float], set[int]] = {}
    for r in results:
        if r.criterion != "none":
            seeds.setdefault((r.criterion, r.sparsity), set()).add(r.seed)
    found: dict[frozenset[int], list[float]] = {}
    for (_, share), there in sorted(seeds.items()):
        found.setdefault(frozenset(there), []).append(share)
    return found


def _seeds(results: Sequence[Result], *, alike: bool) -> str:
    """How many, and which if not ``alike`` everywhere: ``3: 0 to 2``, ``0 to 2 (50%); 3 (70%)``."""
    sets = _seed_sets(results)
    if alike:
        return str(len({r.seed for r in results}))
    if len(sets) == 1:
        (only,) = sets
        return f"{len(only)}: {_in_runs(only)}"
    told = ((seeds, ", ".join(f"{100 * s:g}%" for s in shares)) for seeds, shares in sets.items())
    return "; ".join(f"{_in_runs(seeds)} ({where})" for seeds, where in told)


def _in_runs(seeds: Iterable[int]) -> str:
    """``0 to 2, 9 to 11``."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _cell(results: Sequence[Result], criterion: str, sparsity: float, metric: str) -> str:
    """The mean loss, and the metric if it is another; a dash where there is none.

    A percentage has one decimal, any other metric as many as the loss.
    """
    told = at(results, criterion, sparsity).values()
    if not told:
        return NONE
    loss = f"{fmean(r.loss for r in told):.3f}"
    places = 1 if metric == "accuracy" else 3
    return loss if metric == "loss" else f"{loss} / {fmean(r.metric for r in told):.{places}f}"


def radius_rows(results: Sequence[Result], metric: str) -> Rows:
    """Losses of h at every radius that was tried, and at the default, by sparsity."""
    places = tried_radii(results)
    if not places:
        return []
    shares = sparsities(results)
    rows = [["radius", *(f"\u2212{100 * share:g}%" for share in shares)]]
    default = default_radius_of(results)
    if default is not None:
        places["curvature"] = default
    for name, radius in sorted(places.items(), key=lambda pair: pair[1]):
        text = f"{radius:.2g}, the default" if name == "curvature" else f"{radius:g}"
        rows.append([text, *(_cell(results, name, share, metric) for share in shares)])
    return rows


def tried_radii(results: Iterable[Result]) -> dict[str, float]:
    """Of h, those that were given with @, from small to large, by the criterion's name."""
    names = [name for name in criteria(results) if name.startswith("curvature@")]
    return {name: row_of(name).radius or 0.0 for name in names}


def default_radius_of(results: Iterable[Result]) -> float | None:
    """The mean over seeds of the radius that was taken where none was given."""
    radii = [r.radius for r in results if r.criterion == "curvature" and r.radius is not None]
    return fmean(radii) if radii else None


def layer_rows(layers: Iterable[LayerIncrease]) -> Rows:
    """A row a layer, of one network."""
    rows = [["layer", "measured", *PREDICTED.values()]]
    for layer in layers:
        cells = (layer.measured, *(layer.predicted[name] for name in PREDICTED))
        rows.append([layer.layer, *(f"{value:.4g}" for value in cells)])
    return rows


def calibration_rows(found: Calibrations) -> Rows:
    """What each prediction is worth: of one network, or the median of several and the range."""
    rows = [["", *PREDICTED.values()]]
    count = len(found)
    for what, worth, digits in (
        ("rank correlation", _rank_correlation, ".2f"),
        ("median of predicted / measured", _ratio, ".2g"),
    ):
        cells = []
        for name in PREDICTED:
            told = [worth(layers, name) for layers in found.values()]
            low, middle, high = (f"{x:{digits}}" for x in (min(told), median(told), max(told)))
            cells.append(middle if count == 1 else f"{middle} ({low} to {high})")
        rows.append([what if count == 1 else f"{what}, {count} networks", *cells])
    return rows


def _rank_correlation(layers: Sequence[LayerIncrease], prediction: str) -> float:
    """Spearman's, without ties; NaN below three layers."""
    n = len(layers)
    if n < 3:
        return math.nan
    both = ([x.predicted[prediction] for x in layers], [x.measured for x in layers])
    one, other = (torch.tensor(x, dtype=torch.float64).argsort().argsort().double() for x in both)
    return 1 - 6 * float((one - other).square().sum()) / (n * (n * n - 1))


def _ratio(layers: Sequence[LayerIncrease], prediction: str) -> float:
    """The median of predicted over measured, of layers whose removal raised the loss."""
    ratios = [
        layer.predicted[prediction] / layer.measured for layer in layers if layer.measured > 0
    ]
    return median(ratios) if ratios else math.nan


def decision(results: Sequence[Result]) -> list[str]:
    """For every sparsity: the criterion to use, and its lead over the best of the other kind."""
    said = []
    for sparsity in sparsities(results):
        losses = {name: loss_at(results, name, sparsity) for name in criteria(results)}
        first, *others = sorted(losses, key=lambda name: losses[name])
        # Ours go by curvature over a distance, or at a point, and not by gradients alone.
        ours = {name: row_of(name).gradients > 1 for name in losses}
        rivals = [name for name in others if ours[name] != ours[first]]
        text = f"{100 * sparsity:g}%: {row_of(first).label}, loss {losses[first]:.3f}"
        if rivals:
            kind = "does not measure" if ours[first] else "measures"
            text += f"; best that {kind} curvature: {row_of(rivals[0]).label}, "
            text += f"{losses[rivals[0]]:.3f}"
            text += f" ({lead(results, first, rivals[0], sparsity)})"
        said.append(text)
    if len(_seed_sets(results)) > 1:
        said.append(
            "Not all criteria have the same seeds: means of others are not of the same networks, "
            "and only the differences are."
        )
    return said


def lead(results: Sequence[Result], first: str, second: str, sparsity: float) -> str:
    """How much lower the loss of the first is, with half of its 95% interval over seeds."""
    paired = paired_losses(results, second, first, sparsity)
    if len(paired.differences) < 2:
        shared = "one seed" if paired.differences else "no seed in common"
        return f"{shared}: no difference is established"
    if not all(map(math.isfinite, paired.differences)):
        return "a loss is not finite: no difference is established"
    half = paired.half_width(ALPHA)
    if abs(paired.mean) <= half:
        verdict = "not established"
    else:
        verdict = "established" if paired.mean > 0 else "the contrary established"
    return f"difference {paired.mean:.3f} \u00b1 {half:.3f}, {verdict}"


def paired_losses(results: Sequence[Result], first: str, second: str, sparsity: float) -> Paired:
    """The loss of the first minus that of the second, of the networks that both have pruned."""
    mine, other = (at(results, name, sparsity) for name in (first, second))
    return Paired(tuple(r.loss - other[seed].loss for seed, r in mine.items() if seed in other))


def difference_rows(
    results: Sequence[Result], pairs: Iterable[Sequence[str]], sure: Callable[[str], str] = str
) -> Rows:
    """`paired_losses` by sparsity, with half of the 95% interval; ``sure`` marks those off zero."""
    shares = sparsities(results)
    rows = [["loss", *(f"\u2212{100 * share:g}%" for share in shares), "seeds"]]
    for first, second in pairs:
        found = [paired_losses(results, first, second, share) for share in shares]
        found = [x if all(map(math.isfinite, x.differences)) else Paired(()) for x in found]
        cells = [difference(one if one.differences else None, "loss") for one in found]
        for i, one in enumerate(found):
            if len(one.differences) > 1 and abs(one.mean) > one.half_width(ALPHA):
                cells[i] = sure(cells[i])
        seeds = max(len(one.differences) for one in found)
        rows.append([f"{first} {MINUS} {second}", *cells, str(seeds)])
    return rows


# ---- for a terminal ----------------------------------------------------------------------------


def asked_tables(lines: Sequence[Line], ask: Ask) -> list[Told]:
    """The tables of what was asked for, from the records of a folder."""
    metric = lines[0]["metric_name"] if lines else "loss"
    shown, mine = shown_as(metric), groups_of(results_of(lines)).get(ask.group, [])
    told: list[Told] = []
    if mine:
        seeds = counted(len({r.seed for r in mine}), "seed")
        title = f"{shown} by share of weights removed, {ask.group.in_words()}, {seeds}"
        told.append((title, compression_rows(mine, metric), decision(mine)))
    if curve := radius_rows(mine, metric):
        told.append((f"{shown} by radius of the probes", curve, []))
    for (share, budget), found in calibrations_of(lines).items():
        if (share, budget) == (ask.layers, ask.gradients):
            for seed, layers in found.items():
                title = f"rise of the loss, {100 * share:g}% of a layer removed, seed {seed}"
                told.append((title, layer_rows(layers), []))
            told.append(("what the predictions are worth", calibration_rows(found), []))
    return told


def shown_as(metric: str) -> str:
    """What the cells of a table are, in words."""
    return "validation loss" if metric == "loss" else f"validation loss / {metric}"


def print_tables(tables: Iterable[Told], console: Console) -> None:
    """Each below its title; in a narrow terminal numbers take two lines."""
    from rich.text import Text

    from aliceopt.lab.terminal import new_table

    for title, rows, said in tables:
        console.print(title, style="bold", markup=False)
        table = new_table(*rows[0])
        for row in rows[1:]:
            table.add_row(*map(Text, row))
        names, *numbers = zip(*rows, strict=True)
        least = max(len(word) for name in names for word in name.split())
        if least + sum(2 + max(map(len, cells)) for cells in numbers) + 3 > console.width:
            table.columns[0].min_width = least
            for column in table.columns[1:]:
                column.no_wrap, column.overflow = False, "fold"  # rather than lose names and digits
        console.print(table)
        for line in said:
            console.print(line, markup=False)
