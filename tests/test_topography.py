"""Gradients to running averages: each sample against closed forms and a simulated glass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from aliceopt.topography import (
    Averages,
    Gradients,
    Rates,
    corrected,
    glass_sample,
    hess_sample,
    updated,
)

NUMBERS: dict[str, Any] = {
    "beta1": 0.5,
    "beta2": 0.75,
    "beta_topo": 0.25,
    "grad_weight": 0.5,
    "sq_weight": 0.25,
    "topo_weight": 0.75,
    "lr": 0.1,
    "lr_min": 0.0,
    "eps": 1e-8,
    "step_fraction": 0.1,
    "lookahead": 1.0,
    "weight_decay": 0.0,
    "limit": "adam",
    "hessian": "abs",
    "glass": True,
}


def rates(**changes: Any) -> Rates:
    """Numbers that are easy to calculate with by hand."""
    return Rates(**{**NUMBERS, **changes})


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def same(actual: Tensor | None, expected: Tensor) -> None:
    assert actual is not None
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-300)


# ---- samples ---------------------------------------------------------------------------------


def test_glass_sample_by_hand() -> None:
    """(2/lambda) ((g+ + g-)/2 - g0)^2: for 3, 1 and 1 at lambda = 1/2 it is 4."""
    grads = Gradients(vector(1, 0), vector(3, -1), vector(1, 2), 0.5)
    same(glass_sample(grads), vector(4, 1))


def test_glass_sample_takes_a_radius_per_coordinate() -> None:
    """Where rounding made the displacements differ, each coordinate has its own radius."""
    grads = Gradients(vector(1, 0), vector(3, -1), vector(1, 2), vector(0.5, 2.0))
    same(glass_sample(grads), vector(4, 0.25))


def test_quadratic_is_not_glass() -> None:
    """A gradient that is linear between the probes has no glass, however steep."""
    hessian, x, t = normal(6, 6, seed=1), normal(6, seed=2), normal(6, seed=3).sign()
    plus, minus = hessian @ (x + 0.25 * t), hessian @ (x - 0.25 * t)
    sample = glass_sample(Gradients(hessian @ x, plus, minus, 0.25))
    assert sample.max() < 1e-28


def kinked_gradients(radius: float, draws: int = 40000) -> tuple[Gradients, float]:
    """One coordinate of many independent glasses, and their density.

    24 kinks lie uniformly on [-1, 1]; crossing one to the right adds a jump of random sign and
    size to the gradient. The variance of the gradient change over a length L is the number of
    kinks per length times the mean squared jump, times L: that factor is the density.
    """
    generator = torch.Generator().manual_seed(6)
    places = 2 * torch.rand(draws, 24, generator=generator, dtype=torch.float64) - 1
    jumps = torch.randn(draws, 24, generator=generator, dtype=torch.float64)

    def gradient(x: float) -> Tensor:
        return (jumps * (places < x)).sum(1)

    density = 24 / 2 * 1.0
    return Gradients(gradient(0.0), gradient(radius), gradient(-radius), radius), density


def assert_mean(samples: Tensor, expected: float) -> None:
    """Equal within 4 standard errors, which are at most 5% of it."""
    error = samples.std() / math.sqrt(len(samples))
    assert error < 0.05 * expected
    assert abs(samples.mean() - expected) < 4 * error


@pytest.mark.parametrize("radius", [0.03, 0.1, 0.4])
def test_mean_glass_sample_is_the_density(radius: float) -> None:
    """On a simulated glass the sample has mean rho at every radius."""
    grads, density = kinked_gradients(radius)
    assert_mean(glass_sample(grads), density)


def test_glass_density_does_not_see_a_slope() -> None:
    """A quadratic under the glass leaves the sample as it was."""
    grads, _ = kinked_gradients(0.1)
    sloped = grads._replace(center=grads.center + 7, plus=grads.plus + 7.9, minus=grads.minus + 6.1)
    torch.testing.assert_close(glass_sample(sloped), glass_sample(grads), rtol=0, atol=1e-11)


@pytest.mark.parametrize("radius", [0.1, 0.4])
def test_glass_leaks_into_rms(radius: float) -> None:
    """Pure glass looks to "rms" like a Hessian sqrt(rho/(2 lambda)), to "signed" like none."""
    grads, density = kinked_gradients(radius)
    assert_mean(hess_sample(grads, "rms"), density / (2 * radius))
    signed = hess_sample(grads._replace(signs=torch.ones_like(grads.center)), "signed")
    assert abs(signed.mean()) < 4 * signed.std() / math.sqrt(len(signed))


def test_glass_leaks_into_abs() -> None:
    """To "abs" glass of many small kinks looks like a Hessian sqrt(rho/(pi lambda))."""
    density, radius, steps = 3.0, 0.02, normal(2, 40000, seed=7)
    right, left = math.sqrt(density * radius) * steps  # Brownian: the limit of many kinks
    grads = Gradients(torch.zeros_like(right), right, -left, radius)
    assert_mean(hess_sample(grads, "abs"), math.sqrt(density / (math.pi * radius)))
    assert_mean(glass_sample(grads), density)


def test_hess_samples_by_hand() -> None:
    """With g+ - g- = -3 and lambda = 1/2: 3 for "abs", 9 for "rms", -3 t for "signed"."""
    signs = vector(1, -1)
    grads = Gradients(vector(5, 5), vector(-1, -1), vector(2, 2), 0.5, signs)
    same(hess_sample(grads, "abs"), vector(3, 3))
    same(hess_sample(grads, "rms"), vector(9, 9))
    same(hess_sample(grads, "signed"), vector(-3, 3))


@pytest.mark.parametrize("kind", ["abs", "rms", "signed"])
def test_hess_sample_of_a_quadratic_is_its_row(kind: str) -> None:
    """On a quadratic x = H t exactly, at any center and radius."""
    hessian, x, t = normal(6, 6, seed=1), normal(6, seed=2), normal(6, seed=3).sign()
    grads = Gradients(hessian @ x, hessian @ (x + 2 * t), hessian @ (x - 2 * t), 2.0, t)
    row = hessian @ t
    expected = {"abs": row.abs(), "rms": row**2, "signed": t * row}[kind]
    torch.testing.assert_close(hess_sample(grads, kind), expected, rtol=1e-12, atol=1e-12)


# ---- averages --------------------------------------------------------------------------------

OLD = Averages(vector(2, -4), vector(4, 8), vector(8, 0), vector(4, 12))
FULL = Gradients(vector(1, 0), vector(3, -1), vector(1, 2), 0.5, vector(1, -1))


def test_full_update_by_hand() -> None:
    """Each average keeps its own beta of the old value and takes the rest from the sample."""
    new = updated(OLD, FULL, rates())
    same(new.grad_avg, vector(1.5, -2))  # beta1 = 1/2
    same(new.grad_sq, vector(3.25, 6))  # beta2 = 3/4
    same(new.glass_density, vector(5, 0.75))  # beta_topo = 1/4, samples 4 and 1
    same(new.hess, vector(2.5, 5.25))  # samples |3 - 1| and |-1 - 2|


@pytest.mark.parametrize(("kind", "hess"), [("rms", (4, 9.75)), ("signed", (2.5, 5.25))])
def test_full_update_of_other_kinds(kind: str, hess: tuple[float, float]) -> None:
    """The Hessian average is of squares for "rms" and of t x for "signed"."""
    same(updated(OLD, FULL, rates(hessian=kind)).hess, vector(*hess))


def test_quick_update_leaves_the_topography() -> None:
    """Without sides only the gradient's averages move."""
    new = updated(OLD, Gradients(vector(1, 0)), rates())
    same(new.grad_avg, vector(1.5, -2))
    same(new.grad_sq, vector(3.25, 6))
    assert new.glass_density is OLD.glass_density
    assert new.hess is OLD.hess


