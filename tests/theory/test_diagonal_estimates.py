"""Theorems 2 and 3, Appendix B: sampled diagonals, by exhaustive signs and exact matrices."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from aliceopt.theory.kernel import GAUSSIAN, UNIFORM, Density, estimate_diagonal, offdiag_ratio
from theory_cases import SAMPLED, restricted_gaussian

MATRIX = torch.tensor([[2.0, 1.0, -0.5], [0.3, -1.5, 0.9], [3.0, -4.0, 0.7]], dtype=torch.float64)


def all_signs(width: int) -> Density:
    """Rademacher draws made exhaustive: a sample is every sign vector once, one per row."""
    rows = torch.arange(2**width)[:, None]
    signs = 2.0 * ((rows >> torch.arange(width)) & 1).double() - 1
    return Density("all signs", lambda *_: signs, atoms=((-1.0, 0.5), (1.0, 0.5)))


def rowwise(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    """``M x`` for every row of a batch: independent estimates in one call."""
    return lambda x: x @ matrix.T


def single_estimates(
    density: Density, count: int, *, matrix: Tensor = MATRIX, seed: int = 0, **options: object
) -> Tensor:
    """``count`` independent one-sample estimates of the diagonal; NaN where dropped."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, len(matrix))
    return estimate_diagonal(rowwise(matrix), shape, 1, density, generator=generator, **options)


def standard_errors_off(samples: Tensor, expected: float) -> float:
    """Distance of the mean of the counted samples from ``expected``, in standard errors."""
    x = samples[~samples.isnan()]
    error = x.std().item() / math.sqrt(len(x)) + 1e-12
    return abs(x.mean().item() - expected) / error


# --- off-diagonal ratio ------------------------------------------------------------------------


def test_offdiag_ratio_is_the_two_norm_of_the_rest_of_the_row():
    """Against a loop; rows, not columns."""
    for row, ratio in enumerate(offdiag_ratio(MATRIX).tolist()):
        rest = [MATRIX[row, col].item() for col in range(3) if col != row]
        assert ratio == pytest.approx(math.hypot(*rest) / abs(MATRIX[row, row].item()), rel=1e-14)


def test_offdiag_ratio_of_a_dominant_matrix_is_at_most_one():
    """Row diagonal dominance bounds the 1-norm, hence the 2-norm, of the rest of the row."""
    generator = torch.Generator().manual_seed(0)
    rest = torch.randn(50, 50, generator=generator, dtype=torch.float64)
    dominant = rest - torch.diag(rest.diagonal())
    dominant = dominant + torch.diag(dominant.abs().sum(1))
    assert (offdiag_ratio(dominant) <= 1).all()
    alone = torch.tensor([[2.0, 2.0], [0.0, 1.0]])
    assert offdiag_ratio(alone).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("row", [[0.0, 3.0], [0.0, 0.0]])
def test_offdiag_ratio_is_infinite_where_the_diagonal_is_zero(row: list[float]):
    """Also when the whole row is zero: never NaN."""
    assert offdiag_ratio(torch.tensor([row, [1.0, 1.0]])).tolist() == [math.inf, 1.0]


# --- the estimate ------------------------------------------------------------------------------


def test_rademacher_estimate_is_unbiased_over_all_sign_vectors():
    """Exactly: the mean over all 2^n signs is the diagonal, the variance the rest of the row."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    estimates = estimate_diagonal(rowwise(matrix), (64, 6), 1, all_signs(6))
    torch.testing.assert_close(estimates.mean(0), matrix.diagonal())
    rest = matrix - torch.diag(matrix.diagonal())
    variance = (estimates - matrix.diagonal()).square().mean(0)
    torch.testing.assert_close(variance, rest.square().sum(1))
    torch.testing.assert_close(variance, (offdiag_ratio(matrix) * matrix.diagonal()).square())


def test_one_rademacher_sample_is_exact_on_a_diagonal_matrix():
    """Nothing off the diagonal, nothing to average away."""
    diagonal = torch.tensor([3.0, -2.0, 0.0, 1e-9], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(
        estimate_diagonal(lambda x: diagonal * x, (4,), 1, generator=generator), diagonal
    )


@pytest.mark.parametrize("threshold", [0.0, 0.7])
@pytest.mark.parametrize("density", SAMPLED, ids=lambda d: d.name)
def test_estimate_is_unbiased(density: Density, threshold: float):
    """Built-in, hollow, restricted and user-given densities, at a ratio right for no row."""
    samples = single_estimates(density, 20_000, min_perturbation=threshold, offdiag_ratio=0.8)
    for i, m in enumerate(MATRIX.diagonal().tolist()):
        assert standard_errors_off(samples[:, i], m) < 4


def test_constant_of_the_paper_is_biased():
    """``2 x / (x^2 + 1)`` on Gaussian draws finds 0.689 of the diagonal."""
    samples = single_estimates(GAUSSIAN, 40_000, kernel=lambda x: 2 * x / (x * x + 1))
    for i, m in enumerate(MATRIX.diagonal().tolist()):
        assert standard_errors_off(samples[:, i], 0.6886 * m) < 4
        assert standard_errors_off(samples[:, i], m) > 4


@pytest.mark.parametrize("threshold", [0.0, 1.0])
@pytest.mark.parametrize("row", [0, 1])
def test_estimate_has_the_variance_of_theorem_2(row: int, threshold: float):
    """``m^2 (1/c - 1)`` per kept sample at the row's own ratio, on Gaussian draws."""
    m = MATRIX[row, row].item()
    rest = [MATRIX[row, col].item() for col in range(3) if col != row]
    ratio = math.hypot(*rest) / abs(m)
    samples = single_estimates(
        GAUSSIAN, 40_000, seed=2, min_perturbation=threshold, offdiag_ratio=ratio
    )
    expected = m * m * (1 / restricted_gaussian(ratio, threshold)[1] - 1)
    assert standard_errors_off((samples[:, row] - m).square(), expected) < 4


