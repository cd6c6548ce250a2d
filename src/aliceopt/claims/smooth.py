"""Figure 1's exponent where there is no glass: smooth gradients that saturate have p below 2."""

from __future__ import annotations

import functools
import math

import torch
from torch.nn import functional as F

from aliceopt.landscape import power_law

from .registry import Claim, Context, Measurement, register

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

RADIUS = 0.5
LADDER = (1e-3, 0.1, 0.2, 0.5)


@claim(
    "fig1-cubic",
    "Figure 1",
    f"Exponent p of the gradient x - x^3/6 at radius {RADIUS}",
    paper=">= 2",
    correction="a gradient that saturates has p below 2 at a finite radius, however smooth it is, "
    "and two terms of a Taylor series are enough: p tells glass only as the radius shrinks",
)
def cubic_gradient(context: Context) -> Measurement:
    """``p = 2 log2((2 r - (2 r)^3/6)/(r - r^3/6))``, from two terms of the sine's series."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def closure() -> None:
        (x.square() / 2 - x**4 / 24).sum().backward()

    law = power_law([x], closure, RADIUS, directions=2)
    near, far = (r - r**3 / 6 for r in (RADIUS, 2 * RADIUS))
    expected = 2 * math.log2(far / near)
    return Measurement(law.total.exponent, expected, tolerance=1e-9, paper=2.0, paper_relation=">=")


@claim(
    "fig1-softmax",
    "Figure 1",
    f"Softmax regression, convex and analytic: exponent p at radius {LADDER[0]}",
    paper="p = 2",
)
def softmax_ladder(context: Context) -> Measurement:
    """At the small end of a ladder of radii a smooth loss shows its Hessian, 2.

    At the large end probabilities saturate, the gradient stops changing, and p falls below 1.
    """
    generator = context.generator("fig1-softmax")
    inputs = torch.randn(64, 32, generator=generator, dtype=torch.float64)
    teacher, weight = torch.randn(2, 32, 10, generator=generator, dtype=torch.float64)
    labels = (inputs @ teacher).argmax(1)
    weight = (weight / 32**0.5).requires_grad_()

    def closure() -> None:
        F.cross_entropy(inputs @ weight, labels).backward()

    found = [power_law([weight], closure, r, directions=16).total.exponent for r in LADDER]
    rest = ", ".join(f"{p:.2f} at {r:g}" for r, p in zip(LADDER[1:], found[1:], strict=True))
    return Measurement(found[0], 2.0, tolerance=0.01, paper=2.0, note=rest)
