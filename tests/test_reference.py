"""The reference against things that are known without it: torch, theorems and hand arithmetic."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from reference import Arrays, Gradient, ReferenceAlice

SHAPES = [(3, 2), (4,), ()]
KINDS = ["abs", "rms", "signed"]


def start(seed: int = 0) -> Arrays:
    """Random parameters: a matrix, a vector and a scalar."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in SHAPES]


def random_signs(step: int, index: int, shape: tuple[int, ...]) -> np.ndarray:
    """Reproducible +-1 for (step, parameter)."""
    rng = np.random.default_rng([step, index])
    return np.where(rng.random(shape) < 0.5, -1.0, 1.0)


def no_signs(step: int, index: int, shape: tuple[int, ...]) -> np.ndarray:
    """For runs in which no step may measure."""
    raise AssertionError(f"signs asked at step {step}")


def wavy(values: Arrays) -> list[np.ndarray | None]:
    """A smooth gradient without symmetry; the first entry of the vector never gets any."""
    grads: list[np.ndarray | None] = [np.asarray(1.5 * v + np.sin(3.0 * v) + 0.2) for v in values]
    dead = grads[1]
    assert dead is not None
    dead[0] = 0.0
    return grads


def quadratic(seed: int) -> Gradient:
    """Gradient H x - b of a dense random quadratic over the scalars of all parameters."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((11, 11))
    hessian, b = a @ a.T / 11.0, rng.standard_normal(11)

    def gradient(values: Arrays) -> list[np.ndarray | None]:
        flat = hessian @ np.concatenate([v.ravel() for v in values]) - b
        parts = np.split(flat, np.cumsum([v.size for v in values])[:-1])
        return [part.reshape(v.shape) for part, v in zip(parts, values, strict=True)]

    return gradient


def diagonal(curvature: Arrays) -> Gradient:
    """Gradient h x of the separable quadratic h x^2/2."""
    return lambda values: [h * v for h, v in zip(curvature, values, strict=True)]


def compare_with_torch(
    alice: ReferenceAlice, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], steps: int
) -> None:
    """Both stay within 1e-12 of each other for `steps` steps from the same start."""
    params = [torch.tensor(v, dtype=torch.float64) for v in alice.positions]
    optimizer = make(params)
    for _ in range(steps):
        for p, g in zip(params, wavy([p.numpy() for p in params]), strict=True):
            p.grad = torch.tensor(g, dtype=torch.float64)
        if alice.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(params, alice.max_grad_norm)
        optimizer.step()
        alice.step(wavy, random_signs)
        for p, ours in zip(params, alice.positions, strict=True):
            np.testing.assert_allclose(ours, p.numpy(), rtol=0, atol=1e-12)


EQUAL = {"lr": 0.02, "lr_min": 0.02, "step_fraction": 1.0}


@pytest.mark.parametrize("hessian", ["none", *KINDS])
def test_equal_bounds_are_adam(hessian: str) -> None:
    """Phi = omega = 1 and lr_min = lr give torch.optim.Adam, whatever the curvature."""
    alice = ReferenceAlice(start(), hessian=hessian, **EQUAL)
    compare_with_torch(alice, lambda p: torch.optim.Adam(p, lr=0.02), 100)
    assert alice.evaluations == 100 + 2 * 25


def test_equal_bounds_with_decay_are_adamw() -> None:
    """Decoupled decay is AdamW's, also with clipping by the global norm and with ascent."""
    options = {"lr": 0.02, "weight_decay": 0.1, "maximize": True}
    alice = ReferenceAlice(start(), lr_min=9.0, step_fraction=1.0, max_grad_norm=0.7, **options)
    compare_with_torch(alice, lambda p: torch.optim.AdamW(p, **options), 100)


