r"""Theorems 2 and 3 and Appendix B: the best way to read a diagonal off matrix-vector products.

For ``y = M x`` with i.i.d. ``x_i`` of zero mean and unit variance, every kernel with
``E[k(x) x] = 1`` estimates ``m_i = M_ii`` by ``E[k(x_i) y_i]`` without bias. With
``offdiag_ratio`` the root of ``sum_{j != i} M_ij^2 / m_i^2``, its single-sample variance is

    m_i^2 (E[k(x)^2 (x^2 + offdiag_ratio^2)] - 1),

smallest for ``k(x) = x / (c (x^2 + offdiag_ratio^2))`` with ``c = E[x^2 / (x^2 + ratio^2)]``, where
it is ``m_i^2 (1/c - 1)`` (Theorem 2). Since ``x^2 -> x^2 / (x^2 + ratio^2)`` is concave, Jensen's
inequality bounds ``c`` by ``1 / (1 + ratio^2)``, reached only for ``|x| = 1``: the Rademacher
density is optimal, its kernel is ``k(x) = x`` whatever the ratio, and its variance is
``ratio^2 m_i^2`` (Theorem 3).

Restricted updates (Appendix B) drop samples with ``|x_i| < min_perturbation``. The same formulas
hold with the expectation over the kept part, and the variance per *drawn* sample is divided by
the probability of keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ._checks import (
    FINITE,
    NONNEGATIVE,
    POSITIVE,
    checked,
    require,
    require_close,
    require_int,
    require_tensor,
)
from .density import GAUSSIAN, RADEMACHER, UNIFORM, Density, from_pdf, two_sided

__all__ = [
    "GAUSSIAN",
    "RADEMACHER",
    "UNIFORM",
    "Density",
    "estimate_diagonal",
    "estimator_variance",
    "from_pdf",
    "kernel_norm",
    "offdiag_ratio",
    "optimal_kernel",
    "two_sided",
    "update_probability",
]


def offdiag_ratio(matrix: Tensor) -> Tensor:
    """``sqrt(sum_{j != i} M_ij^2) / |M_ii|`` for every row; inf where the diagonal is zero.

    At most 1 for a row diagonally dominant matrix, since the 2-norm of the rest of a row is at
    most its 1-norm. That makes 1 the conservative choice where the ratio is unknown.
    """
    require("matrix", matrix, FINITE)
    require_tensor("matrix", matrix)
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be square, got shape {tuple(matrix.shape)}")
    diagonal = matrix.diagonal()
    rest = matrix - torch.diag(diagonal)
    ratio = rest.square().sum(1).sqrt() / diagonal.abs()
    return torch.where(diagonal == 0, torch.inf, ratio)


def update_probability(density: Density, min_perturbation: float = 0.0) -> float:
    """Probability that ``|x| >= min_perturbation``, i.e. that a sample is kept (Appendix B)."""
    require("min_perturbation", min_perturbation, NONNEGATIVE)
    probability = density.expect(np.ones_like, min_abs=min_perturbation)
    if probability <= 0:
        raise ValueError(
            f"min_perturbation must leave some of density {density.name!r}, got {min_perturbation}"
        )
    return probability


def kernel_norm(
    density: Density, offdiag_ratio: float = 1.0, min_perturbation: float = 0.0
) -> float:
    """Normaliser ``c = E[x^2 / (x^2 + ratio^2)]`` over the kept part of ``density`` (Equation 6).

    >>> round(1 / kernel_norm(GAUSSIAN, 1.0), 3)
    2.904
    >>> kernel_norm(RADEMACHER, 1.0)
    0.5
    """
    require("offdiag_ratio", offdiag_ratio, NONNEGATIVE)
    kept = update_probability(density, min_perturbation)
    if offdiag_ratio == 0:
        return 1.0  # the integrand is 1 wherever x is not 0
    w2 = offdiag_ratio**2
    return density.expect(lambda x: x * x / (x * x + w2), min_abs=min_perturbation) / kept


@checked(perturbation=FINITE, offdiag_ratio=NONNEGATIVE, kernel_norm=POSITIVE)
def optimal_kernel(perturbation: Tensor, offdiag_ratio: float, kernel_norm: float) -> Tensor:
    """Theorem 2: ``k(x) = x / (c (x^2 + ratio^2))``; zero at ``x = 0``, whatever the ratio.

    >>> optimal_kernel(torch.tensor([-1.0, 1.0]), 3.0, kernel_norm(RADEMACHER, 3.0))
    tensor([-1.,  1.])
    """
    x = perturbation
    return torch.where(x == 0, 0.0, x / (kernel_norm * (x * x + offdiag_ratio**2)))


def estimator_variance(
    density: Density,
    offdiag_ratio: float = 1.0,
    min_perturbation: float = 0.0,
    kernel: Callable[[Tensor], Tensor] | None = None,
) -> float:
    """Variance of the diagonal estimate per drawn sample, in units of ``m_i^2``.

    ``kernel=None`` takes the optimal kernel, for which this is ``(1/c - 1) / kept``. Any other
    kernel must be unbiased, ``E[k(x) x] = 1`` over the kept part, or it is refused.

    >>> round(estimator_variance(GAUSSIAN), 3), estimator_variance(RADEMACHER, 2.0)
    (1.904, 4.0)
    """
    kept = update_probability(density, min_perturbation)
    if kernel is None:
        return (1 / kernel_norm(density, offdiag_ratio, min_perturbation) - 1) / kept
    require("offdiag_ratio", offdiag_ratio, NONNEGATIVE)
    k = _as_curve(kernel)
    bias = density.expect(lambda x: k(x) * x, min_abs=min_perturbation) / kept
    require_close("kernel", bias, 1.0, "E[kernel(x) x] =", 1e-6)
    w2 = offdiag_ratio**2
    second = density.expect(lambda x: k(x) ** 2 * (x * x + w2), min_abs=min_perturbation)
    return (second / kept - 1) / kept


def _as_curve(kernel: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: kernel(torch.as_tensor(x, device="cpu")).numpy()


def estimate_diagonal(
    matvec: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    num_samples: int,
    density: Density = RADEMACHER,
    kernel: Callable[[Tensor], Tensor] | None = None,
    min_perturbation: float = 0.0,
    generator: torch.Generator | None = None,
    *,
    offdiag_ratio: float = 1.0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Diagonal of any linear operator from ``num_samples`` products ``matvec(x)``.

    ``matvec`` maps a tensor of ``shape`` to one of the same shape. ``kernel`` weighs a sample
    elementwise; None takes Theorem 2's for ``offdiag_ratio`` (irrelevant for Rademacher draws).
    Entries with ``|x| < min_perturbation`` do not count; an entry that never counted is NaN,
    which only happens with few samples and a high threshold.

    >>> m = torch.tensor([[2.0, 1.0], [-1.0, 3.0]], dtype=torch.float64)
    >>> g = torch.Generator().manual_seed(0)
    >>> estimate_diagonal(lambda x: m @ x, (2,), 20_000, generator=g).round(decimals=1)
    tensor([2., 3.], dtype=torch.float64)
    """
    require_int("num_samples", num_samples, 1)
    norm = kernel_norm(density, offdiag_ratio, min_perturbation)
    weigh = kernel or (lambda x: optimal_kernel.unchecked(x, offdiag_ratio, norm))
    total = torch.zeros(tuple(shape), dtype=dtype, device=device)
    count = torch.zeros_like(total)
    for _ in range(num_samples):
        x = density.sample(shape, generator=generator, dtype=dtype, device=device)
        y = matvec(x)
        if y.shape != x.shape:
            raise ValueError(
                f"matvec must return shape {tuple(x.shape)}, as it was given, got {tuple(y.shape)}"
            )
        kept = x.abs() >= min_perturbation
        total += torch.where(kept, weigh(x) * y, 0.0)
        count += kept
    return total / count
