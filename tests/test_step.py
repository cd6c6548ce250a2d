"""Running averages to a step: its bounds, its curvature, and where it takes the parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aliceopt.step import anatomy, bounded_step, moved
from aliceopt.topography import Averages, Rates

NUMBERS: dict[str, Any] = {
    "beta1": 0.9,
    "beta2": 0.99,
    "beta_topo": 0.99,
    "grad_weight": 0.5,
    "sq_weight": 0.25,
    "topo_weight": 0.5,
    "lr": 1e9,
    "lr_min": 0.0,
    "eps": 0.0,
    "step_fraction": 0.1,
    "lookahead": 1.0,
    "weight_decay": 0.0,
    "limit": "fixed",
    "hessian": "abs",
    "glass": True,
}
LIMITS = ["adam", "fixed", "sgd"]


def rates(**changes: Any) -> Rates:
    """Wide bounds, no eps, and weights that are easy to divide by."""
    return Rates(**{**NUMBERS, **changes})


def vector(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def averages(
    grad: Tensor,
    *,
    glass_density: Tensor | None = None,
    hess: Tensor | None = None,
    grad_sq: Tensor | None = None,
) -> Averages:
    """Uncorrected averages; those not given are zero."""
    zero = torch.zeros_like(grad)
    rest = (zero if a is None else a for a in (grad_sq, glass_density, hess))
    return Averages(grad, *rest)


def same(actual: Tensor | None, expected: Tensor) -> None:
    assert actual is not None
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=0)


# ---- the quasi-Newton length -----------------------------------------------------------------


def test_without_glass_the_step_is_newton_s() -> None:
    """-G/H of the corrected averages: -(3/0.5)/(2/0.5) = -1.5."""
    avg = averages(vector(3, -3, 1), hess=vector(2, 2, 4))
    same(bounded_step(avg, rates()), vector(-1.5, 1.5, -0.25))


def test_without_hessian_the_step_is_2_pi_g_squared_over_3_rho() -> None:
    """Pure glass: d = 2 pi G^2/(3 R), the closed form of Theorem 5."""
    avg = averages(vector(3, -1), glass_density=vector(5, 2))
    expected = vector(-2 * math.pi * 36 / 30, 2 * math.pi * 4 / 12)
    same(bounded_step(avg, rates()), expected)
    same(bounded_step(avg._replace(hess=None), rates(hessian="none")), expected)


@given(
    grad=st.floats(1e-6, 1e3),
    density=st.floats(0.0, 1e3),
    hess=st.floats(1e-3, 1e3),
    negative=st.booleans(),
)
@settings(deadline=None)
def test_length_minimises_theorem_5_s_bound(
    grad: float, density: float, hess: float, negative: bool
) -> None:
    """The derivative of -|g| d + h d^2/2 + sqrt(2 rho/3 pi) d^(3/2) vanishes at the step."""
    signed = -grad if negative else grad
    avg = averages(
        vector(signed * 0.5), glass_density=vector(density * 0.5), hess=vector(hess * 0.5)
    )
    step = bounded_step(avg, rates()).item()
    d = abs(step)
    slopes = (hess * d, 1.5 * math.sqrt(2 * density / (3 * math.pi)) * math.sqrt(d))
    assert math.copysign(1.0, step) == -math.copysign(1.0, signed)
    assert sum(slopes) == pytest.approx(grad, rel=1e-9)


def test_eps_enters_both_denominators() -> None:
    """Where hg is (3/4pi) R/(|G| + eps), hbar is hg + H + sqrt(hg (hg + 2 H)) + eps."""
    grad, density, hess, eps = 1.5, 4 * math.pi, 2.0, 0.5
    avg = averages(vector(0.75), glass_density=vector(2 * math.pi), hess=vector(1.0))
    hg = 3 / (4 * math.pi) * density / (grad + eps)
    hbar = hg + hess + math.sqrt(hg * (hg + 2 * hess)) + eps
    parts = anatomy(avg, rates(eps=eps))
    same(parts.glass_curvature, vector(hg))
    same(parts.total_curvature, vector(hbar))
    same(parts.newton, vector(grad / hbar))
    same(bounded_step(avg, rates(eps=eps)), vector(-grad / hbar))


# ---- bounds ----------------------------------------------------------------------------------

GRADS = vector(3, -0.5, 1e-3)
SQUARES = vector(4, 1, 1e-6)
UNITS = {
    "fixed": (1, 1, 1),
    "sgd": (3, 0.5, 1e-3),  # uncorrected
    "adam": (6 / (4 + 0.1), 1 / (2 + 0.1), 2e-3 / (2e-3 + 0.1)),  # corrected, with eps
}


@pytest.mark.parametrize("limit", LIMITS)
def test_units(limit: str) -> None:
    """Bounds are lr_min and lr times 1, the uncorrected |g|, or Adam's corrected ratio."""
    avg = averages(GRADS, grad_sq=SQUARES, hess=vector(1, 1, 1))
    parts = anatomy(avg, rates(limit=limit, lr=0.3, lr_min=0.2, eps=0.1))
    same(parts.upper, 0.3 * vector(*UNITS[limit]))
    same(parts.lower, 0.2 * vector(*UNITS[limit]))


