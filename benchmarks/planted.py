"""Problems whose truth is known: Newton's steps win, SGD wins, or there is a tie.

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

__all__ = ["PROBLEMS", "Planted", "logs", "newton", "sgd", "spread", "tie"]

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
    return _along_axes(study, _around(AXES, study))


def spread(study: int) -> Problem:
    """The same, but starting points are normal, and some are several times as far away as others.

    Losses of one method then spread over powers of ten between seeds, except for the winner's. It
    is still ahead at every seed.
    """
    return _along_axes(study, AXES * _draw(study, len(AXES)))


def logs(study: int) -> Problem:
    """`spread`, judged by the logarithm of the loss."""
    return _along_axes(study, AXES * _draw(study, len(AXES)), metric=log_loss, better="lower")


CURVATURE = torch.logspace(-5, 1, 64)
AXES = 1e-3 / CURVATURE.sqrt()
"""How far away coordinates start that have these curvatures."""


def _along_axes(study: int, start: Tensor, **measure: Any) -> Problem:
    noise = 0.03 * AXES * _noise(study, 12, len(AXES))
    return _problem(start, _bowl, noise, **measure)


def _bowl(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.square() * CURVATURE).sum(-1).mean()


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Powers of ten of the loss."""
    return _bowl(outputs, targets).log10()


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
    "spread": Planted(spread, "naq-abs", 0.0),
    "logs": Planted(logs, "naq-abs", 0.0),
    "sgd": Planted(sgd, "sgd-m", 0.0),
    "tie": Planted(tie, None, 0.1),
}
"""By name."""


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
