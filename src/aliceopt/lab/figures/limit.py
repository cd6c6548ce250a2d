"""Figure 5: what a larger upper bound of the step, lambda_max, does for each curvature term."""

from __future__ import annotations

import os
from pathlib import Path

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.columns import draw_columns
from aliceopt.lab.records import Records
from aliceopt.lab.spec import PlannedMethod

__all__ = ["draw_limit"]


def draw_limit(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 5 from the records of an experiment to ``out`` and return its path.

    Above, validation during training, a column for each lambda_max (`lr`); below, final results
    by terms beside the paper's.
    """
    outcomes.check_kind(records, "limit")
    return draw_columns(records, style.checked_path(out), _bound_of)


def _bound_of(method: PlannedMethod) -> tuple[str, str]:
    text = "default" if method.lr is None else f"{method.lr:g}"
    return f"\u03bb max = {text}", text
