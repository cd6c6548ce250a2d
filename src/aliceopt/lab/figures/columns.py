"""Figures 4 and 5: curvature terms compared in two settings, one column of curves a setting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.outcomes import Row, look_of_terms
from aliceopt.lab.plan import TERM_NAMES
from aliceopt.lab.records import Records
from aliceopt.lab.spec import PlannedMethod

__all__ = ["draw_limit", "draw_terms"]

_STEPS = {
    "full": ("a) Full quasi-Newton steps", "full"),
    "naq": ("b) NAQ steps", "NAQ"),
}


def draw_terms(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 4 to ``out``: which terms help, a column for each kind of step.

    Above, validation during training; below, final results by terms beside the paper's.
    """
    outcomes.check_kind(records, "terms")
    other = ("Other methods", "")
    return _draw(records, out, lambda method: _STEPS.get(method.step or "", other))


def draw_limit(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 5 to ``out``: the same with a column for each lambda_max (`lr`)."""
    outcomes.check_kind(records, "limit")

    def bound_of(method: PlannedMethod) -> tuple[str, str]:
        text = "default" if method.lr is None else f"{method.lr:g}"
        return f"\u03bb max = {text}", text

    return _draw(records, out, bound_of)


def _draw(
    records: Records,
    out: str | os.PathLike[str],
    name_of: Callable[[PlannedMethod], tuple[str, str]],
) -> Path:
    """Curves above, one column for each setting, and all results below.

    ``name_of`` gives a method's setting, as the title of a column and as a word for a row.
    """
    target = style.checked_path(out)
    groups: dict[str, list[Row]] = {}
    for key, method in records.plan.methods.items():
        title, word = name_of(method)
        terms = method.terms
        mine = groups.setdefault(title, [])
        label = TERM_NAMES.get(terms, terms) if terms else method.label
        group = list(groups).index(title)
        mine.append(Row(key, f"{label}, {word}" if word else label, look_of_terms(terms), group))
    rows = [row for mine in groups.values() for row in mine]
    with style.look():
        figure = style.new_figure(height=3.6 + 0.28 * len(rows))
        mosaic = figure.subplot_mosaic(
            _places(len(groups), with_paper=bool(records.plan.paper)),
            height_ratios=[2.0, 0.5 + 0.28 * len(rows)],
        )
        for i, (title, mine) in enumerate(groups.items()):
            axes = mosaic[f"curves {i}"]
            named = [Row(r.method, r.label.rpartition(", ")[0] or r.label, r.look) for r in mine]
            outcomes.draw_curves(axes, records, named)
            axes.set_title(title)
            if i:
                axes.set_ylabel("")
            else:
                axes.legend(handlelength=2.2, borderaxespad=0.1)
        outcomes.focus([mosaic[f"curves {i}"] for i in range(len(groups))], records)
        outcomes.draw_results(mosaic, records, rows)
    return outcomes.finish(figure, records, target, "Small dots: single runs.")


def _places(columns: int, *, with_paper: bool) -> list[Any]:
    """Two rows of panels of equal total width."""
    below = ["ours", "paper"] if with_paper else ["ours"]
    return [
        [f"curves {i // len(below)}" for i in range(columns * len(below))],
        [below[i // columns] for i in range(columns * len(below))],
    ]