@pytest.mark.parametrize("hessian", ["none", "abs"])
def test_equal_bounds_are_sgd_with_momentum(hessian: str) -> None:
    """Limit "sgd" with lr = L gives SGD(L (1-b1), momentum b1) without dampening."""
    lr, beta1 = 0.3, 0.8
    options = {"lr": lr, "lr_min": lr, "step_fraction": 1.0, "betas": (beta1, 0.99)}
    alice = ReferenceAlice(start(), limit="sgd", hessian=hessian, probe_radius=0.01, **options)
    compare_with_torch(
        alice, lambda p: torch.optim.SGD(p, lr=lr * (1 - beta1), momentum=beta1, dampening=0), 100
    )


def test_sgd_limit_needs_a_radius() -> None:
    """With limit "sgd" lr is no length, so a term without radius is refused."""
    with pytest.raises(ValueError, match="probe_radius"):
        ReferenceAlice(start(), lr=0.1, limit="sgd")
    ReferenceAlice(start(), lr=0.1, limit="sgd", hessian="none", glass=False)


@pytest.mark.parametrize("limit", ["fixed", "adam", "sgd"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_theorem_6(limit: str, decay: float) -> None:
    """The uncorrected average misses the gradient at mu by exactly -b1^(k+1) first gradient."""
    gradient, beta1 = quadratic(3), 0.7
    alice = ReferenceAlice(
        start(1),
        lr=0.2,
        lr_min=0.01,
        probe_radius=0.05,
        betas=(beta1, 0.95),
        lookahead=1.3,
        limit=limit,
        quick_steps=1,
        weight_decay=decay,
    )
    first = gradient(alice.positions)
    for k in range(25):
        at_mu = gradient(alice.positions)
        alice.step(gradient, random_signs)
        for average, exact, g in zip(alice.grad_avg, at_mu, first, strict=True):
            np.testing.assert_allclose(average - exact, -(beta1 ** (k + 1)) * g, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quick_steps", [0, 2])
def test_diagonal_quadratic_is_measured_exactly(kind: str, quick_steps: int) -> None:
    """On h x^2/2 every sample is h (its square for rms) and there is no glass."""
    curvature = [np.asarray(3.0 * np.cos(v)) for v in start(5)]
    alice = ReferenceAlice(start(), lr=0.02, hessian=kind, quick_steps=quick_steps)
    for _ in range(12):
        alice.step(diagonal(curvature), random_signs)
        for h, measured, rho, w in zip(
            curvature, alice.hess, alice.glass_density, alice.weights, strict=True
        ):
            expected = {"abs": np.abs(h), "rms": h * h, "signed": h}[kind]
            np.testing.assert_allclose(measured / w, expected, rtol=0, atol=1e-11)
            np.testing.assert_allclose(rho, 0.0, rtol=0, atol=1e-24)
    bt = 0.999 ** (quick_steps + 1)
    assert alice.weights == pytest.approx([1 - bt ** (12 // (quick_steps + 1))] * 3, rel=1e-12)
    assert alice.step_counts == [12] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_newton_step_on_a_diagonal_quadratic(kind: str) -> None:
    """Loose bounds put nu at a minimum x = 0 in one step, and at 2 x away from a maximum."""
    curvature = [np.sign(v) * (np.abs(v) + 0.5) for v in start(2)]
    alice = ReferenceAlice(start(), lr=1e3, probe_radius=0.1, limit="fixed", hessian=kind)
    alice.step(diagonal(curvature), random_signs)
    for h, x, nu, mu in zip(curvature, start(), alice.probe_centers, alice.positions, strict=True):
        np.testing.assert_allclose(nu, np.where(h > 0, 0.0, 2.0 * x), atol=1e-7)
        np.testing.assert_allclose(mu, np.where(h > 0, 0.9 * x, 1.1 * x), atol=1e-7)


def test_clipping_scales_all_three_gradients() -> None:
    """A clip factor c of the center gradient makes the measured curvature c h, without glass."""
    curvature = [np.abs(v) + 0.5 for v in start(2)]
    grads = [h * v for h, v in zip(curvature, start(), strict=True)]
    factor = 0.3 / (math.sqrt(sum(float(np.sum(g * g)) for g in grads)) + 1e-6)
    alice = ReferenceAlice(start(), lr=0.1, max_grad_norm=0.3)
    alice.step(diagonal(curvature), random_signs)
    for h, hess, rho in zip(curvature, alice.hess, alice.glass_density, strict=True):
        np.testing.assert_allclose(hess / alice.weights[0], factor * h, atol=1e-12)
        np.testing.assert_allclose(rho, 0.0, atol=1e-24)


def kink(values: Arrays) -> list[np.ndarray | None]:
    """Slope 1 below x = 1.05 and 1.5 above: one ReLU on a line."""
    return [np.where(v > 1.05, 1.5, 1.0) for v in values]


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_first_step_over_a_kink_by_hand(side: float) -> None:
    """From x = 1 with lambda 0.1: h = 0.5/0.2, rho = 20 (1.25 - 1)^2, and Theorem 5's step.

    hg = 3 rho/(4 pi) = 0.298416, hbar = hg + h + sqrt(hg (hg + 2h)) = 4.055845, d = 1/hbar.
    The step is stationary for Theorem 5's bound: h d + sqrt(3 rho d/(2 pi)) = g. A kink seen from
    either side gives the same signed slope.
    """
    alice = ReferenceAlice([np.ones(1)], lr=1.0, probe_radius=0.1, hessian="signed")
    alice.step(kink, lambda step, index, shape: np.full(shape, side))
    bt = 0.999**4
    assert alice.hess[0][0] == pytest.approx((1 - bt) * 2.5, rel=1e-12)
    assert alice.glass_density[0][0] == pytest.approx((1 - bt) * 1.25, rel=1e-12)
    assert alice.grad_avg[0][0] == pytest.approx(0.1)
    assert alice.grad_sq[0][0] == pytest.approx(0.001)
    d = 0.2465577332839
    assert alice.probe_centers[0][0] == pytest.approx(1 - d, abs=1e-12)
    assert alice.positions[0][0] == pytest.approx(1 - 0.1 * d, abs=1e-12)
    assert 2.5 * d + math.sqrt(3 * 1.25 * d / (2 * math.pi)) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize(("limit", "unit"), [("fixed", 1.0), ("sgd", 0.2), ("adam", 1.0)])
@pytest.mark.parametrize("bound", ["lower", "upper"])
def test_bounds_of_a_first_step_by_hand(limit: str, unit: float, bound: str) -> None:
    """Gradient 2, curvature 4: d = 1/2 is cut to lr unit or raised to lr_min unit, decay added.

    The unit is 1, the uncorrected average 0.1 * 2, and 2/sqrt(4), in this order.
    """
    lr, lr_min, expected = (0.01, 0.0, 0.01) if bound == "upper" else (99.0, 9.0, 9.0)
    options = {"lr": lr, "lr_min": lr_min, "limit": limit, "weight_decay": 0.03}
    alice = ReferenceAlice([np.full(1, 0.5)], probe_radius=0.25, **options)
    alice.step(diagonal([np.full(1, 4.0)]), random_signs)
    update = -expected * unit - lr * 0.03 * 0.5
    assert alice.probe_centers[0][0] == pytest.approx(0.5 + update, abs=1e-7)
    assert alice.positions[0][0] == pytest.approx(0.5 + 0.1 * update, abs=1e-7)


def full_steps(alice: ReferenceAlice, lrs: list[float]) -> str:
    """One letter a step: F for full, q for quick."""
    letters = []
    for lr in lrs:
        alice.step(wavy, random_signs, lr=lr)
        letters.append("F" if alice.last_full else "q")
    return "".join(letters)


def test_cadence_makes_up_a_step_owed_at_radius_zero() -> None:
    """Lr 0 keeps a due measuring step waiting; a step that is not due passes the time."""
    assert full_steps(ReferenceAlice(start(), lr=0.1, quick_steps=2), [0.1] * 7) == "FqqFqqF"
    alice = ReferenceAlice(start(), lr=0.1, quick_steps=2)
    assert full_steps(alice, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.1, 0.1]) == "qqFqqqFq"
    assert (alice.steps_taken, alice.evaluations) == (8, 12)
    fixed_radius = ReferenceAlice(start(), lr=0.1, quick_steps=0, probe_radius=0.1)
    assert full_steps(fixed_radius, [0.0, 0.1]) == "FF"


def test_nothing_measured_means_the_upper_bound() -> None:
    """With w = 0, or with no term on and no sign ever asked, the step is lr unit."""
    unmeasured = ReferenceAlice(start(), lr=0.1, probe_radius=0.0)
    no_term = ReferenceAlice(start(), lr=0.1, hessian="none", glass=False)
    bounded = ReferenceAlice(start(), lr=0.1, lr_min=0.1)
    for _ in range(5):
        unmeasured.step(wavy, no_signs)
        no_term.step(wavy, no_signs)
        bounded.step(wavy, random_signs)
    for other in (no_term, bounded):
        for a, b in zip(unmeasured.positions, other.positions, strict=True):
            np.testing.assert_array_equal(a, b)
    assert unmeasured.weights == [0.0] * 3


def test_missing_gradients() -> None:
    """No center gradient leaves a parameter alone, decay too; none in a probe reads as zero."""
    calls = []

    def gradient(values: Arrays) -> list[np.ndarray | None]:
        calls.append([v.copy() for v in values])
        at_center = len(calls) == 3
        return [None if at_center else np.ones(2), np.ones(2) if at_center else None]

    alice = ReferenceAlice([np.ones(2), np.ones(2)], lr=0.2, weight_decay=0.5)
    alice.step(gradient, lambda step, index, shape: np.array([1.0, -1.0]))
    np.testing.assert_array_equal([c[0] for c in calls], [[1.1, 0.9], [0.9, 1.1], [1.0, 1.0]])
    np.testing.assert_array_equal(alice.positions[0], np.ones(2))
    assert (alice.step_counts, alice.weights[0]) == ([0, 1], 0.0)
    np.testing.assert_array_equal(alice.hess[1], np.zeros(2))
    np.testing.assert_allclose(alice.glass_density[1] / alice.weights[1], 2.0 / 0.1)


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_freezes_its_coordinate(call: int, bad: float) -> None:
    """Coordinate 1 keeps all its state; the others step, and are clipped, as if it had been 0."""

    def run(value: float) -> tuple[ReferenceAlice, tuple[np.ndarray, ...]]:
        alice = ReferenceAlice([np.arange(1.0, 4.0)], lr=0.1, max_grad_norm=2.0, quick_steps=0)
        calls = 0

        def gradient(values: Arrays) -> list[np.ndarray | None]:
            nonlocal calls
            grad = 2.0 * values[0] + np.abs(values[0] - 1.9)
            grad[1] = value if calls == 9 + call else grad[1]
            calls += 1
            return [grad]

        for _ in range(3):
            alice.step(gradient, random_signs)
        before = copy.deepcopy(alice._state(0))
        alice.step(gradient, random_signs)
        return alice, before

    (alice, before), (zeroed, _) = run(bad), run(0.0)
    for now, then, other in zip(alice._state(0), before, zeroed._state(0), strict=True):
        assert now[1] == then[1] != other[1] != 0.0
        np.testing.assert_array_equal(now[[0, 2]], other[[0, 2]])
    assert (alice.coordinates_skipped, zeroed.coordinates_skipped) == (1, 0)
    assert (alice.step_counts, alice.weights) == (zeroed.step_counts, zeroed.weights)
