"""Theorem 4: the loss over a gradient glass, against simulated glasses and plain sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aliceopt.theory.curvature import optimal_step
from aliceopt.theory.glass_bound import (
    GLASS_LOSS_FACTOR,
    directional_density,
    glass_coherence,
    glass_loss_bound,
    loss_bound,
    loss_variance,
)

SIZES = [0.0] + [10.0**n for n in range(-30, 31, 5)]


def randoms(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def simulated_loss_changes(rho: float, d: float, kinks: int, runs: int, seed: int) -> Tensor:
    """Loss changes over a displacement ``d`` through glasses with explicit gradient jumps.

    Kinks lie uniformly along the way; each adds a random jump to the gradient from there on, with
    jump variances that add up to ``rho |d|``.
    """
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(runs, kinks, generator=generator, dtype=torch.float64)
    signs = 2.0 * torch.randint(0, 2, (runs, kinks), generator=generator) - 1
    jumps = signs * math.sqrt(rho * abs(d) / kinks)
    return (jumps * (1 - places) * d).sum(1)


def within_four_standard_errors(samples: Tensor, expected: float) -> bool:
    error = samples.std().item() / math.sqrt(len(samples))
    return abs(samples.mean().item() - expected) < 4 * error


def in_float32(f: Callable[..., Tensor], *arguments: float) -> float:
    """``f`` of these numbers as float32 tensors."""
    return f(*(torch.tensor(x) for x in arguments)).item()


def assert_float32_matches(value: float, exact: float, case: object) -> None:
    """Right where float32 can hold it; where it cannot, infinite or tiny but never NaN."""
    info = torch.finfo(torch.float32)
    if exact > info.max:
        assert value == math.inf, case
    elif exact < info.tiny:
        assert 0 <= value <= info.tiny, case
    else:
        assert value == pytest.approx(exact, rel=1e-5), case


@pytest.mark.parametrize(("rho", "d"), [(1.0, 1.0), (3.0, -0.5), (0.02, 7.0)])
def test_variance_and_bound_match_simulated_glasses(rho: float, d: float):
    """``E Delta^2 = rho |d|^3 / 3``, and reflected trajectories rise by the bound, ``E|Delta|``."""
    changes = simulated_loss_changes(rho, d, kinks=150, runs=40_000, seed=1)
    density, displacement = torch.tensor([[rho], [d]], dtype=torch.float64)
    variance = loss_variance(density, displacement).item()
    rise = glass_loss_bound(density, displacement).item()
    assert within_four_standard_errors(changes.square(), variance)
    assert within_four_standard_errors(changes.abs(), rise)


def test_number_of_the_paper():
    """At unit density and displacement the bound is sqrt(2 / 3 pi) = 0.4607."""
    assert pytest.approx(0.46066, abs=5e-6) == GLASS_LOSS_FACTOR
    one = torch.ones((), dtype=torch.float64)
    assert glass_loss_bound(one, one).item() == pytest.approx(0.46066, abs=5e-6)


def test_separable_bound_sums_roots_and_joint_bound_roots_the_sum():
    """Against a loop in Python floats, over a batch of displacements."""
    rho, d = randoms(0, 5).abs(), randoms(1, 3, 5)
    bounds = glass_loss_bound(rho, d)
    assert bounds.shape == (3,)
    for bound, row in zip(bounds.tolist(), d.tolist(), strict=True):
        roots = [
            math.sqrt(2 / (3 * math.pi) * r * abs(x) ** 3)
            for r, x in zip(rho.tolist(), row, strict=True)
        ]
        assert bound == pytest.approx(sum(roots), rel=1e-13)
        joint = glass_loss_bound(rho, torch.tensor(row, dtype=torch.float64), joint=True)
        assert joint.item() == pytest.approx(math.hypot(*roots), rel=1e-13)


def test_joint_bound_is_exceeded_by_at_most_the_root_of_the_dimension():
    """Never below the joint bound, never above sqrt(n) times it."""
    rho, d = randoms(2, 200, 9).abs(), randoms(3, 200, 9)
    ratio = glass_loss_bound(rho, d) / glass_loss_bound(rho, d, joint=True)
    assert (ratio > 1).all()
    assert (ratio < 3).all()


def test_joint_and_separable_bounds_touch_at_both_extremes():
    """Equal for one moving coordinate; apart by exactly sqrt(n) for equal coordinates."""
    rho = torch.full((4,), 2.0, dtype=torch.float64)
    single = torch.tensor([0.0, -3.0, 0.0, 0.0], dtype=torch.float64)
    joint = glass_loss_bound(rho, single, joint=True).item()
    assert glass_loss_bound(rho, single).item() == pytest.approx(joint, rel=1e-14)
    equal = torch.full((4,), -3.0, dtype=torch.float64)
    joint = glass_loss_bound(rho, equal, joint=True).item()
    assert glass_loss_bound(rho, equal).item() == pytest.approx(2 * joint, rel=1e-14)


@pytest.mark.parametrize("joint", [False, True])
def test_bound_grows_with_the_power_three_halves(joint: bool):
    """Four times the displacement is eight times the bound; four times the density is twice."""
    rho, d = randoms(4, 6).abs(), randoms(5, 6)
    base = glass_loss_bound(rho, d, joint=joint).item()
    assert glass_loss_bound(rho, -4 * d, joint=joint).item() == pytest.approx(8 * base, rel=1e-13)
    assert glass_loss_bound(4 * rho, d, joint=joint).item() == pytest.approx(2 * base, rel=1e-13)


@pytest.mark.parametrize("joint", [False, True])
def test_loss_bound_is_gradient_plus_hessian_plus_glass(joint: bool):
    """Term by term, in Python floats."""
    d, g, rho, h = randoms(6, 4), randoms(7, 4), randoms(8, 4).abs(), randoms(9, 4).abs()
    roots, smooth = [], 0.0
    for x, slope, r, c in zip(d.tolist(), g.tolist(), rho.tolist(), h.tolist(), strict=True):
        smooth += x * slope + c * x * x / 2
        roots.append(math.sqrt(2 * r / (3 * math.pi) * abs(x) ** 3))
    glass = math.hypot(*roots) if joint else sum(roots)
    assert loss_bound(d, g, rho, h, joint=joint).item() == pytest.approx(smooth + glass, rel=1e-12)


def test_loss_bound_is_convex():
    """The chord lies above the curve, for the separable form, between random displacements."""
    g, rho, h = randoms(10, 5), randoms(11, 5).abs(), randoms(12, 5).abs()
    a, b = 3 * randoms(13, 500, 5), 3 * randoms(14, 500, 5)
    chord = (loss_bound(a, g, rho, h) + loss_bound(b, g, rho, h)) / 2
    assert (loss_bound((a + b) / 2, g, rho, h) < chord).all()


def test_separable_bound_is_stationary_at_the_optimal_step():
    """Autograd of the bound vanishes at Theorem 5's step, in every coordinate."""
    g, rho, h = randoms(15, 50), randoms(16, 50).abs(), randoms(17, 50).abs()
    step = optimal_step(g, rho, h).requires_grad_()
    (slope,) = torch.autograd.grad(loss_bound(step, g, rho, h), step)
    assert (slope.abs() < 1e-12 * g.abs().max()).all()


