"""Theorems 4 and 5: what a glass may do to the loss, and the step that is best against it."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from aliceopt.theory import curvature, glass_bound

from .estimate import estimate, exponent, mean
from .registry import Claim, Context, Measurement, register

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

KINKS = 64
PRINTED_FACTOR = math.sqrt(2 / (3 * math.pi))
ONE = torch.ones(1, dtype=torch.float64)


def _loss_changes(context: Context) -> tuple[Tensor, Tensor]:
    """Loss changes over distances 1 and 2 of a glass of density 1: 64 kinks per unit length.

    Kinks lie at uniform places u and add jumps of mean zero and variance 1/64, uniform on an
    interval, to the slope; each changes the loss at d by ``(d - u)`` times its jump.
    """

    def compute() -> tuple[Tensor, Tensor]:
        generator = context.generator("thm4")
        shape = (2, context.draws(30_000), 2 * KINKS)
        places, jumps = torch.rand(shape, generator=generator, dtype=torch.float64)
        jumps = (2 * jumps - 1) * math.sqrt(3 / KINKS)
        near, far = ((torch.relu(d - 2 * places) * jumps).sum(1) for d in (1, 2))
        return near, far

    return context.once("thm4", compute)


@claim(
    "thm4-variance",
    "Theorem 4",
    "Mean square loss change over distance 1 in a glass of density 1",
    paper="1/3",
)
def loss_variance(context: Context) -> Measurement:
    """``E Delta^2 = rho |d|^3 / 3``."""
    measured = mean(_loss_changes(context)[0].square())
    expected = glass_bound.loss_variance(ONE, ONE).item()
    return Measurement(measured.value, expected, error=measured.error, paper=1 / 3)


@claim(
    "thm4-mean",
    "Theorem 4",
    "Mean absolute loss change over distance 1 in a glass of density 1",
    paper="sqrt(2/3pi)",
)
def loss_mean(context: Context) -> Measurement:
    """``E |Delta| = sqrt(2/(3 pi)) sqrt(rho) |d|^(3/2)``."""
    measured = mean(_loss_changes(context)[0].abs())
    expected = glass_bound.glass_loss_bound(ONE, ONE).item()
    return Measurement(measured.value, expected, error=measured.error, paper=PRINTED_FACTOR)


@claim(
    "thm4-power",
    "Theorem 4",
    "Mean absolute loss change as a power of the distance",
    paper="3/2",
)
def loss_power(context: Context) -> Measurement:
    """Between ``|d|`` of a gradient and ``d^2`` of a Hessian: a glass gives ``|d|^(3/2)``."""
    near, far = _loss_changes(context)
    measured = exponent(near.abs(), far.abs())
    bounds = [glass_bound.glass_loss_bound(ONE, d * ONE) for d in (1, 2)]
    expected = torch.log2(bounds[1] / bounds[0]).item()
    return Measurement(measured.value, expected, error=measured.error, paper=1.5)


class _Floors(NamedTuple):
    """Loss at distance 1, [draws], under four ways to keep it above the floor 0."""

    elastic: Tensor
    clipped: Tensor
    pushed: Tensor
    inelastic: Tensor


def _floors(context: Context) -> _Floors:
    """Many kinks along one path, with every floor applied step by step.

    Elastic: the loss bounces, the slope changes sign. Clipped: only the end is cut, max(Delta, 0).
    Pushed: the least push that keeps the path above the floor (Skorokhod), which leaves slopes
    alone. Inelastic: a path that hits the floor stops there until a kink lifts it again.
    """

    def compute() -> _Floors:
        generator = context.generator("floors")
        draws = context.draws(10_000)
        free, lowest, bounced, bounce_slope, stopped, stop_slope, slope = torch.zeros(
            7, draws, dtype=torch.float64
        )
        # A kink in the middle of each cell: half a cell, jump, half a cell.
        lengths = [0.5 / KINKS] + [1.0 / KINKS] * (KINKS - 1) + [0.5 / KINKS]
        for length in lengths:
            free = free + length * slope
            lowest = torch.minimum(lowest, free)
            bounced = bounced + length * bounce_slope
            bounce_slope = torch.where(bounced < 0, -bounce_slope, bounce_slope)
            bounced = bounced.abs()
            stopped = stopped + length * stop_slope
            stop_slope = torch.where(stopped <= 0, 0.0, stop_slope)
            stopped = stopped.clamp(min=0)
            jump = torch.randn(draws, generator=generator, dtype=torch.float64) / KINKS**0.5
            slope, bounce_slope = slope + jump, bounce_slope + jump
            stop_slope = torch.where(stopped <= 0, jump.clamp(min=0), stop_slope + jump)
        return _Floors(bounced, free.clamp(min=0), free - lowest, stopped)

    return context.once("floors", compute)


@claim(
    "thm4-elastic",
    "Theorem 4",
    "Mean loss over distance 1 when every path bounces off the floor",
    paper="sqrt(2/3pi)",
)
def elastic(context: Context) -> Measurement:
    """Bouncing turns the virtual path ``Delta`` into ``|Delta|``, as the proof has it.

    Jumps are symmetric, so a path with its slope reversed is as likely as the path itself.
    """
    measured = mean(_floors(context).elastic)
    expected = glass_bound.glass_loss_bound(ONE, ONE).item()
    return Measurement(
        measured.value, expected, error=measured.error, tolerance=1e-4, paper=PRINTED_FACTOR
    )


@claim(
    "thm4-reflection",
    "Theorem 4",
    "Largest mean loss of the other floors: clipping, pushing, inelastic stops",
    paper="<= sqrt(2/3pi)",
)
def other_floors(context: Context) -> Measurement:
    """Elastic reflection gives the largest rise of the usual floors.

    It alone keeps the speed at which a path arrives. Clipping discards every path that ends
    below the floor, half of them; pushing lifts the loss but leaves the downward slope, which
    keeps it at the floor; an inelastic stop discards the slope.
    """
    floors = _floors(context)
    others = [mean(x) for x in (floors.clipped, floors.pushed, floors.inelastic)]
    largest = max(others, key=lambda found: found.value)
    bound = glass_bound.glass_loss_bound(ONE, ONE).item()
    return Measurement(
        largest.value,
        bound,
        error=largest.error,
        relation="<=",
        paper=PRINTED_FACTOR,
        paper_relation="<=",
        note="clipped {:.3f}, pushed {:.3f}, inelastic {:.3f}".format(*(x.value for x in others)),
    )


def _minimise_bound(grad: Tensor, density: Tensor, hess: Tensor) -> Tensor:
    """Step length that minimises `loss_bound`, coordinate by coordinate, by bisection.

    The bound is convex along the descent direction, so its slope, by automatic differentiation,
    changes sign once. Bisection in the logarithm, from 1e-20 to 1e20.
    """
    low = torch.full_like(grad, math.log(1e-20))
    high = -low
    for _ in range(90):
        middle = (low + high) / 2
        length = middle.exp().requires_grad_()
        step = -grad.sign() * length
        columns = (x[:, None] for x in (step, grad, density, hess))
        (slope,) = torch.autograd.grad(glass_bound.loss_bound(*columns).sum(), length)
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return (-grad.sign() * ((low + high) / 2).exp()).detach()


def _inputs(context: Context, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """500 gradients of both signs, densities and Hessians, log-uniform from 1e-4 to 1e4."""
    generator = context.generator(name)
    grad, density, hess = 10 ** (
        8 * torch.rand(3, 500, generator=generator, dtype=torch.float64) - 4
    )
    signs = torch.where(torch.rand(500, generator=generator) < 0.5, -1.0, 1.0)
    return grad * signs, density, hess


@claim(
    "thm5-minimiser",
    "Theorem 5",
    "The closed form minus a numeric minimiser of the bound, largest relative gap",
    paper="none",
)
def minimiser(context: Context) -> Measurement:
    """``d = -g / hbar`` minimises ``d g + h d^2/2 + sqrt(2 rho/(3 pi)) |d|^(3/2)``."""
    grad, density, hess = _inputs(context, "thm5")
    numeric = _minimise_bound(grad, density, hess)
    closed = curvature.optimal_step(grad, density, hess)
    gap = ((closed - numeric) / numeric).abs().max().item()
    return Measurement(gap, 0.0, tolerance=1e-6, paper=0.0)


@claim(
    "thm5-no-glass",
    "Theorem 5",
    "Without glass the best step, over |g| / h",
    paper="1",
)
def without_glass(context: Context) -> Measurement:
    """``rho = 0``: the Newton step ``|g| / h``; largest deviation from it."""
    grad, _, hess = _inputs(context, "thm5-no-glass")
    none = torch.zeros_like(grad)
    return _limit(grad, none, hess, unit=grad.abs() / hess)


@claim(
    "thm5-no-hessian",
    "Theorem 5",
    "Without Hessian the best step, over 2 pi g^2 / (3 rho)",
    paper="1",
)
def without_hessian(context: Context) -> Measurement:
    """``h = 0``: the step ``2 pi g^2 / (3 rho)``; largest deviation from it."""
    grad, density, _ = _inputs(context, "thm5-no-hessian")
    none = torch.zeros_like(grad)
    return _limit(grad, density, none, unit=2 * math.pi * grad.square() / (3 * density))


def _limit(grad: Tensor, density: Tensor, hess: Tensor, unit: Tensor) -> Measurement:
    """Numeric and closed-form steps in units of a limit, where the first is farthest from 1."""
    numeric = _minimise_bound(grad, density, hess).abs() / unit
    closed = curvature.optimal_step(grad, density, hess).abs() / unit
    worst = int((numeric - 1).abs().argmax())
    return Measurement(numeric[worst].item(), closed[worst].item(), tolerance=1e-6, paper=1.0)


def _minimise_joint(grad: Tensor, density: Tensor, hess: Tensor) -> Tensor:
    """The minimiser of the bound as Theorem 5 displays it, one root over all coordinates."""
    step = (-0.5 * grad / hess).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [step],
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = glass_bound.loss_bound(step, grad, density, hess, joint=True)
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    return step.detach()


@claim(
    "thm5-display",
    "Theorem 5",
    "Minimiser of the displayed bound, root of a sum, over the closed form (4 coordinates)",
    paper="1",
    correction="the closed form minimises the sum of roots of Theorem 4; the root of a sum that "
    "Theorem 5 displays couples the coordinates and has a longer best step",
)
def display(context: Context) -> Measurement:
    """With n equal coordinates the root of the sum acts as a density ``rho / n`` in each."""
    grad, density, hess = (torch.full((4,), x, dtype=torch.float64) for x in (1.0, 3.0, 0.5))
    closed = curvature.optimal_step(grad, density, hess)
    measured = (_minimise_joint(grad, density, hess) / closed).mean().item()
    expected = (curvature.optimal_step(grad, density / 4, hess) / closed).mean().item()
    return Measurement(measured, expected, tolerance=1e-4, paper=1.0)


@claim(
    "thm5-root",
    "Theorem 5",
    "Floors in each of 4 equal coordinates over one floor for all: ratio of mean loss",
    paper="1",
    correction="Theorem 4 sums roots, Theorem 5 displays the root of a sum; in n equal "
    "coordinates they differ by the root of n",
)
def roots(context: Context) -> Measurement:
    """``E sum |Delta_i| / E |sum Delta_i| = sqrt(n)`` for equal coordinates."""
    changes = _loss_changes(context)[0]
    changes = changes[: len(changes) // 4 * 4].view(-1, 4)
    measured = estimate(lambda a, b: a / b, changes.abs().sum(1), changes.sum(1).abs())
    ones = torch.ones(4, dtype=torch.float64)
    separate, joint = (glass_bound.glass_loss_bound(ones, ones, joint=j) for j in (False, True))
    return Measurement(measured.value, (separate / joint).item(), error=measured.error, paper=1.0)


@claim(
    "thm5-root-limit",
    "Theorem 5",
    "Sum of roots over root of sum, over the root of the dimension: largest of 1000",
    paper="not stated",
)
def root_limit(context: Context) -> Measurement:
    """By Cauchy and Schwarz the ratio lies between 1 and ``sqrt(n)``; here n = 8."""
    generator = context.generator("root-limit")
    width = 4 * torch.rand(1000, 1, generator=generator, dtype=torch.float64)
    density, steps = (
        (width * torch.randn(2, 1000, 8, generator=generator, dtype=torch.float64)).exp().unbind()
    )
    separate, joint = (glass_bound.glass_loss_bound(density, steps, joint=j) for j in (False, True))
    measured = (separate / joint).max().item() / math.sqrt(8)
    return Measurement(measured, 1.0, tolerance=1e-12, relation="<=")
