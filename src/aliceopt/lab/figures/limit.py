"""Figure 5: what a larger upper bound of the step, lambda_max, does for each curvature term."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.columns import draw_columns

__all__ = ["draw_limit"]


def draw_limit(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Draw Figure 5 from the records in ``folder`` to ``out`` and return its path.

    Above, validation during training, a column for each lambda_max (`lr`); below, final results
    by terms beside the paper's.
    """
    return draw_columns(outcomes.load(folder, "limit"), style.checked_path(out), _bound_of)


def _bound_of(method: Mapping[str, Any]) -> tuple[str, str]:
    bound = method["options"].get("lr")
    text = "default" if bound is None else f"{bound:g}"
    return f"\u03bb max = {text}", text
