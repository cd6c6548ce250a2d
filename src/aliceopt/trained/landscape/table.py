"""A landscape as tables and as records, and the exponents along a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from aliceopt.lab.results.numbers import NONE, signed
from aliceopt.landscape import Estimate, Rungs
from aliceopt.landscape.bounds import FORMS
from aliceopt.landscape.subject import without_nan
from aliceopt.trained.landscape.survey import View

if TYPE_CHECKING:
    from rich.table import Table

Lines = Sequence[Mapping[str, Any]]
"""Ladders along a training run, see `Along.lines`."""


def within(estimate: Estimate, digits: str = ".2f") -> str:
    """A number and its 95% interval.

    >>> within(Estimate(1.07, 1.021, 1.119, 0.02, 0.01))
    '1.07 (1.02 to 1.12)'
    """
    if math.isnan(estimate.value):
        return NONE
    value, low, high = (shown(x, digits) for x in (estimate.value, estimate.low, estimate.high))
    return value if math.isnan(estimate.low) else f"{value} ({low} to {high})"


def shown(value: float, digits: str = ".2f") -> str:
    """A number with so many digits; with decimals nothing is minus zero.

    >>> shown(-0.001), shown(-0.01), shown(0.00123, ".1e")
    ('0.00', '\u22120.01', '1.2e-03')
    """
    return signed(value, int(digits[1:-1])) if digits.endswith("f") else f"{value:{digits}}"


def at_small_end(rungs: Rungs) -> Estimate:
    """The exponent that the verdict is read from."""
    return rungs.exponents[min(rungs.start, len(rungs.exponents) - 1)]


def landscape_table(views: Sequence[View]) -> Table:
    """A row a block, for every network and kind of batches."""
    from aliceopt.lab.terminal import new_table

    table = new_table("block", "exponent p", "from radius", "glass share", "crossover")
    table.add_column("verdict", no_wrap=True)
    for view in views:
        table.add_section()
        table.add_row(f"{view.network}, {view.part} batches", style="bold")
        for name, rungs in view.ladder.blocks.items():
            share, there = rungs.glass_share[rungs.start], rungs.crossover
            table.add_row(
                f"  {name}",
                within(at_small_end(rungs)),
                f"{view.ladder.radii[rungs.start]:.1e}",
                shown(share.value) if math.isfinite(share.value) else NONE,
                f"{there.value:.1e}" if math.isfinite(there.value) else NONE,
                rungs.verdict,
            )
    return table


def bounds_table(views: Sequence[View]) -> Table:
    """A row a kind of direction: how often the bound fails, and rise over bound, by form."""
    from aliceopt.lab.terminal import new_table

    table = new_table("move", "radius", *FORMS)
    for view in views:
        table.add_section()
        table.add_row(f"{view.network}, {view.part} batches", style="bold")
        for check in view.bounds:
            radius = f"{check.radius:.1e}"
            for kind, forms in check.kinds.items():
                cells = []
                for found in (forms[form] for form in FORMS):
                    told = f"{100 * found.violations:.0f}%, {short(found.ratio.value)}"
                    cells.append(told if found.moves else "rounding")
                table.add_row(f"  {kind}", radius, *cells)
            walks = [short(check.walk[form].value) for form in FORMS]
            table.add_row("  random, glass alone", radius, *walks)
    return table


def short(value: float) -> str:
    """Two digits, and no powers of ten for what is large.

    >>> short(0.0291), short(1234.5)
    ('0.029', '1,234')
    """
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def exponents_along(line: Mapping[str, Any]) -> dict[str, Estimate]:
    """By block: the exponent at the smallest radius that can be read."""
    found = {}
    for name, block in line["blocks"].items():
        told = block["exponents"][min(block["start"], len(block["exponents"]) - 1)]
        plain = {key: math.nan if value is None else value for key, value in told.items()}
        found[name] = Estimate(**plain)
    return found


def records(views: Sequence[View]) -> list[dict[str, Any]]:
    """One line a view, plain numbers; what is not finite becomes None."""
    return [
        {
            "network": view.network,
            "part": view.part,
            "batch_size": view.batch_size,
            "validation_loss": without_nan(view.loss),
            "metric": without_nan(view.metric),
            "readable": view.readable,
            **view.ladder.as_dict(),
            "bounds": [check.as_dict() for check in view.bounds],
            "diagonals": view.diagonals.as_dict(),
            "exact": without_nan(view.exact),
            "slices": [cut.as_dict() for cut in view.slices],
        }
        for view in views
    ]


def tensors(views: Sequence[View]) -> dict[str, Tensor]:
    """What the numbers are computed from, by network, batches and parameter.

    Sums of the ladder, and the curvature of every coordinate where it was kept.
    """
    found = {}
    for view in views:
        where = f"{view.network}/{view.part}"
        for name, table in view.ladder.sums.items():
            found[f"{where}/{name}"] = table
        for kept, label in ((view.diagonals.means, "mean"), (view.diagonals.errors, "error")):
            for term, there in kept.items():
                for name, values in there.items():
                    found[f"{where}/{term} {label}/{name}"] = values
    return found
