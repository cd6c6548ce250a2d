"""Perturbation densities for Theorems 2 and 3: one i.i.d. factor, zero mean, unit variance.

A `Density` can be integrated against (`expect`) and sampled (`sample`). Continuous ones carry a
probability density function on a finite number of smooth pieces, integrated by Gauss-Legendre
quadrature, so that a restriction such as ``|x| >= 1`` costs no accuracy. The Rademacher density
is two atoms.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ._checks import BELOW_ONE, require, require_close

__all__ = ["GAUSSIAN", "RADEMACHER", "UNIFORM", "Density", "from_pdf", "two_sided"]

Sampler = Callable[[Sequence[int], torch.Generator | None, torch.dtype, torch.device], Tensor]
Curve = Callable[[np.ndarray], np.ndarray]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_PANELS = 32
_GRADES = 2.0 ** np.arange(-60, 1)
_MOMENT_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Density:
    """One factor ``p(x)`` of a product density; construction checks its first moments.

    ``atoms`` are (location, probability) pairs; ``pieces`` are (pdf, lower, upper) with a pdf
    smooth inside. Total probability and variance must be 1 and the mean 0, or ``ValueError``
    says which is not and by how much.
    """

    name: str
    sampler: Sampler = field(repr=False)
    atoms: tuple[tuple[float, float], ...] = ()
    pieces: tuple[tuple[Curve, float, float], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        label = f"density {self.name!r}"
        heights = [probability for _, probability in self.atoms]
        heights += [float(pdf(np.linspace(a, b, 1001)).min()) for pdf, a, b in self.pieces]
        if min(heights, default=0.0) < 0:
            raise ValueError(f"{label} must be >= 0 everywhere, got {min(heights):g}")
        moments = [self.expect(functools.partial(_power, n=n)) for n in range(3)]
        require_close(label, moments[0], 1.0, "total probability", _MOMENT_TOLERANCE)
        require_close(label, moments[1], 0.0, "mean", _MOMENT_TOLERANCE)
        require_close(label, moments[2], 1.0, "unit variance, i.e. second moment", 1e-5)

    def expect(self, function: Curve, *, min_abs: float = 0.0) -> float:
        """Integral of ``function(x) p(x)`` over ``|x| >= min_abs`` (not renormalised)."""
        total = 0.0
        for x, probability in self.atoms:
            if abs(x) >= min_abs:
                total += probability * float(function(np.asarray(x, dtype=np.float64)))
        for pdf, lower, upper in self.pieces:
            for a, b in _outside(lower, upper, min_abs):
                total += _quadrature(function, pdf, a, b)
        return total

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Independent draws of this shape; all randomness comes from ``generator``."""
        return self.sampler(shape, generator, dtype, torch.device(device))


def _outside(lower: float, upper: float, min_abs: float) -> list[tuple[float, float]]:
    """The parts of ``[lower, upper]`` outside ``(-min_abs, min_abs)``."""
    parts = [(lower, min(upper, -min_abs)), (max(lower, min_abs), upper)]
    return [(a, b) for a, b in parts if b > a]


def _power(x: np.ndarray, n: int) -> np.ndarray:
    return x**n


def _edges(lower: float, upper: float) -> np.ndarray:
    """Panel edges, graded toward zero where it is an end: kernels with a small offdiag_ratio dip
    there on the scale of that ratio.
    """
    if lower == 0:
        return np.concatenate([[0.0], upper * _GRADES])
    if upper == 0:
        return np.concatenate([lower * _GRADES[::-1], [0.0]])
    return np.linspace(lower, upper, _PANELS + 1)


def _quadrature(function: Curve, pdf: Curve, lower: float, upper: float) -> float:
    """Integral of ``function(x) pdf(x)``, panel by panel, for a pdf smooth on the interval."""
    edges = _edges(lower, upper)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    x = edges[:-1, None] + half * (_NODES + 1)
    values = np.asarray(function(x) * pdf(x), dtype=np.float64)
    return float((values * _WEIGHTS * half).sum())


