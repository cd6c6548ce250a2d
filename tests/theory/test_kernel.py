"""Theorems 2 and 3, Appendix B: closed forms, own integrals, exhaustive signs, exact matrices."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from aliceopt.theory.kernel import (
    GAUSSIAN,
    RADEMACHER,
    UNIFORM,
    Density,
    estimate_diagonal,
    estimator_variance,
    from_pdf,
    kernel_norm,
    offdiag_ratio,
    optimal_kernel,
    two_sided,
    update_probability,
)

ROOT3, ROOT6 = math.sqrt(3), math.sqrt(6)
RATIOS = [0.01, 0.3, 1.0, 4.0]
MATRIX = torch.tensor([[2.0, 1.0, -0.5], [0.3, -1.5, 0.9], [3.0, -4.0, 0.7]], dtype=torch.float64)


def no_sampler(*_: object) -> Tensor:
    raise AssertionError("nothing is sampled here")


def sample_lopsided(
    shape: Sequence[int],
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    u = torch.rand(tuple(shape), generator=generator, dtype=dtype, device=device)
    return torch.where(u < 0.8, -0.5, 2.0).to(dtype)


TRIANGLE = from_pdf(lambda x: (1 - np.abs(x) / ROOT6) / ROOT6, (-ROOT6, ROOT6), name="triangle")
LOPSIDED = Density("lopsided", sample_lopsided, atoms=((-0.5, 0.8), (2.0, 0.2)))
SAMPLED = [RADEMACHER, GAUSSIAN, UNIFORM, two_sided(0.5), TRIANGLE, LOPSIDED]


def all_signs(width: int) -> Density:
    """Rademacher draws made exhaustive: a sample is every sign vector once, one per row."""
    rows = torch.arange(2**width)[:, None]
    signs = 2.0 * ((rows >> torch.arange(width)) & 1).double() - 1
    return Density("all signs", lambda *_: signs, atoms=((-1.0, 0.5), (1.0, 0.5)))


def simpson(function: Callable[[float], float], a: float, b: float, panels: int = 4000) -> float:
    """Composite Simpson rule in Python floats."""
    step = (b - a) / panels
    inner = math.fsum((4 if k % 2 else 2) * function(a + k * step) for k in range(1, panels))
    return step / 3 * (function(a) + inner + function(b))


def gaussian_norm(ratio: float) -> float:
    """``c`` of a standard normal in closed form."""
    w = ratio
    return 1 - w * math.sqrt(math.pi / 2) * math.exp(w * w / 2) * math.erfc(w / math.sqrt(2))


@functools.cache
def restricted_gaussian(ratio: float, threshold: float) -> tuple[float, float]:
    """(kept probability, ``c`` over the kept part) of a standard normal, by own integration."""
    kept = math.erfc(threshold / math.sqrt(2))
    scale = 2 / math.sqrt(2 * math.pi)

    def integrand(x: float) -> float:
        return scale * math.exp(-x * x / 2) * x * x / (x * x + ratio * ratio)

    return kept, simpson(integrand, threshold, 12.0) / kept


def flat_norm(ratio: float, a: float, b: float) -> float:
    """``c`` of a density uniform on ``a <= |x| <= b``, in closed form."""
    return 1 - ratio * (math.atan(b / ratio) - math.atan(a / ratio)) / (b - a)


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


# --- the kernel and its norm -------------------------------------------------------------------


@pytest.mark.parametrize("ratio", RATIOS)
def test_norm_has_its_closed_forms(ratio: float):
    """Erfc for the Gaussian, atan for flat densities, ``1 / (1 + ratio^2)`` for Rademacher."""
    assert kernel_norm(GAUSSIAN, ratio) == pytest.approx(gaussian_norm(ratio), rel=1e-11)
    assert kernel_norm(UNIFORM, ratio) == pytest.approx(flat_norm(ratio, 0, ROOT3), rel=1e-11)
    assert kernel_norm(RADEMACHER, ratio) == pytest.approx(1 / (1 + ratio**2), rel=1e-14)
    outer = (math.sqrt(12 - 3 * 0.36) - 0.6) / 2
    assert kernel_norm(two_sided(0.6), ratio) == pytest.approx(
        flat_norm(ratio, 0.6, outer), rel=1e-11
    )


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("threshold", [0.25, 1.0, 1.6])
def test_restricted_norm_is_the_mean_over_the_kept_part(ratio: float, threshold: float):
    """Against own integration (Gaussian) and the closed form (uniform)."""
    kept, norm = restricted_gaussian(ratio, threshold)
    assert update_probability(GAUSSIAN, threshold) == pytest.approx(kept, rel=1e-11)
    assert kernel_norm(GAUSSIAN, ratio, threshold) == pytest.approx(norm, rel=1e-10)
    assert update_probability(UNIFORM, threshold) == pytest.approx(1 - threshold / ROOT3, rel=1e-11)
    assert kernel_norm(UNIFORM, ratio, threshold) == pytest.approx(
        flat_norm(ratio, threshold, ROOT3), rel=1e-11
    )


def test_norm_of_a_diagonal_matrix_is_one():
    """Nothing off the diagonal: ratio 0, ``c = 1``, no variance."""
    for density in SAMPLED:
        assert kernel_norm(density, 0.0) == pytest.approx(1.0, abs=1e-12)
        assert estimator_variance(density, 0.0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("ratio", [1e-2, 1e-3, 1e-4, 1e-6])
def test_variance_of_a_nearly_diagonal_matrix(ratio: float):
    """The narrow dip of the integrand at zero is resolved, so small variances come out right."""
    norm = gaussian_norm(ratio)
    assert estimator_variance(GAUSSIAN, ratio) == pytest.approx(1 / norm - 1, rel=1e-3)


def test_optimal_kernel_is_the_formula():
    """``x / (c (x^2 + ratio^2))``, odd in x, zero at zero even for ratio 0."""
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0], dtype=torch.float64)
    expected = [v / (0.4 * (v * v + 2.25)) for v in x.tolist()]
    values = optimal_kernel(x, 1.5, 0.4)
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64))
    assert optimal_kernel(x, 0.0, 1.0).tolist() == [-0.5, -2.0, 0.0, 2.0, 0.5]


@pytest.mark.parametrize("ratio", [0.0, *RATIOS])
def test_rademacher_kernel_is_the_sign_whatever_the_ratio(ratio: float):
    """Theorem 3: ``k(x) = x``, so the ratio need not be known."""
    x = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(optimal_kernel(x, ratio, kernel_norm(RADEMACHER, ratio)), x)


# --- variance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", RATIOS)
def test_variance_is_one_over_the_norm_less_one(ratio: float):
    """Theorem 2, ``1/c - 1``, with ``c`` in closed form; Rademacher: ``ratio^2``."""
    for density, norm in [
        (GAUSSIAN, gaussian_norm(ratio)),
        (UNIFORM, flat_norm(ratio, 0, ROOT3)),
    ]:
        assert estimator_variance(density, ratio) == pytest.approx(1 / norm - 1, rel=1e-8)
    assert estimator_variance(RADEMACHER, ratio) == pytest.approx(ratio**2, rel=1e-10)


def test_plain_kernel_has_variance_three_on_gaussian_draws():
    """``k(x) = x`` at ratio 1: ``E[x^4 + x^2] - 1 = 3``, what the paper prints for the optimum."""
    assert estimator_variance(GAUSSIAN, 1.0, kernel=lambda x: x) == pytest.approx(3.0, rel=1e-10)
    assert estimator_variance(RADEMACHER, 1.5, kernel=lambda x: x) == pytest.approx(2.25)


@pytest.mark.parametrize("amount", [-0.1, -0.01, 0.01, 0.1])
def test_no_perturbed_unbiased_kernel_is_better(amount: float):
    """``x^3 - 3x`` is orthogonal to x, and adds exactly ``48 amount^2`` to the variance at ratio 1.

    ``E[(x^3 - 3x)^2 (x^2 + 1)] = 105 - 75 + 9 + 9 = 48`` over a standard normal.
    """
    norm = gaussian_norm(1.0)

    def kernel(x: Tensor) -> Tensor:
        return x / (norm * (x * x + 1)) + amount * (x**3 - 3 * x)

    expected = 1 / norm - 1 + 48 * amount**2
    assert estimator_variance(GAUSSIAN, 1.0, kernel=kernel) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("threshold", [0.0, 0.8])
def test_optimal_kernel_given_by_hand_has_the_optimal_variance(threshold: float):
    """The general formula and ``(1/c - 1) / kept`` are one number, restricted or not."""
    kept, norm = restricted_gaussian(0.7, threshold)
    by_hand = estimator_variance(
        GAUSSIAN, 0.7, threshold, kernel=lambda x: x / (norm * (x * x + 0.49))
    )
    assert by_hand == pytest.approx((1 / norm - 1) / kept, rel=1e-8)
    assert estimator_variance(GAUSSIAN, 0.7, threshold) == pytest.approx(by_hand, rel=1e-8)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    low=st.floats(0.05, 1.0),
    high=st.floats(1.0, 20.0),
    ratio=st.floats(0.05, 20.0),
    symmetric=st.booleans(),
)
def test_rademacher_is_the_best_of_all_atoms(
    low: float, high: float, ratio: float, symmetric: bool
):
    """Theorem 3: no density of two or four atoms has a variance below ``ratio^2``.

    Symmetric: +-low and +-high in the proportion of unit variance. Lopsided: ``-low`` against
    ``1/low``, which has zero mean and unit variance with probabilities ``1 : low^2``.
    """
    if symmetric:
        p = (1 - low**2) / (high**2 - low**2) if high > low else 0.5
        sides = ((low, (1 - p) / 2), (high, p / 2))
        atoms = tuple((s * x, q) for x, q in sides for s in (-1.0, 1.0))
    else:
        q = low**2 / (1 + low**2)
        atoms = ((-low, 1 - q), (1 / low, q))
    density = Density("atoms", no_sampler, atoms=atoms)
    assert estimator_variance(density, ratio) >= ratio**2 * (1 - 1e-9)


@pytest.mark.parametrize("ratio", RATIOS)
def test_hollow_densities_fall_to_rademacher_and_never_below(ratio: float):
    """`two_sided`: the variance decreases all the way from the uniform's to ``ratio^2``."""
    inners = [0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99, 0.999]
    variances = [estimator_variance(two_sided(inner), ratio) for inner in inners]
    assert all(a > b for a, b in itertools.pairwise(variances))
    assert variances[-1] > ratio**2
    assert variances[-1] == pytest.approx(ratio**2, rel=1e-5)
    for density in (GAUSSIAN, TRIANGLE, LOPSIDED):
        assert estimator_variance(density, ratio) > ratio**2