@pytest.mark.parametrize("lr_min", [0.3, 5.0])
@pytest.mark.parametrize("limit", LIMITS)
def test_equal_bounds_decide_alone(limit: str, lr_min: float) -> None:
    """With lr_min at or above lr the step is lr units, whatever the curvature."""
    for hess in (vector(0, 1e-9, 1), vector(1e9, 1e12, 1)):
        avg = averages(GRADS, grad_sq=SQUARES, hess=hess, glass_density=hess)
        numbers = rates(limit=limit, lr=0.3, lr_min=lr_min, eps=0.1)
        same(bounded_step(avg, numbers), -GRADS.sign() * 0.3 * vector(*UNITS[limit]))
        parts = anatomy(avg, numbers)
        assert torch.equal(parts.lower, parts.upper)


@pytest.mark.parametrize("limit", LIMITS)
def test_clamping(limit: str) -> None:
    """Too long is cut to lr units, too short stretched to lr_min units, between is Newton's."""
    avg = averages(vector(-1, -1, -1), grad_sq=vector(0.25, 0.25, 0.25), hess=vector(1e-3, 5, 1e3))
    unit = {"fixed": 1.0, "sgd": 1.0, "adam": 2.0}[limit]
    step = bounded_step(avg, rates(limit=limit, lr=0.5, lr_min=0.05))
    same(step, vector(0.5 * unit, 0.2, 0.05 * unit))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    "change", [{"topo_weight": 0.0}, {"hessian": "none", "glass": False}], ids=["unmeasured", "off"]
)
def test_without_curvature_the_upper_bound_rules(limit: str, change: dict[str, Any]) -> None:
    """Nothing measured yet, or no term on: lr units, and no quasi-Newton length at all."""
    avg = averages(GRADS, grad_sq=SQUARES, hess=vector(1, 1, 1), glass_density=vector(1, 1, 1))
    numbers = rates(limit=limit, lr=0.3, lr_min=0.2, eps=0.1, **change)
    assert anatomy(avg, numbers).newton is None
    same(bounded_step(avg, numbers), -GRADS.sign() * 0.3 * vector(*UNITS[limit]))


def test_a_term_that_is_off_does_not_count() -> None:
    """With glass off only the Hessian bounds the step, and the other way round."""
    same(bounded_step(Averages(vector(1), vector(1), None, vector(2)), rates()), vector(-0.5))
    density = vector(2 * math.pi / 3)
    pure = bounded_step(Averages(vector(0.5), vector(1), 0.5 * density, None), rates())
    same(pure, vector(-1.0))


def test_zero_lr_is_no_step() -> None:
    """In a warm-up at lr = 0 the step is zero for every limit, also with lr_min > 0."""
    avg = averages(GRADS, grad_sq=SQUARES, hess=vector(1, 1, 1))
    for limit in LIMITS:
        assert torch.equal(
            bounded_step(avg, rates(limit=limit, lr=0.0, lr_min=0.1)).abs(), 0 * GRADS
        )


# ---- zeros and extremes ----------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("lr_min", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("limit", LIMITS)
def test_zero_gradient_is_zero_step(limit: str, lr_min: float, eps: float) -> None:
    """sign(0) = 0: no step where g is +0 or -0, and no NaN from 0/0, whatever the rest is."""
    zeros = vector(0.0, -0.0, 0.0, 0.0)
    for measured in (0.0, 0.5):
        for rest in (vector(0, 0, 0, 0), vector(1, 1, 1, 1)):
            avg = averages(zeros, grad_sq=rest, glass_density=rest, hess=rest)
            numbers = rates(limit=limit, lr=0.5, lr_min=lr_min, eps=eps, topo_weight=measured)
            assert torch.equal(bounded_step(avg, numbers), torch.zeros_like(zeros))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("limit", LIMITS)