def test_terms_that_are_off_stay_off() -> None:
    """A term without an average gets none."""
    new = updated(OLD._replace(glass_density=None), FULL, rates(glass=False))
    assert new.glass_density is None
    assert new.hess is not None
    new = updated(OLD._replace(hess=None), FULL, rates(hessian="none"))
    assert new.hess is None
    assert new.glass_density is not None


def test_update_is_pure() -> None:
    """Neither the old averages nor the gradients are written to."""
    old = Averages(*(a.clone() for a in OLD if a is not None))
    grads = FULL._replace(center=FULL.center.clone(), plus=vector(3, -1), minus=vector(1, 2))
    corrected(updated(old, grads, rates(hessian="rms")), rates(hessian="rms"))
    for after, before in zip((*old, *grads[:3]), (*OLD, *FULL[:3]), strict=True):
        assert torch.equal(after, before)


# ---- bias correction -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "stored", "expected"),
    [("abs", (3, 6), (4, 8)), ("rms", (3, 12), (2, 4)), ("signed", (-3, 6), (4, 8))],
)
def test_correction_by_hand(
    kind: str, stored: tuple[float, float], expected: tuple[float, float]
) -> None:
    """Every average over its own weight; h as it is, its root, or its size."""
    averages = OLD._replace(hess=vector(*stored))
    est = corrected(averages, rates(hessian=kind))
    same(est.grad_avg, vector(4, -8))
    same(est.grad_sq, vector(16, 32))
    same(est.glass_density, vector(32 / 3, 0))
    same(est.hess, vector(*expected))


def test_correction_undoes_the_start_from_zero() -> None:
    """After any number of equal samples the corrected averages are the sample itself."""
    zero = torch.zeros(2, dtype=torch.float64)
    averages, weights = Averages(zero, zero, zero, zero), [0.0, 0.0, 0.0]
    betas = (0.5, 0.75, 0.25)
    for _ in range(5):
        weights = [b * w + 1 - b for b, w in zip(betas, weights, strict=True)]
        averages = updated(averages, FULL, rates())
        names = ("grad_weight", "sq_weight", "topo_weight")
        est = corrected(averages, rates(**dict(zip(names, weights, strict=True))))
        same(est.grad_avg, FULL.center)
        same(est.grad_sq, FULL.center**2)
        same(est.glass_density, vector(4, 1))
        same(est.hess, vector(2, 3))


def test_nothing_measured_has_no_curvature() -> None:
    """With weight zero the terms are None and not 0/0; the gradient is corrected all the same."""
    est = corrected(OLD, rates(topo_weight=0.0))
    assert est.glass_density is None
    assert est.hess is None
    same(est.grad_avg, vector(4, -8))


@pytest.mark.parametrize(
    ("weight", "hessian", "glass", "measured"),
    [
        (0.5, "abs", True, True),
        (0.5, "none", True, True),
        (0.5, "signed", False, True),
        (0.5, "none", False, False),
        (0.0, "abs", True, False),
    ],
)
def test_measured(weight: float, hessian: str, glass: bool, measured: bool) -> None:
    """Curvature counts once a term is on and has some weight."""
    assert rates(topo_weight=weight, hessian=hessian, glass=glass).measured == measured
