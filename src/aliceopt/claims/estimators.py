"""What the probes of Algorithms 1 and 2 really estimate: glass density, |Hessian|, Hessian."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from aliceopt.theory import kernel, relu_glass

from .estimate import Estimate, estimate, mean
from .registry import Claim, Context, Measurement, register
from .simulated_glass import Kinks, random_signs, sample_kinks

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

RADIUS = 0.01


class _GlassEstimate(NamedTuple):
    """The Rademacher estimate of a glass density, summed over parameters, and its expectation."""

    kinks: Kinks
    sampled: Tensor
    expected: float


def _glass_estimate(context: Context) -> _GlassEstimate:
    """``(2 / lambda) ((g+ + g-)/2 - g0)^2`` for 32 sign vectors in glasses of 64 parameters."""

    def compute() -> _GlassEstimate:
        generator = context.generator("glass-estimate")
        kinks = sample_kinks(units=64, parameters=64, threshold=1.0, generator=generator)
        sampled, expected = [], []
        for signs in random_signs((32, 64), generator):
            glass = kinks.draw(context.draws(2_000), generator)
            plus, minus = (kinks.change(glass, s * RADIUS * signs) for s in (1, -1))
            sampled.append(2 / RADIUS * ((plus + minus) / 2).square().sum(1))
            variation = relu_glass.expected_variation(
                kinks.normals, kinks.strengths, kinks.threshold, RADIUS * signs
            )
            expected.append(variation.sum() / RADIUS)
        return _GlassEstimate(kinks, torch.cat(sampled), torch.stack(expected).mean().item())

    return context.once("glass-estimate", compute)


def _against(context: Context, scale: float, paper: float | None = None) -> Measurement:
    """The estimate in units of ``scale``."""
    found = _glass_estimate(context)
    measured = mean(found.sampled / scale)
    return Measurement(measured.value, found.expected / scale, error=measured.error, paper=paper)


@claim(
    "rho-diagonal",
    "Theorem 3",
    "Rademacher estimate of the glass density over diag(R), 64 parameters",
    paper="1",
    correction="|t| = 1 for every sign vector, so probes hold no diagonal information about R: "
    "all parameters of a unit are seen together, however many they are",
)
def against_diagonal(context: Context) -> Measurement:
    """``E[v(lambda t)] / lambda`` is several times ``diag(R)``, more with more parameters."""
    kinks = _glass_estimate(context).kinks
    density = relu_glass.glass_density(kinks.normals, kinks.strengths, kinks.threshold)
    return _against(context, density.sum().item(), paper=1.0)


@claim(
    "rho-two-norm",
    "Theorem 3",
    "Rademacher estimate of the glass density over gamma_i^2 (dL/dz)^2 |gamma| / 2 psi",
    paper="not stated",
)
def against_two_norm(context: Context) -> Measurement:
    """``E |t . gamma|`` is about ``sqrt(2/pi) |gamma|``: that is what the probes estimate."""
    kinks = _glass_estimate(context).kinks
    norms = kinks.normals.norm(dim=1)
    weighting = (norms**3 * kinks.strengths.square()).sum() / (2 * kinks.threshold)
    return _against(context, weighting.item())


@claim(
    "rho-row-sum",
    "Theorem 1",
    "Rademacher estimate of the glass density over the row sums of R, its bound",
    paper="<= 1",
)
def against_row_sum(context: Context) -> Measurement:
    """``R |t|`` is the row sum of ``R``; the estimate stays below it."""
    kinks = _glass_estimate(context).kinks
    matrix = relu_glass.glass_density_matrix(kinks.normals, kinks.strengths, kinks.threshold)
    found = _against(context, matrix.sum().item())
    return Measurement(
        found.measured, found.expected, error=found.error, paper=1.0, paper_relation="<="
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
        measured = mean((signs @ matrix.T).abs().mean(1))
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
    """``(g+ - g-)/(2 lambda)`` where there is no Hessian at all, and the glass density."""

    slopes: Tensor
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
        plus, minus = kinks.change(glass, move), kinks.change(glass, -move)
        density = relu_glass.glass_density(normals, kinks.strengths, kinks.threshold)
        return _Leak(((plus - minus) / (2 * LEAK_RADIUS)).squeeze(1), density.item())

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
    return _leak_measurement(mean(leak.slopes.abs()), leak.density, 1 / math.sqrt(math.pi))


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
    sampled = estimate(torch.sqrt, leak.slopes.square())
    return _leak_measurement(sampled, leak.density, 1 / math.sqrt(2))


def _hessian(generator: torch.Generator, size: int = 8) -> Tensor:
    """A random symmetric matrix with eigenvalues of both signs."""
    half = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return half + half.T


def _signed_sample(hessian: Tensor, signs: Tensor) -> Tensor:
    """``t (g+ - g-)/(2 lambda)`` from gradients of a quadratic on both sides of a point."""
    center = torch.ones(len(hessian), dtype=hessian.dtype)
    plus, minus = ((center + s * RADIUS * signs) @ hessian for s in (1, -1))
    return signs * (plus - minus) / (2 * RADIUS)


@claim(
    "signed-unbiased",
    "Theorem 3",
    "Signed Hessian estimate of a random quadratic, summed over the diagonal",
    paper="trace H",
)
def signed_unbiased(context: Context) -> Measurement:
    """``E[t (g+ - g-)/(2 lambda)] = diag(H)``, negative entries included."""
    generator = context.generator("signed")
    hessian = _hessian(generator)
    signs = random_signs((context.draws(20_000), 8), generator)
    measured = mean(_signed_sample(hessian, signs).sum(1))
    trace = hessian.trace().item()
    return Measurement(measured.value, trace, error=measured.error, paper=trace)


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
