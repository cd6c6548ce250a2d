"""Figure 4: which curvature terms help, with full quasi-Newton steps and with NAQ steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.columns import draw_columns

__all__ = ["draw_terms"]

_STEPS = {
    "full": ("a) Full quasi-Newton steps", "full"),
    "naq": ("b) NAQ steps", "NAQ"),
}


def draw_terms(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Draw Figure 4 from the records in ``folder`` to ``out`` and return its path.

    Above, validation during training, a column for each kind of step; below, final results by
    terms beside the paper's.
    """
    return draw_columns(outcomes.load(folder, "terms"), style.checked_path(out), _step_of)


def _step_of(method: Mapping[str, Any]) -> tuple[str, str]:
    return _STEPS.get(method.get("step") or "", ("Other methods", ""))