def test_joint_bound_is_not_stationary_at_the_optimal_step():
    """The closed form minimises the separable form only: the joint form still wants to move."""
    g, rho, h = torch.ones(2).double(), torch.ones(2).double(), torch.zeros(2).double()
    step = optimal_step(g, rho, h).requires_grad_()
    (slope,) = torch.autograd.grad(loss_bound(step, g, rho, h, joint=True), step)
    # Two equal coordinates share one root, so glass pays 1/sqrt(2) of what the step assumes.
    torch.testing.assert_close(slope, torch.full((2,), 1 - math.sqrt(0.5)).double())


@pytest.mark.parametrize("joint", [False, True])
def test_scalars_count_as_one_coordinate(joint: bool):
    """0-dim arguments give what a vector of length one gives."""
    values = [-0.7, 1.3, 2.0, 0.4]
    as_scalars = loss_bound(*(torch.tensor(v) for v in values), joint=joint)
    as_vectors = loss_bound(*(torch.tensor([v]) for v in values), joint=joint)
    assert as_scalars.shape == as_vectors.shape == ()
    assert as_scalars.item() == as_vectors.item()


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("rho", "d"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1e30)])
def test_no_glass_or_no_displacement_costs_exactly_nothing(rho: float, d: float, joint: bool):
    """Zero density or displacement is zero variance and zero bound, at any scale of the other."""
    assert in_float32(loss_variance, rho, d) == 0.0
    assert in_float32(lambda r, x: glass_loss_bound(r, x, joint=joint), rho, d) == 0.0