def test_no_curvature_measured_as_zero_is_the_upper_bound(limit: str, dtype: torch.dtype) -> None:
    """Flat all around, with eps = 0: |g|/0 is cut to the upper bound, in the given dtype."""
    avg = averages(vector(2, -2, dtype=dtype), grad_sq=vector(1, 1, dtype=dtype))
    step = bounded_step(avg, rates(limit=limit, lr=0.5))
    assert step.dtype == dtype
    unit = {"fixed": 1.0, "sgd": 2.0, "adam": 2.0}[limit]
    assert step.tolist() == [-0.5 * unit, 0.5 * unit]


@pytest.mark.parametrize("limit", LIMITS)
def test_extreme_float32_values_give_finite_steps(limit: str) -> None:
    """Tiny gradients, huge glass and overflowing curvature clamp to something finite."""
    grad = vector(1e-30, 1e-30, -1e15, 1e15, dtype=torch.float32)
    density = vector(1e30, 0, 1e-30, 3e38, dtype=torch.float32)
    hess = vector(0, 1e-30, 3e38, 3e38, dtype=torch.float32)
    avg = averages(grad, grad_sq=grad.square(), glass_density=density, hess=hess)
    step = bounded_step(avg, rates(limit=limit, lr=0.5, lr_min=0.01, eps=1e-8))
    assert torch.isfinite(step).all()
    assert ((step == 0) | (step.sign() == -grad.sign())).all()


def test_underflowing_square_leaves_the_newton_length() -> None:
    """With eps = 0 and a gradient whose square is 0 in float32, Adam's unit is infinite.

    Between 0 and infinity the quasi-Newton length stands; 0 times the unit is not NaN.
    """
    grad = vector(1e-30, -1e-30, dtype=torch.float32)
    avg = averages(grad, grad_sq=grad.square(), hess=vector(2, 2, dtype=torch.float32))
    step = bounded_step(avg, rates(limit="adam", lr=0.5, lr_min=0.0, eps=0.0))
    torch.testing.assert_close(step, -grad / 2, rtol=1e-6, atol=0)


@given(
    numbers=st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)),
        min_size=1,
        max_size=5,
    ),
    bounds=st.tuples(st.floats(0, 10), st.floats(0, 10)),
    limit=st.sampled_from(LIMITS),
)
@settings(deadline=None)
def test_step_is_downhill_and_within_its_bounds(
    numbers: list[tuple[float, float, float, float]], bounds: tuple[float, float], limit: str
) -> None:
    """For any averages: opposite to g, at least lr_min (or lr) units long and at most lr units."""
    g, s, rho, h = torch.tensor(numbers, dtype=torch.float64).T
    lr, lr_min = bounds
    avg = averages(g, grad_sq=s, glass_density=rho, hess=h)
    step = bounded_step(avg, rates(limit=limit, lr=lr, lr_min=lr_min, eps=1e-8))
    unit = {
        "fixed": torch.ones_like(g),
        "sgd": g.abs(),
        "adam": 2 * g.abs() / (2 * s.sqrt() + 1e-8),
    }[limit]
    moving = g != 0
    assert (step * g <= 0).all()
    assert (step[~moving] == 0).all()
    length, unit = step[moving].abs(), unit[moving]
    tiny = 1e-300  # where numbers are so small that they lose digits
    assert (length <= lr * unit * (1 + 1e-12) + tiny).all()
    assert (length >= min(lr, lr_min) * unit * (1 - 1e-12) - tiny).all()


# ---- moving ----------------------------------------------------------------------------------


def test_position_and_probe_center_after_a_step() -> None:
    """They are mu + phi u and mu + omega u, both from the old position."""
    numbers = rates(step_fraction=0.25, lookahead=2.0)
    position, center = moved(vector(1, -1), vector(4, 8), numbers)
    same(position, vector(2, 1))
    same(center, vector(9, 15))


def test_decay_is_part_of_the_step() -> None:
    """In all u = step - lr wd mu, so that phi and omega scale the decay too."""
    numbers = rates(step_fraction=0.25, lookahead=2.0, lr=0.5, weight_decay=0.5)
    position, center = moved(vector(4, -8), vector(1, 0), numbers)
    same(position, vector(4, -7.5))  # u = 1 - 1 and 0 + 2
    same(center, vector(4, -4))


def test_moving_is_pure() -> None:
    """Neither the old position nor the step is written to, nor shared with the result."""
    mu, step = vector(1, 2), vector(0, 0)
    for decay in (0.0, 0.5):
        position, center = moved(mu, step, rates(weight_decay=decay, lr=0.1))
        position += 1
        center += 1
        assert torch.equal(mu, vector(1, 2))
        assert torch.equal(step, vector(0, 0))