# --- Appendix B's numbers, corrected -----------------------------------------------------------


def test_gaussian_constants():
    """Ratio 1: kernel constant 2.904 and variance 1.904, not the paper's 2 and 3."""
    assert 1 / kernel_norm(GAUSSIAN, 1.0) == pytest.approx(2.904, abs=5e-4)
    assert estimator_variance(GAUSSIAN, 1.0) == pytest.approx(1.904, abs=5e-4)


def test_restricted_gaussian_constants():
    """Threshold 1: constant 1.488, variance 0.488 per kept, 1.537 per drawn sample; 31.7% kept."""
    norm, kept = kernel_norm(GAUSSIAN, 1.0, 1.0), update_probability(GAUSSIAN, 1.0)
    assert kept == pytest.approx(0.317, abs=5e-4)
    assert 1 / norm == pytest.approx(1.488, abs=5e-4)
    assert estimator_variance(GAUSSIAN, 1.0, 1.0) * kept == pytest.approx(0.488, abs=5e-4)
    assert estimator_variance(GAUSSIAN, 1.0, 1.0) == pytest.approx(1.537, abs=5e-4)


def test_best_threshold_is_three_quarters():
    """The least variance per drawn sample is 1.474, at 0.75, and still above Rademacher's 1."""
    grid = [k / 100 for k in range(40, 121, 5)]
    ours = {t: estimator_variance(GAUSSIAN, 1.0, t) for t in grid}
    for t, variance in ours.items():
        kept, norm = restricted_gaussian(1.0, t)
        assert variance == pytest.approx((1 / norm - 1) / kept, rel=1e-8)
    assert min(ours, key=ours.__getitem__) == 0.75
    assert ours[0.75] == pytest.approx(1.474, abs=5e-4)
    assert estimator_variance(RADEMACHER, 1.0) == pytest.approx(1.0)


def test_constant_of_the_paper_is_biased():
    """``2 x / (x^2 + 1)`` on Gaussian draws finds 0.689 of the diagonal."""
    samples = single_estimates(GAUSSIAN, 40_000, kernel=lambda x: 2 * x / (x * x + 1))
    for i, m in enumerate(MATRIX.diagonal().tolist()):
        assert standard_errors_off(samples[:, i], 0.6886 * m) < 4
        assert standard_errors_off(samples[:, i], m) > 4


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
