"""Theorems 2 and 3, Appendix B: kernel, norm and variance; closed forms and own integrals."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aliceopt.theory.kernel import (
    GAUSSIAN,
    RADEMACHER,
    UNIFORM,
    Density,
    estimator_variance,
    kernel_norm,
    optimal_kernel,
    two_sided,
    update_probability,
)
from theory_cases import LOPSIDED, SAMPLED, TRIANGLE, no_sampler, restricted_gaussian

ROOT3 = math.sqrt(3)
RATIOS = [0.01, 0.3, 1.0, 4.0]


def gaussian_norm(ratio: float) -> float:
    """``c`` of a standard normal in closed form."""
    w = ratio
    return 1 - w * math.sqrt(math.pi / 2) * math.exp(w * w / 2) * math.erfc(w / math.sqrt(2))


def flat_norm(ratio: float, a: float, b: float) -> float:
    """``c`` of a density uniform on ``a <= |x| <= b``, in closed form."""
    return 1 - ratio * (math.atan(b / ratio) - math.atan(a / ratio)) / (b - a)


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
