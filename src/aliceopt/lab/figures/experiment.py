"""The figure of any experiment, from the folder of its records."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from aliceopt.lab.figures.limit import draw_limit
from aliceopt.lab.figures.methods import draw_methods
from aliceopt.lab.figures.power_law import draw_power_law
from aliceopt.lab.figures.terms import draw_terms
from aliceopt.lab.records import RecordError, read_plan

__all__ = ["FIGURES", "draw_experiment"]

FIGURES: dict[str, Callable[[Path, Path], Path]] = {
    "power_law": draw_power_law,
    "terms": draw_terms,
    "limit": draw_limit,
    "methods": draw_methods,
}
"""Figures by the name that a plan has for them."""


def draw_experiment(
    folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> Path:
    """Draw the figure that the plan in ``folder`` names, by default to ``figures/`` inside it."""
    place = Path(folder)
    plan = read_plan(place)
    kind = plan.get("figure")
    if kind not in FIGURES:
        raise RecordError(
            f"the plan in {str(folder)!r} has the figure {kind!r}; there is {', '.join(FIGURES)}"
        )
    target = place / "figures" / f"{plan['name']}.png" if out is None else Path(out)
    return FIGURES[kind](place, target)
