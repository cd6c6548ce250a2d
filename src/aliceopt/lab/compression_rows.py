"""The criteria of pruning that are compared, by name."""

from __future__ import annotations

import math
from typing import NamedTuple

from aliceopt.compress import CRITERIA
from aliceopt.lab.plan import PlanError

__all__ = ["ROWS", "Row", "row_of", "spelled"]


class Row(NamedTuple):
    """A criterion: its score, gradients a batch, its exponent (None: by loss), its radius."""

    label: str
    criterion: str
    gradients: int
    temper: float | None = 1.0
    radius: float | None = None
    scope: str = "global"
    refit: bool = False
    """Whether what stays is fitted to the outputs of before."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Of a sensitivity, that the score needs."""
        return CRITERIA[self.criterion][0] if self.gradients else ()

    @property
    def kind(self) -> tuple[str | int, float | None]:
        """The same for criteria whose measurements of the whole network are one and the same."""
        return self.gradients or self.criterion, self.radius


ROWS: dict[str, Row] = {
    "magnitude": Row("magnitude", "magnitude", 0),
    "wanda": Row("Wanda: |w| times its inputs, by row", "wanda", 0, scope="row"),
    "wanda-torchao": Row(
        "Wanda as in torchao: |w| times inputs\u00b2", "wanda", 0, 2.0, scope="layer"
    ),
    "sparsegpt": Row("SparseGPT: updates what stays, by layer", "sparsegpt", 0),
    "magnitude-refit": Row("magnitude, what stays fitted anew", "magnitude", 0, refit=True),
    "wanda-refit": Row("Wanda, what stays fitted anew", "wanda", 0, scope="row", refit=True),
    "taylor": Row("Taylor: |g w|", "taylor", 1),
    "fisher": Row("Fisher: F w\u00b2", "fisher", 1),
    "fisher-root": Row("Fisher, tempered: F^\u00bd w\u00b2", "fisher", 1, 0.5),
    "fisher-measured": Row("F^a w\u00b2, a by loss", "fisher", 1, None),
    "fisher-refit": Row("F^\u00bd w\u00b2, what stays fitted anew", "fisher", 1, 0.5, refit=True),
    "fisher-measured-refit": Row(
        "F^a w\u00b2, a by loss, fitted anew", "fisher", 1, None, refit=True
    ),
    "point": Row("h at a point: h w\u00b2", "curvature", 2, 1.0, 1e-4),
    "curvature": Row("h over a radius: h w\u00b2", "curvature", 2),
    "refit": Row("h w\u00b2, what stays fitted anew", "curvature", 2, refit=True),
    "free": Row("h free of kinks: h w\u00b2", "free", 3),
    "both": Row("h and glass, by Theorem 4", "both", 3),
    "measured": Row("h^a w\u00b2, a by loss", "curvature", 2, None),
    "measured-refit": Row("h^a w\u00b2, a by loss, fitted anew", "curvature", 2, None, refit=True),
}
"""By the names of ``--criteria``; ``curvature@1e-3`` is the criterion at another radius."""


def spelled(name: str) -> str:
    """The name with its radius written in one way: ``curvature@0.001`` also for ``@1e-3``."""
    row, (key, at, _) = row_of(name), name.partition("@")
    return f"{key}@{row.radius:g}" if at else key


def row_of(name: str) -> Row:
    """The criterion of a name, perhaps at a radius of its own."""
    key, at, radius = name.partition("@")
    if key not in ROWS:
        raise PlanError(f"--criteria has {name!r}; there are {', '.join(ROWS)}")
    row = ROWS[key]
    if not at:
        return row
    try:
        value = float(radius)
    except ValueError:
        value = 0.0
    if row.gradients < 2 or not 0 < value < math.inf:
        raise PlanError(
            f"--criteria has {name!r}: a radius > 0 stands behind the @ of one that probes, like "
            "curvature@1e-3"
        )
    return row._replace(label=f"{row.label}, radius {value:g}", radius=value)