def test_many_samples_have_the_variance_per_drawn_sample():
    """Restricted averages of 100 draws vary as ``m^2 (1/c - 1) / (100 kept)``."""
    matrix = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    estimates = estimate_diagonal(
        rowwise(matrix), (5000, 2), 100, GAUSSIAN, min_perturbation=0.75, generator=generator
    )
    kept, norm = restricted_gaussian(1.0, 0.75)
    # The count kept is binomial: E[1/count] exceeds 1/E[count] by (1 - kept) / (100 kept).
    excess = 1 + (1 - kept) / (100 * kept)
    expected = (1 / norm - 1) / (100 * kept) * excess
    assert standard_errors_off((estimates[:, 0] - 1).square(), expected) < 4


def test_estimate_is_the_mean_of_the_weighted_products_that_count():
    """Against a loop over the same draws: a mean over kept entries, not over all samples."""
    estimate = estimate_diagonal(
        rowwise(MATRIX),
        (2, 3),
        9,
        GAUSSIAN,
        min_perturbation=0.75,
        generator=torch.Generator().manual_seed(4),
        offdiag_ratio=0.5,
    )
    replay = torch.Generator().manual_seed(4)
    norm = restricted_gaussian(0.5, 0.75)[1]
    values: dict[tuple[int, int], list[float]] = {}
    for _ in range(9):
        x = GAUSSIAN.sample((2, 3), generator=replay)
        for i, j in np.ndindex(2, 3):
            t, y = x[i, j].item(), (MATRIX[j] @ x[i]).item()
            if abs(t) >= 0.75:
                values.setdefault((i, j), []).append(t * y / (norm * (t * t + 0.25)))
    for (i, j), kept in values.items():
        assert estimate[i, j].item() == pytest.approx(sum(kept) / len(kept), rel=1e-9)
    assert len(values) == 6


def test_entry_that_never_counted_is_nan():
    """One draw and a threshold of 1.5: most entries are dropped, and say so."""
    samples = single_estimates(GAUSSIAN, 1000, min_perturbation=1.5)
    dropped = samples.isnan().double().mean().item()
    assert dropped == pytest.approx(1 - math.erfc(1.5 / math.sqrt(2)), abs=0.03)


def test_kernel_is_not_trusted_where_the_sample_is_dropped():
    """A kernel that is infinite below the threshold does no harm, whatever is averaged."""
    estimate = estimate_diagonal(
        rowwise(MATRIX),
        (50, 3),
        30,
        UNIFORM,
        kernel=lambda x: (1 / x) / (x.abs() >= 0.5),
        min_perturbation=0.5,
        generator=torch.Generator().manual_seed(6),
    )
    assert estimate.isfinite().all()


def test_estimate_of_a_convolution():
    """The diagonal of a convolution is its middle weight, at every pixel of every channel."""
    weight = torch.tensor([[[[0.5, -1.0, 0.3], [2.0, 1.7, -0.4], [0.2, 0.9, 1.1]]]]).double()
    scale = torch.linspace(-1, 2, 20, dtype=torch.float64).reshape(1, 1, 4, 5)

    def operator(x: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=1) + scale * x

    generator = torch.Generator().manual_seed(5)
    estimates = estimate_diagonal(operator, (3000, 1, 4, 5), 2, generator=generator)
    assert estimates.shape == (3000, 1, 4, 5)
    expected = (1.7 + scale).expand(3000, 1, 4, 5)
    for i, j in np.ndindex(4, 5):
        assert standard_errors_off(estimates[:, 0, i, j], expected[0, 0, i, j].item()) < 4


def test_estimate_takes_scalars_and_dtypes():
    """A 0-dim operator, and float32 throughout when asked."""
    generator = torch.Generator().manual_seed(0)
    assert estimate_diagonal(lambda x: 3 * x, (), 2, generator=generator).item() == 3.0
    seen = []

    def operator(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return 2 * x

    estimate = estimate_diagonal(operator, (2,), 1, dtype=torch.float32, generator=generator)
    assert estimate.dtype == seen[0] == torch.float32


@pytest.mark.parametrize("density", SAMPLED, ids=lambda d: d.name)
def test_estimate_follows_the_generator_and_nothing_else(density: Density):
    """Same seed, same bits; other seed, others; the global random state does not move."""
    state = torch.get_rng_state()
    first, again, other = (single_estimates(density, 50, seed=s) for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
