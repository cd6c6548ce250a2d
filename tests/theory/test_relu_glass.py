"""Theorem 1: density matrix, bound and expectation, against loops and simulated kinks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aliceopt.theory.relu_glass import (
    expected_variation,
    glass_density,
    glass_density_matrix,
    variation_bound,
)
from theory_cases import randoms


@pytest.fixture
def units() -> tuple[Tensor, Tensor, float]:
    """Seven units over four parameters: pre-activation gradients, loss gradients, threshold."""
    return randoms(0, 7, 4), randoms(1, 7), 0.3


def test_density_matrix_is_the_sum_over_units(units: tuple[Tensor, Tensor, float]):
    """``R_ij = 1/(2 T) sum_k gamma_ki^2 (dL/dz_k)^2 |gamma_kj|``, by a loop over i, j and k."""
    gamma, slope, threshold = (u.tolist() if isinstance(u, Tensor) else u for u in units)
    matrix = glass_density_matrix(*units)
    for i in range(4):
        for j in range(4):
            pairs = zip(gamma, slope, strict=True)
            total = sum(row[i] ** 2 * s**2 * abs(row[j]) for row, s in pairs)
            assert matrix[i, j].item() == pytest.approx(total / (2 * threshold), rel=1e-13)


def test_density_is_the_diagonal(units: tuple[Tensor, Tensor, float]):
    """``1/(2 T) sum_k |gamma_ki|^3 (dL/dz_k)^2``, by a loop, and the diagonal of the matrix."""
    gamma, slope, threshold = units
    density = glass_density(*units)
    for i in range(4):
        pairs = zip(gamma.tolist(), slope.tolist(), strict=True)
        total = sum(abs(row[i]) ** 3 * s**2 for row, s in pairs)
        assert density[i].item() == pytest.approx(total / (2 * threshold), rel=1e-13)
    torch.testing.assert_close(density, glass_density_matrix(*units).diagonal())


def test_bound_is_the_matrix_times_the_displacement(units: tuple[Tensor, Tensor, float]):
    """``R |d|`` with the explicit matrix."""
    d = randoms(2, 4)
    torch.testing.assert_close(variation_bound(*units, d), glass_density_matrix(*units) @ d.abs())


def test_expected_variation_keeps_the_inner_product(units: tuple[Tensor, Tensor, float]):
    """``1/(2 T) sum_k gamma_k^2 (dL/dz_k)^2 |d . gamma_k|``, by a loop."""
    gamma, slope, threshold = units
    d = randoms(3, 4)
    total = torch.zeros(4, dtype=torch.float64)
    for row, s in zip(gamma, slope, strict=True):
        total += row**2 * s**2 * abs(float(row @ d)) / (2 * threshold)
    torch.testing.assert_close(expected_variation(gamma, slope, threshold, d), total)


def test_bound_is_never_below_the_expected_variation(units: tuple[Tensor, Tensor, float]):
    """The triangle inequality, strict for these displacements."""
    for seed in range(20):
        d = randoms(50 + seed, 4)
        assert (variation_bound(*units, d) > expected_variation(*units, d)).all()


@pytest.mark.parametrize("size", [0.7, -0.7])
def test_bound_equals_the_expected_variation_along_one_coordinate(
    units: tuple[Tensor, Tensor, float], size: float
):
    """One moving parameter leaves nothing to the triangle inequality."""
    for j in range(4):
        d = torch.zeros(4, dtype=torch.float64)
        d[j] = size
        torch.testing.assert_close(variation_bound(*units, d), expected_variation(*units, d))
        column = glass_density_matrix(*units)[:, j]
        torch.testing.assert_close(variation_bound(*units, d), abs(size) * column)


def test_triangle_inequality_loses_the_root_of_the_fan_in():
    """Random signs in 400 parameters: bound over expectation is near sqrt(400), i.e. 20."""
    gamma, slope = randoms(4, 200, 400), randoms(5, 200)
    d = randoms(6, 400).sign()
    ratio = (
        variation_bound(gamma, slope, 1.0, d) / expected_variation(gamma, slope, 1.0, d)
    ).mean()
    assert 0.8 * 20 < ratio.item() < 1.25 * 20


def test_simulated_kinks_have_the_expected_variation():
    """Uniform pre-activations, jumps of random sign: mean square gradient change, to 4 s.e.

    Every unit that the displacement carries through zero adds ``+-dL/dz gamma`` to the gradient.
    """
    units_count, params, runs, threshold = 12, 3, 40_000, 2.0
    gamma, slope = randoms(7, units_count, params), randoms(8, units_count)
    d = torch.tensor([0.3, -0.2, 0.25], dtype=torch.float64)
    assert (gamma @ d).abs().max() < threshold
    generator = torch.Generator().manual_seed(9)
    y = (
        2 * torch.rand(runs, units_count, generator=generator, dtype=torch.float64) - 1
    ) * threshold
    signs = 2.0 * torch.randint(0, 2, (runs, units_count), generator=generator) - 1
    previous = None
    for scale in (1.0, 0.5):
        crossed = (y > 0) != (y + scale * gamma @ d > 0)
        change = (crossed * signs * slope) @ gamma
        mean, error = change.square().mean(0), change.square().std(0) / math.sqrt(runs)
        predicted = expected_variation(gamma, slope, threshold, scale * d)
        assert ((mean - predicted).abs() < 4 * error).all()
        assert (mean < variation_bound(gamma, slope, threshold, scale * d)).all()
        if previous is not None:  # linear, not quadratic, in the length of the displacement
            torch.testing.assert_close(2 * predicted, previous)
        previous = predicted


def test_no_units_are_no_glass():
    """Empty input gives zeros of the right shape."""
    gamma, slope, d = torch.zeros(0, 3), torch.zeros(0), torch.ones(3)
    assert torch.equal(glass_density_matrix(gamma, slope, 1.0), torch.zeros(3, 3))
    assert torch.equal(glass_density(gamma, slope, 1.0), torch.zeros(3))
    assert torch.equal(variation_bound(gamma, slope, 1.0, d), torch.zeros(3))
    assert torch.equal(expected_variation(gamma, slope, 1.0, d), torch.zeros(3))
