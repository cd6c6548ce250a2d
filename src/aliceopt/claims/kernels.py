"""Theorems 2 and 3: the best kernel and the best density for the diagonal of a matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aliceopt.theory import kernel
from aliceopt.theory.kernel import Density

from .estimate import Estimate, estimate, mean
from .registry import Claim, Context, Measurement, register

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

RATIO = 1.0
"""Off-diagonal ratio of the test matrices, the conservative choice of the paper."""

DENSITIES: dict[str, Density] = {
    "gaussian": kernel.GAUSSIAN,
    "uniform": kernel.UNIFORM,
    "two-sided": kernel.two_sided(0.7),
}


def _matrix(size: int, offdiag_ratio: float, generator: torch.Generator) -> Tensor:
    """A random matrix every row of which has this ratio of off-diagonal norm to diagonal."""
    rest = torch.randn(size, size, generator=generator, dtype=torch.float64).fill_diagonal_(0)
    diagonal = 0.5 + torch.rand(size, generator=generator, dtype=torch.float64)
    scale = offdiag_ratio * diagonal / rest.square().sum(1).sqrt()
    return rest * scale[:, None] + torch.diag(diagonal)


def _sampled_variance(context: Context, name: str, density: Density) -> Estimate:
    """Variance of Theorem 2's estimator, in units of the squared diagonal, by sampling.

    The kernel ``x / (x^2 + ratio^2)`` is normalised by its own sample mean ``E[k x]``, so nothing
    of the theory's constants enters: ``V = E[(k y / m)^2] / E[k x]^2 - 1``.
    """

    def compute() -> Estimate:
        generator = context.generator(f"variance-{name}")
        matrix = _matrix(8, RATIO, generator)
        x = density.sample((context.draws(30_000), 8), generator=generator)
        weight = x / (x.square() + RATIO**2)
        scaled = weight * (x @ matrix.T) / matrix.diagonal()
        columns = scaled.square().mean(1), (weight * x).mean(1)
        return estimate(lambda second, norm: second / norm**2 - 1, *columns)

    return context.once(f"variance-{name}", compute)


@claim(
    "thm2-unbiased",
    "Theorem 2",
    "The kernel estimate of a diagonal entry, over its true value (Gaussian draws)",
    paper="1",
)
def unbiased(context: Context) -> Measurement:
    """``E[k(x_i) (M x)_i] = M_ii``, from single-sample estimates of an explicit matrix."""
    generator = context.generator("unbiased")
    matrix = _matrix(8, RATIO, generator)
    singles = kernel.estimate_diagonal(
        lambda x: x @ matrix.T,
        (context.draws(30_000), 8),
        1,
        kernel.GAUSSIAN,
        generator=generator,
        offdiag_ratio=RATIO,
    )
    measured = mean((singles / matrix.diagonal()).mean(1))
    return Measurement(measured.value, 1.0, error=measured.error, paper=1.0)


def _variance_claim(name: str, density: Density) -> None:
    @claim(
        f"thm2-{name}",
        "Theorem 2",
        f"Variance of the estimate over m^2 for {name} draws, off-diagonal ratio 1",
        paper="1/c - 1",
    )
    def variance(context: Context) -> Measurement:
        """``V = m^2 (1/c - 1)`` with ``c = E[x^2 / (x^2 + ratio^2)]``."""
        measured = _sampled_variance(context, name, density)
        expected = kernel.estimator_variance(density, RATIO)
        return Measurement(measured.value, expected, error=measured.error)


for _name, _density in DENSITIES.items():
    _variance_claim(_name, _density)


class _Grid(NamedTuple):
    """The standard normal density as weights on an even grid, exact to rounding."""

    x: np.ndarray
    weights: np.ndarray

    def variance(self, values: np.ndarray) -> np.ndarray:
        """``E[k^2 (x^2 + ratio^2)] - 1`` of unbiased kernels, the last axis on the grid."""
        return np.asarray((values**2 * (self.x**2 + RATIO**2)) @ self.weights - 1)


def _grid() -> _Grid:
    x = np.linspace(-12.0, 12.0, 241)
    weights = np.exp(-x * x / 2)
    return _Grid(x, weights / weights.sum())


def _numeric_kernel(grid: _Grid) -> np.ndarray:
    """The kernel of least variance among unbiased ones, as a quadratic programme on the grid.

    Minimise ``sum p k^2 (x^2 + ratio^2)`` subject to ``sum p k x = 1``: the stationarity and the
    constraint are one linear system, solved for ``sqrt(p) k`` to keep it well conditioned.
    """
    root = np.sqrt(grid.weights)
    n = len(grid.x)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = np.diag(2 * (grid.x**2 + RATIO**2))
    system[:n, n] = -root * grid.x
    system[n, :n] = root * grid.x
    return np.asarray(np.linalg.solve(system, np.eye(n + 1)[n])[:n] / root)


@claim(
    "thm2-optimum",
    "Theorem 2",
    "Least variance of any unbiased kernel, by numerical minimisation (Gaussian)",
    paper="1/c - 1",
)
def least_variance(context: Context) -> Measurement:
    """``min E[k^2 (x^2 + ratio^2)] - 1`` subject to ``E[k x] = 1`` equals ``1/c - 1``."""
    grid = _grid()
    measured = grid.variance(_numeric_kernel(grid)).item()
    expected = kernel.estimator_variance(kernel.GAUSSIAN, RATIO)
    return Measurement(measured, expected, tolerance=1e-9)


@claim(
    "thm2-kernel",
    "Theorem 2",
    "The kernel found numerically minus x / (c (x^2 + ratio^2)), largest difference",
    paper="none",
)
def kernel_shape(context: Context) -> Measurement:
    """``k(x) = x / (c (x^2 + ratio^2))`` on ``|x| <= 6``, where the density is not negligible."""
    grid = _grid()
    norm = kernel.kernel_norm(kernel.GAUSSIAN, RATIO)
    formula = kernel.optimal_kernel(torch.as_tensor(grid.x), RATIO, norm).numpy()
    gap = np.abs(_numeric_kernel(grid) - formula)[np.abs(grid.x) <= 6]
    return Measurement(gap.max().item(), 0.0, tolerance=1e-8, paper=0.0)


@claim(
    "thm2-perturbed",
    "Theorem 2",
    "1000 random unbiased changes of the kernel: the smallest change of variance",
    paper=">= 0",
)
def perturbed_kernels(context: Context) -> Measurement:
    """No ``k + eta`` with ``E[eta x] = 0`` has less variance than the closed form."""
    generator = np.random.default_rng(context.generator("perturbed").initial_seed())
    grid = _grid()
    norm = kernel.kernel_norm(kernel.GAUSSIAN, RATIO)
    best = kernel.optimal_kernel(torch.as_tensor(grid.x), RATIO, norm).numpy()
    waves = np.sin(np.outer(np.linspace(0.2, 3.0, 15), grid.x))
    sizes = 10.0 ** generator.uniform(-3, 0, size=(1000, 1))
    change = sizes * generator.standard_normal((1000, 15)) @ waves
    change -= np.outer((change * grid.x) @ grid.weights, grid.x)
    excess = grid.variance(best + change) - kernel.estimator_variance(kernel.GAUSSIAN, RATIO)
    return Measurement(
        excess.min().item(),
        0.0,
        tolerance=1e-9,
        relation=">=",
        paper=0.0,
        paper_relation=">=",
    )


@claim(
    "thm2-dominance",
    "Theorem 2",
    "Largest squared off-diagonal ratio among row diagonally dominant matrices",
    paper="<= 1",
)
def dominance(context: Context) -> Measurement:
    """The 2-norm of the rest of a row is at most its 1-norm, hence at most the diagonal.

    Measured as what it is for, the variance of the sign estimate over the squared diagonal, over
    all sign vectors. Random rows of 6 entries, from spread out to a single off-diagonal entry,
    scaled to the edge of dominance, where the largest ratios are.
    """
    generator = context.generator("dominance")
    power = 30 * torch.rand(500, 1, 1, generator=generator, dtype=torch.float64)
    rest = torch.randn(500, 6, 6, generator=generator, dtype=torch.float64)
    rest = rest.sign() * (rest.abs() / rest.abs().amax(2, keepdim=True)) ** power
    rest.diagonal(dim1=1, dim2=2).zero_()
    diagonal = rest.abs().sum(2)
    matrices = rest + torch.diag_embed(diagonal)
    signs = 1.0 - 2.0 * (torch.arange(64)[:, None] >> torch.arange(6) & 1).double()
    samples = signs * (matrices[:, None] @ signs[:, :, None]).squeeze(3)
    variances = (samples - diagonal[:, None]).square().mean(1) / diagonal.square()
    expected = max(kernel.offdiag_ratio(matrix).square().max().item() for matrix in matrices)
    return Measurement(
        variances.max().item(),
        expected,
        tolerance=1e-9,
        paper=1.0,
        paper_relation="<=",
        paper_tolerance=1e-9,
    )


@claim(
    "thm3-variance",
    "Theorem 3",
    "Variance of the estimate over m^2 for Rademacher draws, off-diagonal ratio 2",
    paper="4",
)
def rademacher_variance(context: Context) -> Measurement:
    """``V = ratio^2 m^2``: the kernel is ``k(x) = x`` and ``x^2 = 1`` adds no noise of its own."""
    generator = context.generator("rademacher")
    matrix = _matrix(8, 2.0, generator)
    singles = kernel.estimate_diagonal(
        lambda x: x @ matrix.T,
        (context.draws(30_000), 8),
        1,
        kernel.RADEMACHER,
        generator=generator,
        offdiag_ratio=2.0,
    )
    measured = mean((singles / matrix.diagonal() - 1).square().mean(1))
    expected = kernel.estimator_variance(kernel.RADEMACHER, 2.0)
    return Measurement(measured.value, expected, error=measured.error, paper=4.0)


@claim(
    "thm3-best",
    "Theorem 3",
    "Least variance among Gaussian, uniform and two-sided draws over that of Rademacher",
    paper=">= 1",
)
def rademacher_best(context: Context) -> Measurement:
    """Every other density has more variance than ``ratio^2 m^2``, here 1."""
    base = _sampled_variance(context, "rademacher", kernel.RADEMACHER)
    sampled = {n: _sampled_variance(context, n, d) for n, d in DENSITIES.items()}
    closest = min(DENSITIES, key=lambda n: kernel.estimator_variance(DENSITIES[n], RATIO))
    measured = sampled[closest].value / base.value
    error = np.hypot(sampled[closest].error, measured * base.error) / base.value
    expected = kernel.estimator_variance(DENSITIES[closest], RATIO)
    return Measurement(
        measured,
        expected / kernel.estimator_variance(kernel.RADEMACHER, RATIO),
        error=float(error),
        paper=1.0,
        paper_relation=">=",
        note=f"closest: {closest}",
    )


def _pair() -> Density:
    """Two magnitudes, ``x^2 = 1/5`` and ``9/5``, equally likely, of either sign."""
    magnitudes = torch.tensor([0.2, 1.8], dtype=torch.float64).sqrt()

    def sample(
        shape: Sequence[int],
        generator: torch.Generator | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        which, sign = torch.randint(0, 2, (2, *shape), generator=generator, device=device)
        sizes: Tensor = magnitudes.to(dtype=dtype, device=device)[which]
        return torch.where(sign > 0, sizes, -sizes)

    atoms = [(s * m, 0.25) for m in magnitudes.tolist() for s in (1, -1)]
    return Density("pair", sample, atoms=tuple(atoms))


@claim(
    "thm3-proof",
    "Theorem 3, proof",
    "Two magnitudes, whose weights no feasible change can improve: variance over Rademacher's",
    paper="1",
    correction="the proof lets the density vary subject to normalisation only; unit variance "
    "constrains it too, and every density of two magnitudes is then stationary. The theorem is "
    "right, by Jensen's inequality",
)
def stationary_pair(context: Context) -> Measurement:
    """Weights of two magnitudes have two constraints, so nothing varies: stationary, not best."""
    base = _sampled_variance(context, "rademacher", kernel.RADEMACHER)
    pair = _sampled_variance(context, "pair", _pair())
    measured = pair.value / base.value
    return Measurement(
        measured,
        kernel.estimator_variance(_pair(), RATIO) / RATIO**2,
        error=float(np.hypot(pair.error, measured * base.error) / base.value),
        paper=1.0,
    )


@claim(
    "thm3-jensen",
    "Theorem 3",
    "Largest c = E[x^2/(x^2 + ratio^2)] over random densities of unit variance",
    paper="<= Rademacher's",
)
def jensen(context: Context) -> Measurement:
    """``x^2 -> x^2/(x^2 + ratio^2)`` is concave, so ``c <= 1/(1 + ratio^2)``, reached at |x| = 1.

    5000 densities of four random magnitudes, from spread out to almost equal.
    """
    generator = context.generator("jensen")
    width = 10.0 ** (-3 * torch.rand(5000, 1, generator=generator, dtype=torch.float64))
    logs = width * torch.randn(5000, 4, generator=generator, dtype=torch.float64)
    shares = torch.rand(5000, 4, generator=generator, dtype=torch.float64)
    shares = shares / shares.sum(1, keepdim=True)
    squares = (2 * logs).exp()
    squares = squares / (shares * squares).sum(1, keepdim=True)
    norms = (shares * squares / (squares + RATIO**2)).sum(1)
    best = kernel.kernel_norm(kernel.RADEMACHER, RATIO)
    return Measurement(
        norms.max().item(),
        best,
        tolerance=1e-12,
        relation="<=",
        paper=1 / (1 + RATIO**2),
        paper_relation="<=",
    )
