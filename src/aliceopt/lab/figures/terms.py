"""Figure 4: which curvature terms help, with full quasi-Newton steps and with NAQ steps."""

from __future__ import annotations

import os
from pathlib import Path

from aliceopt.lab.figures import outcomes, style
from aliceopt.lab.figures.columns import draw_columns
from aliceopt.lab.records import Records
from aliceopt.lab.spec import PlannedMethod

__all__ = ["draw_terms"]

_STEPS = {
    "full": ("a) Full quasi-Newton steps", "full"),
    "naq": ("b) NAQ steps", "NAQ"),
}


def draw_terms(records: Records, out: str | os.PathLike[str]) -> Path:
    """Draw Figure 4 from the records of an experiment to ``out`` and return its path.

    Above, validation during training, a column for each kind of step; below, final results by
    terms beside the paper's.
    """
    outcomes.check_kind(records, "terms")
    return draw_columns(records, style.checked_path(out), _step_of)


def _step_of(method: PlannedMethod) -> tuple[str, str]:
    return _STEPS.get(method.step or "", ("Other methods", ""))
