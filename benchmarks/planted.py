"""Three problems whose truth is known: one that Newton's steps win, one that SGD wins, a tie.

Every function takes the number of a study. Data and starting points of two studies differ, and
within a study the data are the same at every seed, as for any problem. An epoch has 8 or 12
batches. Units are such that the usual learning rates are not far from the best, so few are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.lab import Problem

__all__ = ["PROBLEMS", "Planted", "newton", "sgd", "tie"]

BATCH = 32

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Planted:
    """A problem by the number of a study, the method that wins it, and how often it may be missed.

    ``winner`` is None where no method differs from another; ``spare`` is a share of the studies.
    """

    make: Callable[[int], Problem]
    winner: str | None
    spare: float


class Point(nn.Module):
    """A point in space; the outputs are how far every example lies from it."""

    def __init__(self, start: Tensor):
        super().__init__()
        self.position = nn.Parameter(start)

    def forward(self, inputs: Tensor) -> Tensor:
        """The difference to every row."""
        return self.position - inputs


def newton(study: int) -> Problem:
    """A bowl along the axes: curvatures over six powers of ten, and as much to gain in each.

    A coordinate starts the farther away the flatter it is. One rate of SGD fits one curvature, and
    steps of one size, like Adam's, fit one distance. Gradient over curvature is the distance, in
    each. Takes 96 steps.
    """
    curvature = torch.logspace(-5, 1, 64)
    distance = 1e-3 / curvature.sqrt()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs.square() * curvature).sum(-1).mean()

    return _problem(_around(distance, study), loss, 0.03 * distance * _noise(study, 12, 64))


def sgd(study: int) -> Problem:
    """A bowl as wide in every direction but one, the mean of all coordinates, where it is narrow.

    That is least squares with features that are not centred. One rate fits all other directions.
    Eight coordinates start 300 times as far away as the others, so steps of one size fit either;
    and what is measured coordinate by coordinate is the narrow direction, which has a share in
    each. Takes 64 steps.
    """
    distance = torch.full((256,), 1e-3)
    distance[:8] = 0.3
    distance[::2] *= -1
    scale = 10 / (1 + len(distance))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * scale * (outputs.square().sum(-1) + outputs.sum(-1).square()).mean()

    return _problem(_around(distance, study), loss, 1e-3 * _noise(study, 8, len(distance)))


def tie(study: int) -> Problem:
    """A valley at either side of a ridge: the metric is how many coordinates end on the right.

    With all signs turned round the problem is the same, start and examples included, so no method
    ends there in more than half of the cases on average, at any rate. In which valley a coordinate
    ends depends on the method as well as on the seed, so there is something for luck to do. Takes
    64 steps.
    """
    size = 256
    half = 0.5 * _noise(study, 4, size)
    start = 0.1 * _draw(study, size)
    return _problem(start, _waves, torch.cat([half, -half]), metric=on_the_right, better="higher")


def _waves(outputs: Tensor, targets: Tensor) -> Tensor:
    return (torch.pi * outputs).cos().sum(-1).mean() / torch.pi


def on_the_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Percent of the coordinates that are positive."""
    return 100 * (outputs > 0).float().mean()


PROBLEMS = {
    "newton": Planted(newton, "naq-abs", 0.0),
    "sgd": Planted(sgd, "sgd-m", 0.0),
    "tie": Planted(tie, None, 0.1),
}
"""By the name of what wins."""


def _problem(start: Tensor, loss: Loss, noise: Tensor, **measure: Any) -> Problem:
    """A start, and a loss of examples that lie around zero; validation is at zero."""
    size = len(start)
    return Problem(
        model=Point(start),
        loss=loss,
        train=(noise, torch.zeros(len(noise))),
        validation=(torch.zeros(1, size), torch.zeros(1)),
        batch_size=BATCH,
        **measure,
    )


def _noise(study: int, batches: int, size: int) -> Tensor:
    """Normal, the same at every seed, with a mean of zero over so many batches."""
    generator = torch.Generator().manual_seed(study)
    drawn = torch.randn(BATCH * batches, size, generator=generator)
    return drawn - drawn.mean(0)


def _around(distance: Tensor, study: int) -> Tensor:
    """Starting points within some tenths of these."""
    return distance * (1 + 0.1 * _draw(study, len(distance)))


def _draw(study: int, size: int) -> Tensor:
    """Normal, another for every seed and study: the lab has seeded torch, by seed alone."""
    return torch.randn(1 + study, size)[study]
