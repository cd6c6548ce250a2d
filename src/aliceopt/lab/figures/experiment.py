"""The figure of any experiment, from the folder of its records."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from aliceopt.lab.figures.columns import draw_limit, draw_terms
from aliceopt.lab.figures.methods import draw_methods
from aliceopt.lab.figures.power_law import draw_power_law
from aliceopt.lab.records import RecordError, Records

__all__ = ["FIGURES", "draw_experiment"]

FIGURES: dict[str, Callable[[Records, Path], Path]] = {
    "power_law": draw_power_law,
    "terms": draw_terms,
    "limit": draw_limit,
    "methods": draw_methods,
}
"""Figures by the name that a plan has for them."""


def draw_experiment(records: Records, out: str | os.PathLike[str] | None = None) -> Path:
    """Draw the figure that the plan names, by default to ``figures/`` in the records' folder."""
    name, kind = records.plan.name, records.plan.figure
    if kind not in FIGURES:
        raise RecordError(
            f"the plan in {str(records.folder)!r} has the figure {kind!r}; "
            f"there is {', '.join(FIGURES)}"
        )
    target = records.folder / "figures" / f"{name}.png" if out is None else Path(out)
    return FIGURES[kind](records, target)
