"""Theorem 5: the closed-form step against a numeric minimiser, its limits and its extremes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from aliceopt.theory.curvature import glass_curvature, optimal_step, total_curvature

GOLDEN = (math.sqrt(5) - 1) / 2
DTYPES = [torch.float32, torch.float64]
TIGHT = {torch.float32: 2e-6, torch.float64: 1e-14}


def bound(d: np.ndarray, g: np.ndarray, rho: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Separable bound of one coordinate, transcribed from Theorems 4 and 5."""
    return d * (g + h * d / 2) + np.sqrt(2 * rho / (3 * math.pi)) * np.abs(d) ** 1.5


def numeric_minimiser(g: np.ndarray, rho: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Golden section over the logarithm of the length of a downhill step; no derivatives."""
    sign = -np.copysign(1.0, g)

    def value(t: np.ndarray) -> np.ndarray:
        return bound(sign * np.exp(t), g, rho, h)

    a, b = np.full_like(g, -40.0), np.full_like(g, 40.0)
    while np.max(b - a) > 1e-8:
        c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
        left = value(c) < value(d)
        a, b = np.where(left, a, c), np.where(left, d, b)
    return sign * np.exp((a + b) / 2)


def length_by_quadratic_root(g: float, rho: float, h: float) -> float:
    """``x^2`` of the root in the proof of Theorem 5; Python floats reach far beyond float32."""
    if g == 0:
        return 0.0
    hg = 3 * rho / (4 * math.pi * abs(g))
    if hg == 0 and h == 0:
        return math.inf
    return (math.sqrt(2 * abs(g)) / (math.sqrt(hg) + math.sqrt(hg + 2 * h))) ** 2


def scalar(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def test_closed_form_is_the_numeric_minimiser_of_the_separable_bound():
    """10,000 draws over 1e-4..1e4 in gradient (both signs), glass and Hessian, to 1e-6 relative."""
    random = np.random.default_rng(0)
    g, rho, h = 10.0 ** random.uniform(-4, 4, (3, 10_000))
    g *= random.choice([-1, 1], 10_000)
    found = optimal_step(*map(torch.from_numpy, (g, rho, h))).numpy()
    np.testing.assert_allclose(found, numeric_minimiser(g, rho, h), rtol=1e-6, atol=0)


def test_no_other_displacement_has_a_smaller_bound():
    """Nearer, farther, nothing and the uphill mirror image are all worse, for every triple."""
    sizes = [1e-4, 1e-2, 1.0, 1e2, 1e4]
    for g, rho, h in itertools.product([s * x for x in sizes for s in (-1, 1)], sizes, sizes):
        step = optimal_step(scalar(g), scalar(rho), scalar(h)).item()
        best = bound(step, g, rho, h)
        assert all(best < bound(step * f, g, rho, h) for f in (-1.0, 0.0, 0.99, 1.01))


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_glass_the_step_is_newtons(dtype: torch.dtype):
    """``rho = 0`` gives ``-g / h``, but for what squaring a root loses."""
    g = torch.tensor([3.0, -3.0, 1e-8, -1e8, 0.1], dtype=dtype)
    h = torch.tensor([2.0, 7.0, 1e8, 1e-8, 0.3], dtype=dtype)
    found, rtol = optimal_step(g, torch.zeros_like(g), h), 3 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, -g / h, rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_hessian_the_step_is_quadratic_in_the_gradient(dtype: torch.dtype):
    """``h = 0`` gives ``-2 pi g |g| / (3 rho)``."""
    g = torch.tensor([3.0, -3.0, 1e-4, -1e4, 0.1], dtype=dtype)
    rho = torch.tensor([2.0, 7.0, 1e4, 1e-4, 0.3], dtype=dtype)
    pairs = zip(g.tolist(), rho.tolist(), strict=True)
    expected = [-2 * math.pi * x * abs(x) / (3 * r) for x, r in pairs]
    step = optimal_step(g, rho, torch.zeros_like(g)).double()
    torch.testing.assert_close(
        step, torch.tensor(expected, dtype=torch.float64), rtol=TIGHT[dtype], atol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_vanishing_glass_or_hessian_approaches_the_limits(dtype: torch.dtype):
    """The formula is continuous: 1e-12 of one term changes the step by about 1e-6 at most."""
    one = torch.ones((), dtype=dtype)
    almost = optimal_step(one, 1e-12 * one, one)
    assert almost.item() == pytest.approx(-1.0, rel=2e-6)
    almost = optimal_step(one, one, 1e-12 * one)
    assert almost.item() == pytest.approx(-2 * math.pi / 3, rel=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_gradient_never_moves(dtype: torch.dtype):
    """``g = 0`` gives zero, not NaN, with or without glass and Hessian, with or without eps."""
    for rho, h, eps in itertools.product((0.0, 1.0), (0.0, 1.0), (0.0, 1e-8)):
        step = optimal_step(scalar(0.0, dtype), scalar(rho, dtype), scalar(h, dtype), eps)
        assert step.item() == 0.0


def test_without_any_curvature_the_step_is_unbounded_downhill():
    """Nothing pays for distance: infinite against the gradient, or ``-g / eps``."""
    g, zero = torch.tensor([2.0, -2.0]), torch.zeros(2)
    assert optimal_step(g, zero, zero).tolist() == [-math.inf, math.inf]
    assert optimal_step(g, zero, zero, eps=0.5).tolist() == [-4.0, 4.0]


def test_eps_stands_where_algorithm_3_puts_it():
    """``(3/4pi) rho / (|g| + eps)``, and once more as an addend of the total."""
    g, rho, h, eps = -0.3, 2.0, 1.5, 0.25
    hg = 3 / (4 * math.pi) * rho / (abs(g) + eps)
    assert glass_curvature(scalar(rho), scalar(g), eps).item() == pytest.approx(hg, rel=1e-14)
    hbar = hg + h + math.sqrt(hg * (hg + 2 * h)) + eps
    assert total_curvature(scalar(hg), scalar(h), eps).item() == pytest.approx(hbar, rel=1e-14)
    step = optimal_step(scalar(g), scalar(rho), scalar(h), eps).item()
    assert step == pytest.approx(-g / hbar, rel=1e-14)


def test_glass_curvature_at_zero_gradient():
    """No glass is no curvature; glass under no gradient is infinitely stiff unless eps helps."""
    rho, g = torch.tensor([0.0, 1.0]), torch.zeros(2)
    assert glass_curvature(rho, g).tolist() == [0.0, math.inf]
    stiff = glass_curvature(rho, g, eps=0.5)[1].item()
    assert stiff == pytest.approx(3 / (2 * math.pi), rel=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_float32_step_is_right_wherever_it_can_be_represented(sign: float):
    """Zero and 1e-30 to 1e30 in each argument: correct, never NaN; overflow only when due."""
    sizes = [0.0] + [10.0**n for n in range(-30, 31, 5)]
    g, rho, h = torch.tensor(list(itertools.product(sizes, sizes, sizes))).unbind(1)
    steps = optimal_step(sign * g, rho, h).tolist()
    largest, smallest = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
    for step, *triple in zip(steps, g.tolist(), rho.tolist(), h.tolist(), strict=True):
        exact = length_by_quadratic_root(*triple)
        if exact > largest:
            assert step == -sign * math.inf, triple
        elif exact < smallest:  # subnormal: few bits are left, or none
            assert abs(step) <= smallest, triple
        else:
            assert step == pytest.approx(-sign * exact, rel=2e-6), triple


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_total_curvature_keeps_scale_in_float32(size: float):
    """``hg = h`` gives ``(2 + sqrt 3) h``: the root's square of 1e60 is never formed."""
    x = torch.tensor(size)
    assert total_curvature(x, x).item() == pytest.approx((2 + math.sqrt(3)) * size, rel=1e-6)


@pytest.mark.parametrize("glass", [0.0, 1e-30])
def test_total_curvature_overflows_only_with_its_result(glass: float):
    """A Hessian of 3e38 fits in float32, and so does the total: twice it must not be formed."""
    total = total_curvature(torch.tensor(glass), torch.tensor(3e38)).item()
    assert total == pytest.approx(3e38, rel=1e-6)


@pytest.mark.parametrize(
    ("glass", "hess"),
    [(math.inf, 0.0), (math.inf, 1.0), (0.0, math.inf), (1.0, math.inf), (math.inf, math.inf)],
)
def test_infinite_curvature_stays_infinite(glass: float, hess: float):
    """Infinite stiffness of either kind is infinite, whatever the other is."""
    assert total_curvature(torch.tensor(glass), torch.tensor(hess)).item() == math.inf


def test_derivatives_are_those_of_differences():
    """In every argument, where none is zero: what backward needs is not overwritten."""
    values = ([3.0, -0.2], [0.5, 2.0], [1.0, 4.0])
    g, rho, h = (torch.tensor(x, dtype=torch.float64) for x in values)
    for function, arguments in (
        (glass_curvature, (rho, g)),
        (total_curvature, (rho, h)),
        (optimal_step, (g, rho, h)),
    ):
        given = [x.clone().requires_grad_() for x in arguments]
        assert torch.autograd.gradcheck(lambda *x, f=function: f(*x, eps=0.1), given)


def test_arguments_broadcast_and_keep_their_dtype():
    """A row of densities against a column of gradients, one Hessian for all."""
    g = torch.tensor([[1.0], [-2.0]])
    rho = torch.tensor([0.5, 1.0, 3.0])
    steps = optimal_step(g, rho, torch.tensor(0.25))
    assert steps.shape == (2, 3)
    assert steps.dtype == torch.float32
    for i, j in itertools.product(range(2), range(3)):
        length = length_by_quadratic_root(g[i, 0].item(), rho[j].item(), 0.25)
        expected = -math.copysign(length, g[i, 0].item())
        assert steps[i, j].item() == pytest.approx(expected, rel=1e-6)


def test_arguments_are_left_alone():
    """Pure functions: nothing is written to."""
    arguments = torch.tensor([[0.0, -1.0], [0.0, 2.0], [1.0, 0.0]])
    before = arguments.clone()
    optimal_step(*arguments)
    assert torch.equal(arguments, before)