def _sample_signs(
    shape: Sequence[int],
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    bits = torch.randint(0, 2, tuple(shape), generator=generator, device=device)
    return (2 * bits - 1).to(dtype)


def _sample_normal(
    shape: Sequence[int],
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=dtype, device=device)


def _normal_pdf(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def two_sided(inner: float) -> Density:
    """Uniform on ``inner <= |x| <= outer``, with ``outer`` chosen for unit variance.

    Unit variance reads ``outer^2 + outer inner + inner^2 = 3``. ``inner = 0`` is the uniform
    density; as ``inner -> 1`` it closes on the Rademacher density, and the estimator variance of
    Theorem 2 falls all the way.
    """
    require("inner", inner, BELOW_ONE)
    outer = (math.sqrt(12 - 3 * inner * inner) - inner) / 2
    height = 0.5 / (outer - inner)

    def flat(x: np.ndarray) -> np.ndarray:
        return np.full_like(x, height)

    def sampler(
        shape: Sequence[int],
        generator: torch.Generator | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        u = torch.rand(tuple(shape), generator=generator, dtype=dtype, device=device)
        return (inner + (outer - inner) * u) * _sample_signs(shape, generator, dtype, device)

    pieces = ((flat, -outer, -inner), (flat, inner, outer))
    name = "uniform" if inner == 0 else f"two_sided({inner:g})"
    return Density(name, sampler, pieces=pieces)


def from_pdf(
    pdf: Callable[[np.ndarray], np.ndarray],
    support: tuple[float, float],
    *,
    name: str = "user density",
    sampler: Sampler | None = None,
) -> Density:
    """A density of your own: ``pdf`` takes and returns a float64 array over ``support``.

    Without ``sampler`` it is sampled by inverting its cumulative sum on a fine grid, to about
    1e-4 of the support. A pdf that is negative, or lacks unit variance, is refused.
    """
    lower, upper = support
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise ValueError(f"support must be two finite numbers, lower < upper, got {support!r}")
    grid = np.linspace(lower, upper, 20_001)
    heights = np.asarray(pdf(grid), dtype=np.float64)
    if heights.shape != grid.shape:
        raise ValueError(f"pdf must return shape {grid.shape}, got {heights.shape}")
    bad = heights[~(np.isfinite(heights) & (heights >= 0))]
    if bad.size:
        raise ValueError(f"pdf must be finite and >= 0, got {bad[0]:g}")
    # Zero belongs to the split: an even pdf may have its kink there.
    cuts = sorted({lower, upper} | ({0.0} if lower < 0 < upper else set()))
    pieces = tuple((pdf, a, b) for a, b in itertools.pairwise(cuts))
    return Density(name, sampler or _inverse_sampler(grid, heights), pieces=pieces)


def _inverse_sampler(grid: np.ndarray, heights: np.ndarray) -> Sampler:
    areas = (heights[1:] + heights[:-1]) / 2 * np.diff(grid)
    cumulative = np.concatenate([[0.0], np.cumsum(areas)]) / areas.sum()

    def sampler(
        shape: Sequence[int],
        generator: torch.Generator | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        u = torch.rand(tuple(shape), generator=generator, dtype=torch.float64, device=device)
        x = np.interp(u.cpu().numpy(), cumulative, grid)
        return torch.as_tensor(x, dtype=dtype, device=device)

    return sampler


RADEMACHER = Density("rademacher", _sample_signs, atoms=((-1.0, 0.5), (1.0, 0.5)))
"""Plus or minus one with equal probability: the optimum of Theorem 3."""

GAUSSIAN = Density(
    "gaussian", _sample_normal, pieces=((_normal_pdf, -12.0, 0.0), (_normal_pdf, 0.0, 12.0))
)
"""Standard normal; the tail beyond 12 is below 1e-32."""

UNIFORM = two_sided(0.0)
"""Uniform on ``[-sqrt(3), sqrt(3)]``."""
