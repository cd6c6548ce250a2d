"""Theorem 1 on explicit hyperplanes: gradient variations grow linearly and stay below ``R |d|``."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from aliceopt import topography
from aliceopt.theory import relu_glass
from aliceopt.topography import Gradients

from .estimate import estimate, exponent, mean
from .registry import Claim, Context, Measurement, register
from .simulated_glass import Kinks, random_signs, sample_kinks

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

RADIUS = 0.02
THRESHOLD = 1.0  # far above any |d . gamma| at twice this radius


class Variations(NamedTuple):
    """One random sign vector in many glasses: gradient changes [draws, parameters].

    ``plus`` and ``minus`` at ``RADIUS`` to either side, ``far`` at twice it, in other glasses.
    """

    kinks: Kinks
    signs: Tensor
    plus: Tensor
    minus: Tensor
    far: Tensor

    @property
    def near(self) -> Tensor:
        """Squared changes on one side, summed over parameters."""
        return self.plus.square().sum(1)


def _variations(context: Context) -> Variations:
    """Changes at ``RADIUS``, to both sides, and at twice it, in separate glasses."""

    def compute() -> Variations:
        generator = context.generator("glass")
        kinks = sample_kinks(units=40, parameters=8, threshold=THRESHOLD, generator=generator)
        signs = random_signs((8,), generator)
        draws = context.draws(40_000)
        glass = kinks.draw(draws, generator)
        plus, minus = (kinks.change(glass, s * RADIUS * signs) for s in (1, -1))
        far = kinks.change(kinks.draw(draws, generator), 2 * RADIUS * signs)
        return Variations(kinks, signs, plus, minus, far)

    return context.once("glass", compute)


@claim(
    "thm1-exponent",
    "Theorem 1",
    "Gradient variations of ReLU hyperplanes grow as the first power of the radius",
    paper="p = 1",
)
def exponent_one(context: Context) -> Measurement:
    """``v(2 lambda) / v(lambda) = 2``, where a Hessian would give 4."""
    v = _variations(context)
    measured = exponent(v.near, v.far.square().sum(1))
    near, far = (_predicted(v, radius).sum() for radius in (RADIUS, 2 * RADIUS))
    return Measurement(
        measured.value, torch.log2(far / near).item(), error=measured.error, paper=1.0
    )


def _predicted(v: Variations, radius: float) -> Tensor:
    kinks = v.kinks
    return relu_glass.expected_variation(
        kinks.normals, kinks.strengths, kinks.threshold, radius * v.signs
    )


@claim(
    "thm1-variation",
    "Theorem 1",
    "The variation is the sum of squared jumps times the chance to cross",
    paper="sum_k |d.gamma_k| / 2 psi ...",
)
def variation_value(context: Context) -> Measurement:
    """``v(d) = 1/(2 psi) sum_k gamma_k^2 (dL/dz_k)^2 |d . gamma_k|``, summed over parameters."""
    v = _variations(context)
    measured = mean(v.near)
    return Measurement(measured.value, _predicted(v, RADIUS).sum().item(), error=measured.error)


@claim(
    "thm1-bound",
    "Theorem 1",
    "v <= R |d| in every coordinate: largest v / R|d|",
    paper="<= 1",
)
def variation_bound(context: Context) -> Measurement:
    """The triangle inequality ``|d . gamma| <= |d| . |gamma|`` makes ``R |d|`` a bound."""
    v = _variations(context)
    kinks = v.kinks
    bound = relu_glass.variation_bound(
        kinks.normals, kinks.strengths, kinks.threshold, RADIUS * v.signs
    )
    worst = int((v.plus.square().mean(0) / bound).argmax())
    measured = mean(v.plus[:, worst].square() / bound[worst])
    return Measurement(
        measured.value,
        1.0,
        error=measured.error,
        relation="<=",
        paper=1.0,
        paper_relation="<=",
    )


def _single_moves(context: Context) -> tuple[Kinks, Tensor]:
    """Squared changes [moved parameter, draws, parameter] when one parameter moves alone.

    Parameters have different scales, so that ``R`` is far from symmetric.
    """

    def compute() -> tuple[Kinks, Tensor]:
        generator = context.generator("glass-single")
        kinks = sample_kinks(units=40, parameters=4, threshold=THRESHOLD, generator=generator)
        scales = torch.linspace(1, 4, 4, dtype=torch.float64)
        kinks = replace(kinks, normals=kinks.normals * scales)
        glass = kinks.draw(context.draws(40_000), generator)
        moves = RADIUS * torch.eye(4, dtype=torch.float64)
        return kinks, torch.stack([kinks.change(glass, move).square() for move in moves])

    return context.once("glass-single", compute)


@claim(
    "thm1-reached",
    "Theorem 1",
    "Moving one parameter reaches the bound, v = R|d|: last less first parameter's gradient",
    paper="R|d|",
)
def bound_reached(context: Context) -> Measurement:
    """One nonzero entry of d leaves nothing for the triangle inequality to lose."""
    kinks, changes = _single_moves(context)
    moved = changes.sum(0)
    measured = mean(moved[:, -1] - moved[:, 0])
    moves = RADIUS * torch.eye(changes.shape[2], dtype=torch.float64)
    bounds = torch.stack(
        [
            relu_glass.variation_bound(kinks.normals, kinks.strengths, kinks.threshold, move)
            for move in moves
        ]
    ).sum(0)
    return Measurement(measured.value, (bounds[-1] - bounds[0]).item(), error=measured.error)


@claim(
    "thm1-matrix",
    "Theorem 1",
    "Moving parameter j changes gradient i by R_ij per unit length: sum over i > j less i < j",
    paper="R_ij",
)
def matrix_entries(context: Context) -> Measurement:
    """``R_ij = 1/(2 psi) sum_k gamma_ki^2 (dL/dz_k)^2 |gamma_kj|``."""
    kinks, changes = _single_moves(context)
    below = (changes.permute(1, 2, 0) / RADIUS).tril(-1).sum(dim=(1, 2))
    above = (changes.permute(1, 2, 0) / RADIUS).triu(1).sum(dim=(1, 2))
    measured = mean(below - above)
    matrix = relu_glass.glass_density_matrix(kinks.normals, kinks.strengths, kinks.threshold)
    expected = (matrix.tril(-1) - matrix.triu(1)).sum().item()
    return Measurement(measured.value, expected, error=measured.error)


@claim(
    "thm1-diagonal",
    "Theorem 1",
    "Moving one parameter measures its own glass density, diag(R), summed",
    paper="rho = diag(R)",
)
def matrix_diagonal(context: Context) -> Measurement:
    """``rho_i = 1/(2 psi) sum_k |gamma_ki|^3 (dL/dz_k)^2``."""
    kinks, changes = _single_moves(context)
    measured = mean(changes.diagonal(dim1=0, dim2=2).sum(1) / RADIUS)
    density = relu_glass.glass_density(kinks.normals, kinks.strengths, kinks.threshold)
    return Measurement(measured.value, density.sum().item(), error=measured.error)


@claim(
    "thm1-quadratic",
    "Equation 2",
    "A Hessian alone gives the second power",
    paper="p = 2",
)
def quadratic_exponent(context: Context) -> Measurement:
    """``g(mu + d) - g(mu) = H d``, by automatic differentiation of a random quadratic."""
    generator = context.generator("quadratic")
    hessian = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    signs = random_signs((8,), generator)
    gradient = torch.func.grad(lambda x: x @ hessian @ x / 2 + x.sum())
    origin = torch.zeros_like(signs)
    near, far = (
        (gradient(radius * signs) - gradient(origin)).square().sum()
        for radius in (RADIUS, 2 * RADIUS)
    )
    measured = torch.log2(far / near).item()
    return Measurement(measured, 2.0, tolerance=1e-9, paper=2.0)


@claim(
    "gvd-equation",
    "Equation 21",
    "R|t| is c / lambda times the mean square of (g+ + g-)/2 - g0: the number c",
    paper="1/2",
    correction="every kink is crossed by one of the two probes only, so the mean square is "
    "lambda R|t| / 2; the algorithms print 2/lambda, the equation 1/(2 lambda), 4 times less",
)
def equation_constant(context: Context) -> Measurement:
    """``E ((g+ + g-)/2 - g0)^2 = v(lambda t) / 2``, since no kink is crossed both ways.

    The constant is the variation of one side over the mean square second difference.
    """
    v = _variations(context)
    second = (v.plus + v.minus) / 2
    measured = estimate(lambda a, b: a / b, v.near, second.square().sum(1))
    return Measurement(measured.value, 2.0, error=measured.error, paper=0.5)


@claim(
    "alg1-glass",
    "Algorithm 1, line 5",
    "(2 / lambda) ((g+ + g-)/2 - g0)^2 averages to the glass along the probe, v / lambda",
    paper="2 / lambda",
)
def algorithm_constant(context: Context) -> Measurement:
    """``E (2 / lambda) ((g+ + g-)/2 - g0)^2 = v(lambda t) / lambda``, summed over parameters."""
    v = _variations(context)
    grads = Gradients(torch.zeros_like(v.plus), v.plus, v.minus, RADIUS)
    measured = mean(topography.glass_sample(grads).sum(1))
    expected = _predicted(v, RADIUS).sum().item() / RADIUS
    return Measurement(measured.value, expected, error=measured.error)
