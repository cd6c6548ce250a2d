"""Bad densities, kernels, thresholds and sample counts: the error says which rule they break."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aliceopt.theory import kernel
from aliceopt.theory.density import Density
from aliceopt.theory.kernel import GAUSSIAN, RADEMACHER, UNIFORM
from theory_cases import no_sampler, refused

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        (((-1.0, 0.5), (1.0, 0.4)), "total probability 1, got 0.9$"),
        (((-1.0, 0.4), (1.0, 0.6)), "mean 0, got 0.2$"),
        (((-2.0, 0.5), (2.0, 0.5)), "unit variance, i.e. second moment 1, got 4$"),
        ((), "total probability 1, got 0$"),
        (((NAN, 0.5), (1.0, 0.5)), "total probability 1, got (0.5|nan)$"),
        (((-1.0, NAN), (1.0, 0.5)), "total probability 1, got nan$"),
    ],
)
def test_density_without_the_moments_is_refused(atoms: tuple[Any, ...], message: str):
    """Total probability one, mean zero, variance one: the message says which is not."""
    with pytest.raises(ValueError, match=f"density 'mine' must have {message}"):
        Density("mine", no_sampler, atoms=atoms)


def test_density_with_negative_probability_is_refused():
    """Right moments, but -1 at zero: it would beat Rademacher, which no density can."""
    root = math.sqrt(0.5)
    with pytest.raises(ValueError, match=r"mine.*-1"):
        Density("mine", no_sampler, atoms=((-root, 1.0), (root, 1.0), (0.0, -1.0)))


def test_piece_with_negative_density_is_refused():
    """``b x^2 - a`` on [-1.2, 1.2] can have all three moments right and be negative at zero."""
    mass, second, fourth = (2 * 1.2**n / n for n in (1, 3, 5))
    a, b = np.linalg.solve([[-mass, second], [-second, fourth]], [1.0, 1.0])
    assert a > 0
    with pytest.raises(ValueError, match=r"mine.*-0\."):
        Density("mine", no_sampler, pieces=((lambda x: b * x * x - a, -1.2, 1.2),))


@pytest.mark.parametrize(
    ("pdf", "support", "message"),
    [
        (
            lambda x: np.full_like(x, 0.25),
            (-2.0, 2.0),
            "unit variance, i.e. second moment 1, got 1.3",
        ),
        (lambda x: np.full_like(x, 0.5), (-2.0, 2.0), "total probability 1, got 2"),
        (lambda x: np.full_like(x, 0.5), (0.0, 2.0), "mean 0, got 1"),
        (
            lambda x: np.full_like(x, -0.25),
            (-2.0, 2.0),
            r"pdf must be finite and >= 0, got .*-0.25",
        ),
        (lambda x: np.full_like(x, NAN), (-2.0, 2.0), r"pdf must be finite and >= 0, got .*nan"),
        (lambda x: np.full_like(x, INF), (-2.0, 2.0), r"pdf must be finite and >= 0, got .*inf"),
        (lambda x: np.full(3, 0.25), (-2.0, 2.0), r"pdf must return shape \(\d+,\), got \(3,\)"),
        (np.ones_like, (2.0, -2.0), r"lower < upper, got \(2.0, -2.0\)"),
        (np.ones_like, (1.0, 1.0), r"lower < upper, got \(1.0, 1.0\)"),
        (np.ones_like, (-INF, INF), r"two finite numbers, lower < upper, got \(-inf, inf\)"),
        (np.ones_like, (NAN, 1.0), r"two finite numbers, lower < upper, got \(nan, 1.0\)"),
    ],
)
def test_user_density_is_refused_with_the_reason(
    pdf: Callable[[np.ndarray], np.ndarray], support: tuple[float, float], message: str
):
    """Negative, not finite, not normalised, off center, not of unit variance, no interval."""
    with pytest.raises(ValueError, match=message):
        kernel.from_pdf(pdf, support)


@pytest.mark.parametrize(
    ("density", "threshold"), [(RADEMACHER, 1.5), (UNIFORM, 2.0), (GAUSSIAN, 50.0)]
)
def test_threshold_that_keeps_nothing_is_refused(density: Density, threshold: float):
    """By every function that takes one."""
    message = f"min_perturbation must leave some of density '{density.name}', got {threshold}"
    for call in (
        lambda: kernel.update_probability(density, threshold),
        lambda: kernel.kernel_norm(density, 1.0, threshold),
        lambda: kernel.estimator_variance(density, 1.0, threshold),
        lambda: kernel.estimate_diagonal(lambda x: x, (2,), 1, density, min_perturbation=threshold),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


@pytest.mark.parametrize(
    ("biased", "threshold", "value"),
    [
        (lambda x: 2 * x / (x * x + 1), 0.0, "0.68864"),
        (lambda x: x, 1.0, "2.5251"),
        (lambda x: x + 1 / x.square(), 1.0, "2.5251"),
        (torch.zeros_like, 0.0, "0$"),
    ],
)
def test_biased_kernel_is_refused(biased: Callable[[Tensor], Tensor], threshold: float, value: str):
    """``E[k(x) x]`` over the kept part must be 1; the paper's constant 2 makes it 0.689.

    ``k(x) = x`` restricted at 1 has ``E[x^2 | |x| >= 1] = 1 + 2 phi(1) / erfc(1/sqrt 2) = 2.525``.
    """
    with pytest.raises(ValueError, match=rf"kernel must have E\[kernel\(x\) x\] = 1, got {value}"):
        kernel.estimator_variance(GAUSSIAN, 1.0, threshold, kernel=biased)


@pytest.mark.parametrize("bad", [0, -3, 1.5, 2.0, True, NAN, "2"])
def test_number_of_samples_must_be_a_whole_positive_number(bad: object):
    """Named, with the value."""
    message = refused("num_samples", "a whole number >= 1", repr(bad))
    with pytest.raises(ValueError, match=message):
        kernel.estimate_diagonal(lambda x: x, (2,), bad)
