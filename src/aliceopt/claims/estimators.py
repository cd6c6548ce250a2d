"""What the probes of Algorithms 1 and 2 really estimate: glass density, |Hessian|, Hessian."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from aliceopt import topography
from aliceopt.theory import kernel, relu_glass
from aliceopt.topography import Gradients

from .estimate import Estimate, estimate, mean
from .registry import Claim, Context, Measurement, register
from .simulated_glass import Kinks, random_signs, sample_kinks

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

RADIUS = 0.01
SIZE = 64


class _GlassEstimate(NamedTuple):
    """What sign probes see of a glass, summed over parameters, [draws], and its expectation.

    ``sampled`` is Alice's sample of the density, ``one_sided`` the variation per unit of radius.
    """

    kinks: Kinks
    sampled: Tensor
    one_sided: Tensor
    expected: float


def _glass_estimate(context: Context) -> _GlassEstimate:
    """`glass_sample` for 32 sign vectors in glasses of 64 units and as many parameters."""

    def compute() -> _GlassEstimate:
        generator = context.generator("glass-estimate")
        kinks = sample_kinks(units=SIZE, parameters=SIZE, threshold=1.0, generator=generator)
        sampled, one_sided, expected = [], [], []
        for signs in random_signs((32, SIZE), generator):
            glass = kinks.draw(context.draws(2_000), generator)
            plus, minus = (kinks.change(glass, s * RADIUS * signs) for s in (1, -1))
            sampled.append(topography.glass_sample(_changes(plus, minus, RADIUS)).sum(1))
            one_sided.append(plus.square().sum(1) / RADIUS)
            variation = relu_glass.expected_variation(
                kinks.normals, kinks.strengths, kinks.threshold, RADIUS * signs
            )
            expected.append(variation.sum() / RADIUS)
        return _GlassEstimate(
            kinks, torch.cat(sampled), torch.cat(one_sided), torch.stack(expected).mean().item()
        )

    return context.once("glass-estimate", compute)


def _changes(plus: Tensor, minus: Tensor, radius: float, signs: Tensor | None = None) -> Gradients:
    """Gradients of a step as Alice gets them, counted from the one at the center."""
    return Gradients(torch.zeros_like(plus), plus, minus, radius, signs)


@claim(
    "thm1-remark",
    "After Theorem 1",
    f"diag(R)|d| over the variation when all of {SIZE} parameters move, Gaussian gamma",
    paper="1",
    correction="the diagonal of R has |gamma_i| where the move has |d . gamma|, the root of n "
    "times as large: diag(R)|d| is not a reasonable approximation of the variation",
)
def diagonal_remark(context: Context) -> Measurement:
    """``E |gamma_i|^3 / E[gamma_i^2 |t . gamma|] = 2 / (sqrt(n) (1 + 1/n))`` for normal gamma."""
    found = _glass_estimate(context)
    kinks = found.kinks
    density = relu_glass.glass_density(kinks.normals, kinks.strengths, kinks.threshold).sum()
    measured = estimate(lambda v: density / v, found.one_sided)
    expected = 2 / (math.sqrt(SIZE) * (1 + 1 / SIZE))
    return Measurement(
        measured.value, expected, error=measured.error, tolerance=0.1 * expected, paper=1.0
    )


@claim(
    "rho-diagonal",
    "Theorem 3",
    f"Alice's glass density over diag(R), {SIZE} parameters",
    paper="1",
    correction="|t| = 1 for every sign vector, so probes hold no diagonal information about R: "
    "all parameters of a unit are seen together, however many they are",
)
def against_diagonal(context: Context) -> Measurement:
    """``E[v(lambda t)] / lambda``: about 0.8 of the 2-norm weighting, and below R's row sums.

    ``E |t . gamma|`` is about ``sqrt(2/pi) |gamma|``, where ``diag(R)`` has ``|gamma_i|`` and the
    row sums, Theorem 1's bound, the 1-norm.
    """
    found = _glass_estimate(context)
    kinks = found.kinks
    weights = kinks.strengths.square() / (2 * kinks.threshold)
    two_norm = (kinks.normals.norm(dim=1) ** 3 * weights).sum().item()
    matrix = relu_glass.glass_density_matrix(kinks.normals, kinks.strengths, kinks.threshold)
    scale = relu_glass.glass_density(kinks.normals, kinks.strengths, kinks.threshold).sum().item()
    measured = mean(found.sampled)
    rows = measured.value / matrix.sum().item()
    return Measurement(
        measured.value / scale,
        found.expected / scale,
        error=measured.error / scale,
        paper=1.0,
        note=f"{measured.value / two_norm:.2f} of the 2-norm weighting, {rows:.3f} of row sums",
    )


def _abs_claim(offdiag_ratio: int) -> None:
    @claim(
        f"abs-bias-{offdiag_ratio}",
        "Methods, h_abs",
        f"Mean of |H t| over |diag H| at off-diagonal ratio {offdiag_ratio}",
        paper="1",
        correction="the absolute value of an unbiased estimate is not unbiased: the off-diagonal "
        "part adds to it instead of averaging out",
    )
    def absolute(context: Context) -> Measurement:
        """``E |m + w m z|`` with normal ``z``: ``w sqrt(2/pi) exp(-1/2w^2) + erf(1/(w sqrt 2))``.

        Measured on an explicit matrix, whose rows are long enough for a normal sum.
        """
        generator = context.generator(f"abs-{offdiag_ratio}")
        size = 400
        rest = torch.randn(size, size, generator=generator, dtype=torch.float64)
        matrix = rest.fill_diagonal_(0) * offdiag_ratio / math.sqrt(size - 1)
        matrix += torch.eye(size, dtype=torch.float64)
        signs = random_signs((context.draws(400, least=40), size), generator)
        change = RADIUS * signs @ matrix.T
        sampled = topography.hess_sample(_changes(change, -change, RADIUS), "abs")
        measured = mean(sampled.mean(1))
        expected = _folded_normal(kernel.offdiag_ratio(matrix)).mean().item()
        return Measurement(
            measured.value,
            expected,
            error=measured.error,
            tolerance=0.005 * expected,
            paper=1.0,
        )


def _folded_normal(w: Tensor) -> Tensor:
    """Mean of ``|1 + w z|`` for a standard normal ``z``."""
    bell = w * math.sqrt(2 / math.pi) * torch.exp(-1 / (2 * w**2))
    return bell + torch.erf(1 / (w * math.sqrt(2)))


for _ratio in (1, 10):
    _abs_claim(_ratio)


class _Leak(NamedTuple):
    """Gradients around points of a glass without Hessian, and the glass density."""

    grads: Gradients
    density: float


LEAK_RADIUS = 0.3


def _leak(context: Context) -> _Leak:
    """One parameter, 400 kinks, of which a probe crosses dozens: the sum of jumps is normal."""

    def compute() -> _Leak:
        generator = context.generator("leak")
        normals = 0.5 + torch.rand(400, 1, generator=generator, dtype=torch.float64)
        kinks = Kinks(normals, torch.ones(400, dtype=torch.float64), threshold=1.0)
        glass = kinks.draw(context.draws(10_000), generator)
        move = torch.tensor([LEAK_RADIUS], dtype=torch.float64)
        plus, minus = (kinks.change(glass, s * move).squeeze(1) for s in (1, -1))
        density = relu_glass.glass_density(normals, kinks.strengths, kinks.threshold)
        return _Leak(_changes(plus, minus, LEAK_RADIUS), density.item())

    return context.once("leak", compute)


LEAK = "a difference of gradients also sees kinks: glass counts twice when both terms are on"


def _leak_measurement(sampled: Estimate, density: float, expected: float) -> Measurement:
    """A leak in units of ``sqrt(rho / lambda)``."""
    unit = math.sqrt(density / LEAK_RADIUS)
    return Measurement(
        sampled.value / unit, expected, error=sampled.error / unit, tolerance=0.005, paper=0.0
    )


@claim(
    "abs-leak",
    "Methods, h_abs",
    "h_abs measured in a pure glass, with no Hessian, in units of sqrt(rho / lambda)",
    paper="0",
    correction=LEAK,
)
def leak_abs(context: Context) -> Measurement:
    """``E |g+ - g-| / (2 lambda) = sqrt(rho / (pi lambda))``."""
    leak = _leak(context)
    sampled = mean(topography.hess_sample(leak.grads, "abs"))
    return _leak_measurement(sampled, leak.density, 1 / math.sqrt(math.pi))


@claim(
    "rms-leak",
    "Appendix B, h_rms",
    "h_rms measured in a pure glass, with no Hessian, in units of sqrt(rho / lambda)",
    paper="0",
    correction=LEAK,
)
def leak_rms(context: Context) -> Measurement:
    """``sqrt(E (g+ - g-)^2) / (2 lambda) = sqrt(rho / (2 lambda))``."""
    leak = _leak(context)
    sampled = estimate(torch.sqrt, topography.hess_sample(leak.grads, "rms"))
    return _leak_measurement(sampled, leak.density, 1 / math.sqrt(2))


def _hessian(generator: torch.Generator, size: int = 8) -> Tensor:
    """A random symmetric matrix with eigenvalues of both signs."""
    half = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return half + half.T


def _signed_sample(hessian: Tensor, signs: Tensor) -> Tensor:
    """``t (g+ - g-)/(2 lambda)`` from gradients of a quadratic on both sides of a point."""
    center = torch.ones(len(hessian), dtype=hessian.dtype)
    plus, minus = ((center + s * RADIUS * signs) @ hessian for s in (1, -1))
    return topography.hess_sample(_changes(plus, minus, RADIUS, signs), "signed")


@claim(
    "signed-settles",
    "Theorem 3",
    "Running average (beta 0.9) of the signed Hessian: rms error over off-diagonal norm",
    paper="not stated",
)
def signed_settles(context: Context) -> Measurement:
    """The error settles at ``offdiag norm * sqrt((1 - beta)/(1 + beta))``."""
    generator = context.generator("signed-settles")
    hessian, beta = _hessian(generator), 0.9
    chains = context.draws(4_000, least=400)
    average = torch.zeros(chains, 8, dtype=torch.float64)
    for _ in range(150):
        sample = _signed_sample(hessian, random_signs((chains, 8), generator))
        average = beta * average + (1 - beta) * sample
    offdiag = kernel.offdiag_ratio(hessian) * hessian.diagonal().abs()
    scale = (hessian - torch.diag(hessian.diagonal())).norm()
    squares = (average - hessian.diagonal()).square().sum(1)
    measured = estimate(lambda s: s.sqrt() / scale, squares)
    expected = (offdiag.norm() / scale).item() * math.sqrt((1 - beta) / (1 + beta))
    return Measurement(measured.value, expected, error=measured.error)


@claim(
    "signed-diagonal",
    "Theorem 3",
    "Error of one signed sample when H is diagonal",
    paper="0",
)
def signed_diagonal(context: Context) -> Measurement:
    """``t (H t) = h t^2 = h``: nothing is left to average out."""
    generator = context.generator("signed-diagonal")
    diagonal = torch.randn(8, generator=generator, dtype=torch.float64)
    sample = _signed_sample(torch.diag(diagonal), random_signs((16, 8), generator))
    gap = (sample - diagonal).abs().max().item()
    return Measurement(gap, 0.0, tolerance=1e-12, paper=0.0)


@claim(
    "fig3-fit",
    "Figure 3",
    "A ReLU's kink inside the probe: largest error of the gradient fit over the Hessian fit's",
    paper="< 1",
)
def relu_fit(context: Context) -> Measurement:
    """A parabola with Alice's curvature against the tangent, on center +- radius.

    With the radius as unit and the kink at ``-c`` from the center the errors are at most
    ``(1 + c^2)/4`` and ``1 - |c|``, in the mean over c 1/3 and 1/2. The fit is the better one
    where ``|c| < sqrt(7) - 2``, not where the kink is near an end of the interval.
    """
    centers = torch.linspace(-1, 1, 2001, dtype=torch.float64)[1:-1]
    low, high = ((centers + s > 0).double() for s in (-1, 1))
    curvature = topography.hess_sample(_changes(high, low, 1.0), "abs")
    x = centers[:, None] + torch.linspace(-1, 1, 2001, dtype=torch.float64)
    away, relu = x - centers[:, None], torch.relu(x)
    bent = away * ((high + low)[:, None] / 2 + curvature[:, None] * away / 2)
    # The height is free: errors at the two probes are equal and opposite.
    ends = torch.tensor([0, -1])
    height = (relu - bent)[:, ends].mean(1)
    matched = (bent + height[:, None] - relu).abs().amax(1)
    tangent = (torch.relu(centers)[:, None] + (centers > 0)[:, None] * away - relu).abs().amax(1)
    reach = centers[matched < tangent].abs().max().item()
    return Measurement(
        (matched.mean() / tangent.mean()).item(),
        2 / 3,
        tolerance=1e-3,
        paper=1.0,
        paper_relation="<=",
        note=f"better where the kink is within {reach:.2f} of the radius",
    )
