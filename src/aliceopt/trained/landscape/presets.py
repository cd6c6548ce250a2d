"""How much ``aliceopt landscape`` measures, and what that costs, known beforehand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.typed import Count, Positive, checked, whole
from aliceopt.lab.words import counted
from aliceopt.landscape.floor import CHOOSING_GRADIENTS
from aliceopt.landscape.subject import Blocks

__all__ = [
    "INSTRUMENTS",
    "PARTS",
    "PRECISIONS",
    "PRESETS",
    "Asked",
    "Cost",
    "Preset",
    "checked_batches",
    "climbing",
    "cost_of",
]

PARTS = ("training", "held-out")
"""Kinds of batches."""

PRECISIONS = ("float32", "float64", "tf32", "bf16")
"""How a network may be measured."""

INSTRUMENTS = ("radii", "ladder", "bounds", "diagonals", "slices")
"""What gradients and losses are taken for, in this order."""


class Preset(NamedTuple):
    """How much is measured: radii, directions a batch, batches of each kind, points of slices.

    Bounds are checked on half of the batches, at the middle and the largest radius, diagonals
    measured at the middle one, with as many directions; slices are cut on one batch. ``plane``
    are the points of a slice along two directions, on each side of the square; 0: none.
    """

    radii: int
    directions: int
    batches: int
    points: int
    plane: int


PRESETS = {
    "quick": Preset(5, 2, 2, 9, 0),
    "standard": Preset(7, 4, 4, 11, 5),
    "thorough": Preset(10, 8, 8, 31, 15),
}
"""By name."""


@dataclass(frozen=True)
class Asked:
    """What is to be measured, and how; what cannot be is refused before a network is trained.

    ``blocks`` as for `aliceopt.landscape.ladder`; None: those that the model names itself, or the
    first parts of names. ``radius`` is the smallest, chosen if None. ``evaluating`` measures in
    evaluation mode. ``coordinates`` keeps the curvature of every coordinate, ``exact`` compares
    its sums with the exact Hessian, and ``between`` are other weights, to cut a slice to.
    """

    preset: Preset
    batch_size: int | None = None
    blocks: Blocks = None
    precision: str = "float32"
    seed: int = 0
    parts: tuple[str, ...] = PARTS
    evaluating: bool = False
    radius: float | None = None
    coordinates: bool = False
    exact: bool = False
    between: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise PlanError(
                f"--precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}"
            )
        checked(Count | None, self.batch_size, "--batch-size")
        checked(Positive | None, self.radius, "--radius")
        checked(whole(0), self.seed, "--seed")
        if isinstance(self.blocks, int):
            checked(Count, self.blocks, "--blocks")
        elif isinstance(self.blocks, str):
            try:
                re.compile(self.blocks)
            except re.error as error:
                raise PlanError(
                    f"--blocks is no regular expression, got {self.blocks!r}: {error}"
                ) from None


class Cost(NamedTuple):
    """Gradients, each a forward and a backward pass, and losses, each a forward pass alone."""

    gradients: int
    losses: int

    @property
    def evaluations(self) -> int:
        """Of both kinds."""
        return self.gradients + self.losses

    def in_words(self) -> str:
        """Of both, losses only where there are some."""
        told = counted(self.gradients, "gradient")
        return f"{told} and {counted(self.losses, 'loss', 'losses')}" if self.losses else told


def cost_of(asked: Asked, networks: int) -> Cost:
    """What will be taken; less where there are fewer batches."""
    _, directions, batches, points, plane = asked.preset
    probing = 1 + 2 * directions
    checks, moves = 2 * checked_batches(batches), 3 + 2 * directions
    lines = 3 + (asked.between is not None)
    measured = 1 + (asked.between is not None)  # slices that begin alike share their probes
    gradients = climbing(asked.preset) + (batches + checks + measured) * probing
    losses = checks * moves + lines * (points - 1) + max(0, plane**2 - 1)
    each = len(asked.parts) * networks
    return Cost(networks * CHOOSING_GRADIENTS + each * gradients, each * losses)


def climbing(preset: Preset) -> int:
    """Gradients of a ladder on one kind of batches."""
    return preset.batches * (1 + 2 * preset.directions * preset.radii)


def checked_batches(batches: int) -> int:
    """On how many of them the bounds are checked."""
    return (batches + 1) // 2
