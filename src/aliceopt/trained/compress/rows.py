"""What ``aliceopt compress`` compares: criteria of pruning, what is asked of them, and results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from aliceopt.compress import CRITERIA
from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.words import meant

STRUCTURES = ("unstructured", "2:4")

POINT = 1e-4
"""The radius that stands for none."""


# ---- criteria ----------------------------------------------------------------------------------


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
    beside: tuple[str, ...] = ()
    """Terms that are measured and not scored."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Of a sensitivity, that are measured."""
        return (*CRITERIA[self.criterion][0], *self.beside) if self.gradients else ()

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
    "point": Row("h at a point: h w\u00b2", "curvature", 2, 1.0, POINT),
    "point-refit": Row(
        "h w\u00b2 at a point, what stays fitted anew", "curvature", 2, 1.0, POINT, refit=True
    ),
    "curvature": Row("h over a radius: h w\u00b2", "curvature", 2),
    "refit": Row("h w\u00b2, what stays fitted anew", "curvature", 2, refit=True),
    "free": Row("h free of kinks: h w\u00b2", "free", 3),
    "curvature-few": Row(
        "h over a radius, on the batches of glass", "curvature", 3, beside=("glass",)
    ),
    "glass": Row("glass, by Theorem 4", "glass", 3),
    "both": Row("h and glass, by Theorem 4", "both", 3),
    "both-refit": Row("h and glass, what stays fitted anew", "both", 3, refit=True),
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
        raise PlanError(f"--criteria: no criterion {key!r}{meant(key, ROWS)}")
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


# ---- what is asked, and what comes out ---------------------------------------------------------


class Group(NamedTuple):
    """What results of one table share; the budget are the gradients allowed."""

    structure: str
    rounds: int
    finetune: float
    budget: int

    def in_words(self) -> str:
        """For a heading.

        >>> Group("2:4", 1, 2, 300).in_words()
        '2:4, 300 gradients, in one round, 2 epochs of training with the masks on'
        """
        said = ["2:4"] if self.structure == "2:4" else []
        said.append(f"{self.budget} gradients")
        said.append("in one round" if self.rounds == 1 else f"in {self.rounds} rounds")
        if self.finetune:
            epochs = "epoch" if self.finetune == 1 else "epochs"
            said.append(f"{self.finetune:g} {epochs} of training with the masks on")
        return ", ".join(said)


Key = tuple[str, float, Group]
"""What a result was asked for by, but the seed: criterion, sparsity and group."""


@dataclass(frozen=True)
class Result:
    """A network pruned by one criterion to one sparsity.

    ``removed`` is the share that went: less than the sparsity where 2:4 leaves layers dense.
    ``gradients`` and ``seconds`` are those of the scores, all rounds, up to the masks; seconds are
    None where other work shared the device. ``temper`` is the exponent, the last round's if it is
    chosen in each.
    """

    criterion: str
    sparsity: float
    seed: int
    loss: float
    metric: float
    gradients: int = 0
    seconds: float | None = 0.0
    temper: float | None = None
    radius: float | None = None
    removed: float = 0.0
    structure: str = "unstructured"
    rounds: int = 1
    finetune: float = 0
    budget: int = 0

    @property
    def group(self) -> Group:
        """The table that it belongs to."""
        return Group(self.structure, self.rounds, self.finetune, self.budget)

    @property
    def key(self) -> Key:
        """See `Key`."""
        return self.criterion, self.sparsity, self.group


WHOLE: Key = ("none", 0.0, Group("unstructured", 1, 0, 0))
"""The network before anything is removed."""


@dataclass(frozen=True)
class Ask:
    """What is compared, with what; checked before anything is trained."""

    sparsities: tuple[float, ...]
    criteria: tuple[str, ...] = tuple(ROWS)
    gradients: int = 300
    finetune: float = 0
    rounds: int = 1
    structure: str = "unstructured"
    layers: float | None = None
    """A share of every layer alone, whose removal is predicted and measured; None: not."""

    def __post_init__(self) -> None:
        for sparsity in self.sparsities:
            if not 0 < sparsity < 1:
                raise PlanError(f"--sparsity must be numbers in (0, 1), got {sparsity!r}")
        if self.rounds < 1:
            raise PlanError(f"--rounds must be a whole number >= 1, got {self.rounds}")
        if self.gradients < 10 * self.rounds:
            raise PlanError(f"--gradients must be at least 10 a round, got {self.gradients}")
        if not 0 <= self.finetune < math.inf:
            raise PlanError(f"--finetune must be a number of epochs >= 0, got {self.finetune:g}")
        if self.structure not in STRUCTURES:
            raise PlanError(
                f"--structure must be one of {', '.join(STRUCTURES)}; got {self.structure!r}"
            )
        if self.structure == "2:4" and (self.sparsities != (0.5,) or self.rounds != 1):
            raise PlanError("--structure 2:4 removes one half in one round: no other --sparsity")
        if len(set(self.sparsities)) < len(self.sparsities):
            raise PlanError("--sparsity must be different numbers, and one is there twice")
        if self.layers is not None and not 0 < self.layers < 1:
            raise PlanError(f"--layers must be a number in (0, 1), got {self.layers!r}")
        if not self.criteria:
            raise PlanError(f"--criteria must name some of {', '.join(ROWS)}; got none")
        criteria = dict.fromkeys(map(spelled, self.criteria))
        object.__setattr__(self, "criteria", tuple(criteria))

    @property
    def group(self) -> Group:
        """The table that the results belong to."""
        return Group(self.structure, self.rounds, self.finetune, self.gradients)


PREDICTED = {
    "fisher": "Fisher",
    "point": "h at a point",
    "radius": "h over a radius",
    "glass": "with gradient and glass",
}
"""Half of Fisher's, of the Hessian's diagonal at a point, of that over a radius; the last with the
first-order term and the glass."""


@dataclass(frozen=True)
class LayerIncrease:
    """A share of one layer removed: the rise that was measured, and those predicted."""

    layer: str
    measured: float
    predicted: dict[str, float]