def test_float32_variance_is_right_wherever_it_can_be_represented():
    """``rho |d|^3 / 3`` for 1e-30 to 1e30 in both: the cube alone must not over- or underflow."""
    for rho, d in itertools.product(SIZES, SIZES):
        assert_float32_matches(in_float32(loss_variance, rho, d), rho * d**3 / 3, (rho, d))


@pytest.mark.parametrize("joint", [False, True])
def test_float32_bound_is_right_wherever_it_can_be_represented(joint: bool):
    """``sqrt(2 rho / 3 pi) |d|^1.5`` for 1e-30 to 1e30 in both, in either form."""
    for rho, d in itertools.product(SIZES, SIZES):
        value = in_float32(lambda r, x: glass_loss_bound(r, x, joint=joint), rho, d)
        exact = math.sqrt(2 / (3 * math.pi)) * math.sqrt(rho) * d**1.5
        assert_float32_matches(value, exact, (rho, d))


def test_directional_density_is_the_density_of_the_walk_along_the_signs():
    """Jumps along a known normal: the slope ``t . g`` jumps by ``a t . gamma``, whatever n.

    Kinks at rate 1 per unit of ``lambda`` on either side, all with the same jump vector: the
    second difference along t has mean square ``lambda (t . jump)^2 / 2``.
    """
    generator = torch.Generator().manual_seed(0)
    jump, radius, draws = randoms(1, 6), 0.5, 20_000
    signs = torch.ones(6, dtype=torch.float64)
    counts = torch.poisson(
        torch.full((draws, 2, 40), radius / 40, dtype=torch.float64), generator=generator
    )
    kicks = counts * (2.0 * torch.randint(0, 2, counts.shape, generator=generator) - 1)
    second = kicks.sum(dim=(1, 2))[:, None] * jump / 2
    found = directional_density(second, signs, radius).mean().item()
    assert found == pytest.approx(jump.sum().item() ** 2, rel=0.05)


@pytest.mark.parametrize("n", [1, 4, 100])
def test_coherence_is_one_for_jumps_in_step_and_falls_as_the_root_for_independent_ones(n: int):
    """``D = x t`` moves all coordinates together; independent entries add up like a walk."""
    signs = randoms(2, n).sign()
    together = randoms(3, 20_000, 1) * signs
    apart = randoms(4, 20_000, n)

    def kappa(second: Tensor) -> float:
        along = directional_density(second, signs, 0.1).mean()
        return glass_coherence(along, 2 / 0.1 * second.square().mean(0)).item()

    assert kappa(together) == pytest.approx(1.0, rel=1e-12)
    assert kappa(apart) == pytest.approx(n**-0.5, rel=0.05)
    assert kappa(together + apart) < 1 + 1e-12


def test_coherence_turns_the_separable_bound_into_the_one_along_the_move():
    """``kappa^2 rho`` in the sum of roots is one root of ``rho_t``, for equal moves."""
    density, along = randoms(5, 7).square(), torch.tensor(0.3, dtype=torch.float64)
    kappa = glass_coherence(along, density)
    move = torch.full_like(density, 0.02)
    separable = glass_loss_bound(kappa.square() * density, move)
    assert separable.item() == pytest.approx(glass_loss_bound(along, move[0]).item(), rel=1e-12)


def test_directional_density_refuses_a_radius_of_zero():
    with pytest.raises(ValueError, match="probe_radius"):
        directional_density(torch.ones(2), torch.ones(2), 0.0)
