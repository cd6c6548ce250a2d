"""Perturbation densities: integrals against closed forms, samples against probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from aliceopt.theory.density import (
    GAUSSIAN,
    RADEMACHER,
    UNIFORM,
    Density,
    from_pdf,
    two_sided,
)

ROOT6 = math.sqrt(6)


def triangle(x: np.ndarray) -> np.ndarray:
    """Triangular density on [-sqrt 6, sqrt 6]: unit variance, kink at zero."""
    return (1 - np.abs(x) / ROOT6) / ROOT6


def exponential(x: np.ndarray) -> np.ndarray:
    """Exponential waiting time less its mean: unit variance, as lopsided as can be."""
    return np.exp(-(x + 1))


def sample_lopsided(
    shape: Sequence[int],
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    u = torch.rand(tuple(shape), generator=generator, dtype=dtype, device=device)
    return torch.where(u < 0.8, -0.5, 2.0).to(dtype)


TRIANGLE = from_pdf(triangle, (-ROOT6, ROOT6), name="triangle")
EXPONENTIAL = from_pdf(exponential, (-1.0, 40.0), name="exponential")
LOPSIDED = Density("lopsided", sample_lopsided, atoms=((-0.5, 0.8), (2.0, 0.2)))
DENSITIES = [RADEMACHER, GAUSSIAN, UNIFORM, two_sided(0.5), TRIANGLE, EXPONENTIAL, LOPSIDED]


def draw(density: Density, count: int, seed: int = 0) -> Tensor:
    return density.sample((count,), generator=torch.Generator().manual_seed(seed))


def within_four_standard_errors(samples: Tensor, expected: float) -> bool:
    error = samples.std().item() / math.sqrt(len(samples))
    return abs(samples.mean().item() - expected) <= 4 * error + 1e-4


@pytest.mark.parametrize("power", range(7))
def test_gaussian_moments(power: int):
    """0 for odd powers, the double factorial (n-1)!! for even ones."""
    moment = 0.0 if power % 2 else float(math.prod(range(power - 1, 0, -2)))
    assert GAUSSIAN.expect(lambda x: x**power) == pytest.approx(moment, abs=1e-11)


def test_gaussian_tails():
    """Over ``|x| >= t``: erfc for the mass, ``erfc + 2 t phi(t)`` for the second moment."""
    for t in (0.0, 0.3, 1.0, 2.5, 5.0):
        mass = math.erfc(t / math.sqrt(2))
        second = mass + 2 * t * math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        assert GAUSSIAN.expect(np.ones_like, min_abs=t) == pytest.approx(mass, rel=1e-12)
        assert GAUSSIAN.expect(np.square, min_abs=t) == pytest.approx(second, rel=1e-12)
    assert GAUSSIAN.expect(np.abs) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-13)


def test_rademacher_is_two_atoms():
    """Every even function has its value at one; a threshold above one leaves nothing."""
    assert RADEMACHER.expect(lambda x: x**4 + x) == 1.0
    assert RADEMACHER.expect(np.ones_like, min_abs=1.0) == 1.0
    assert RADEMACHER.expect(np.ones_like, min_abs=1.0001) == 0.0
    assert set(draw(RADEMACHER, 100).tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("inner", [0.0, 0.2, 0.7, 0.99])
def test_two_sided_is_flat_between_inner_and_outer(inner: float):
    """Even moments are ``(b^(n+1) - a^(n+1)) / ((n+1)(b-a))`` with ``a^2 + a b + b^2 = 3``."""
    density = two_sided(inner)
    outer = max(draw(density, 20_000).tolist())
    b = (-inner + math.sqrt(inner**2 - 4 * (inner**2 - 3))) / 2
    assert b - 1e-3 < outer <= b
    for n in (2, 4, 6):
        moment = (b ** (n + 1) - inner ** (n + 1)) / ((n + 1) * (b - inner))
        assert density.expect(lambda x, n=n: x**n) == pytest.approx(moment, rel=1e-12)
    assert draw(density, 20_000).abs().min().item() >= inner
    middle = (inner + b) / 2
    assert density.expect(np.ones_like, min_abs=middle) == pytest.approx(0.5, rel=1e-12)


def test_uniform_is_two_sided_from_zero():
    """Uniform on +-sqrt 3: fourth moment 9/5, nothing beyond."""
    assert UNIFORM.expect(lambda x: x**4) == pytest.approx(1.8, rel=1e-13)
    assert UNIFORM.expect(np.ones_like, min_abs=math.sqrt(3)) == 0.0


@pytest.mark.parametrize("inner", [1 - 1e-6, 1 - 1e-9, 1 - 1e-12])
def test_two_sided_closes_on_rademacher(inner: float):
    """Every ``inner`` below one is legal and its draws are within ``2 (1 - inner)`` of +-1."""
    x = draw(two_sided(inner), 1000)
    assert ((x.abs() - 1).abs() < 2 * (1 - inner)).all()
    assert abs(x.sign().sum().item()) < 4 * math.sqrt(1000)


def test_user_density_is_integrated_and_sampled():
    """Triangle: ``E|x| = sqrt(6)/3``, ``E x^4 = 36/15``; mass beyond t is ``(1 - t/sqrt 6)^2``."""
    assert TRIANGLE.expect(np.abs) == pytest.approx(ROOT6 / 3, rel=1e-12)
    assert TRIANGLE.expect(lambda x: x**4) == pytest.approx(36 / 15, rel=1e-12)
    x = draw(TRIANGLE, 50_000)
    for t in (0.2, 1.0, 2.0):
        beyond = (1 - t / ROOT6) ** 2
        assert TRIANGLE.expect(np.ones_like, min_abs=t) == pytest.approx(beyond, rel=1e-12)
        assert within_four_standard_errors((x.abs() >= t).double(), beyond)


def test_lopsided_user_density_keeps_its_sides_apart():
    """Exponential: ``P(x > 0) = 1/e``, third moment 2, no draw below -1."""
    assert EXPONENTIAL.expect(lambda x: x**3) == pytest.approx(2.0, rel=1e-10)
    x = draw(EXPONENTIAL, 50_000)
    assert x.min().item() >= -1
    # The grid of the default sampler is 41/20000 wide, hence the slack in the helper.
    assert within_four_standard_errors((x > 0).double(), math.exp(-1))


def test_user_sampler_is_used_when_given():
    """`from_pdf` draws from the given sampler and integrates the pdf."""
    density = from_pdf(
        triangle, (-ROOT6, ROOT6), sampler=lambda shape, *_: torch.full(tuple(shape), 0.125)
    )
    assert density.sample((2, 3)).tolist() == [[0.125] * 3] * 2
    assert density.expect(np.square) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("density", DENSITIES, ids=lambda d: d.name)
def test_samples_have_zero_mean_and_unit_variance(density: Density):
    """And the fourth moment that the integral predicts."""
    x = draw(density, 50_000)
    assert within_four_standard_errors(x, 0.0)
    assert within_four_standard_errors(x.square(), 1.0)
    assert within_four_standard_errors(x**4, density.expect(lambda x: x**4))


@pytest.mark.parametrize("density", DENSITIES, ids=lambda d: d.name)
def test_samples_follow_the_generator_and_nothing_else(density: Density):
    """Same seed, same draws; other seed, others; the global random states do not move."""
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert torch.equal(draw(density, 64, seed=3), draw(density, 64, seed=3))
    assert not torch.equal(draw(density, 64, seed=3), draw(density, 64, seed=4))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


@pytest.mark.parametrize("density", DENSITIES, ids=lambda d: d.name)
def test_samples_have_the_shape_and_dtype_asked_for(density: Density):
    """A scalar, an empty tensor, a block; float64 unless told otherwise."""
    for shape in ((), (0,), (2, 3, 4)):
        assert density.sample(shape).shape == shape
    assert density.sample((2,)).dtype == torch.float64
    assert density.sample((2,), dtype=torch.float32).dtype == torch.float32
