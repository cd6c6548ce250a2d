"""The worked example of greedy steps."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from aliceopt.theory import curvature

from .estimate import mean
from .registry import Claim, Context, Measurement, register

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

ROWS, COLUMNS = 10, 100
PRINTED_LOSS = 5.6
EXAMPLE = "Greedy-step example"


class _Systems(NamedTuple):
    """Random underdetermined systems ``A x = b``: losses and lengths, one entry a system.

    Lengths are for right-hand sides scaled to the paper's loss at zero.
    """

    start: Tensor
    full: Tensor
    damped: Tensor
    full_length: Tensor
    least_length: Tensor


def _systems(context: Context) -> _Systems:
    """Losses ``|A x - b|^2 / 2`` at zero, after a quasi-Newton step from there, and after 10%."""

    def compute() -> _Systems:
        generator = context.generator("greedy")
        draws = context.draws(5_000, least=1_000)
        a = torch.randn(draws, ROWS, COLUMNS, generator=generator, dtype=torch.float64)
        b = torch.randn(draws, ROWS, 1, generator=generator, dtype=torch.float64)
        grad, hess = -(a.mT @ b).squeeze(2), a.square().sum(1)
        step = curvature.optimal_step(grad, torch.zeros_like(grad), hess)
        full, damped = (_losses(a, b, fraction * step) for fraction in (1.0, 0.1))
        start = _losses(a, b, torch.zeros_like(step))
        scale = (PRINTED_LOSS / start).sqrt()
        least = torch.linalg.solve(a @ a.mT, b)
        return _Systems(
            start,
            full,
            damped,
            full_length=scale * step.norm(dim=1),
            least_length=scale * (a.mT @ least).norm(dim=(1, 2)),
        )

    return context.once("greedy", compute)


def _losses(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return (a @ x[:, :, None] - b).square().sum(dim=(1, 2)) / 2


def _trial(draws: Tensor, expected: float, paper: float, power: float = 1.0) -> Measurement:
    """A mean against its exact value; the paper's single trial against the range of trials.

    With ``power`` 2 the root mean square is taken, whose square has the exact value. The range
    holds all but one trial in a thousand.
    """
    found = mean(draws**power)
    value, target = found.value ** (1 / power), expected ** (1 / power)
    low, five, middle, most, high = draws.quantile(
        torch.tensor([0.0005, 0.05, 0.5, 0.95, 0.9995], dtype=draws.dtype)
    ).tolist()
    return Measurement(
        value,
        target,
        error=found.error * value / (power * found.value),
        paper=paper,
        spread=(low, high),
        note=f"median {middle:.3g}, 5% to 95%: {five:.3g} to {most:.3g}",
    )


@claim(
    "greedy-start",
    EXAMPLE,
    "Loss at zero of a random 10 x 100 system: mean",
    paper="5.6, one trial",
)
def start_loss(context: Context) -> Measurement:
    """``|b|^2 / 2`` has mean ``rows / 2``."""
    return _trial(_systems(context).start, ROWS / 2, PRINTED_LOSS)


@claim(
    "greedy-full",
    EXAMPLE,
    "A full quasi-Newton step from zero multiplies the loss by: mean",
    paper="83, one trial",
)
def full_step(context: Context) -> Measurement:
    """The step is ``S - 1`` times b, ``S`` a sum of n random projections in r dimensions.

    ``E[S] = n/r`` and ``E[S^2] = n(n-1)/r^2 + n/r``, so the loss grows by
    ``(n/r - 1)^2 + (n/r)(1 - 1/r)`` in the mean.
    """
    systems = _systems(context)
    return _trial(systems.full / systems.start, _mean_growth(1.0), 464.6 / PRINTED_LOSS)


def _mean_growth(fraction: float) -> float:
    """``E |f S b - b|^2 / |b|^2`` for a fraction f of the full step."""
    load = COLUMNS / ROWS
    second = COLUMNS * (COLUMNS - 1) / ROWS**2 + load
    return fraction**2 * second - 2 * fraction * load + 1


@claim(
    "greedy-damped",
    EXAMPLE,
    "10% of the quasi-Newton step multiplies the loss by: mean",
    paper="0.14, one trial",
)
def damped_step(context: Context) -> Measurement:
    """``E |S b / 10 - b|^2 / |b|^2``, below 1."""
    systems = _systems(context)
    return _trial(systems.damped / systems.start, _mean_growth(0.1), 0.8 / PRINTED_LOSS)


@claim(
    "greedy-length",
    EXAMPLE,
    "Length of the full step at loss 5.6: root mean square",
    paper="3.75, one trial",
)
def full_length(context: Context) -> Measurement:
    """``E |x|^2 = n |b|^2 / (r (r - 2))``, since ``E 1/|a|^2 = 1/(r - 2)`` for a column a."""
    expected = COLUMNS * 2 * PRINTED_LOSS / (ROWS * (ROWS - 2))
    return _trial(_systems(context).full_length, expected, 3.75, power=2)


@claim(
    "greedy-least",
    EXAMPLE,
    "Length of the minimal solution at loss 5.6: root mean square",
    paper="1.1, one trial",
    correction="no system with standard normal entries has so long a minimal solution at that "
    "loss; the other numbers of the example are plausible",
)
def least_length(context: Context) -> Measurement:
    """``E |x_min|^2 = |b|^2 / (n - r - 1)``, the mean of an inverse Wishart matrix."""
    expected = 2 * PRINTED_LOSS / (COLUMNS - ROWS - 1)
    return _trial(_systems(context).least_length, expected, 1.1, power=2)
