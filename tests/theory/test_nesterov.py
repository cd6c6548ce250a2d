"""Theorem 6: the running gradient on quadratics, against direct simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from aliceopt.theory.nesterov import (
    average,
    exact_step_fraction,
    gradient_error,
    look_ahead,
    next_error,
)

DIM = 7
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def quadratic(seed: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A dense indefinite Hessian and the gradient ``H x - b`` it belongs to."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    b = torch.randn(DIM, generator=generator, dtype=torch.float64)
    hess = (a + a.T) / 2
    return hess, lambda x: hess @ x - b


def random_steps(seed: int, count: int) -> Iterator[Tensor]:
    """Steps that have nothing to do with the gradient, some of them clamped."""
    generator = torch.Generator().manual_seed(seed)
    for k in range(count):
        u = torch.randn(DIM, generator=generator, dtype=torch.float64)
        yield u.clamp(-0.3, 0.3) if k % 2 else u


def simulate(
    grad: Callable[[Tensor], Tensor], beta1: float, phi: float, omega: float, updates: int
) -> list[Tensor]:
    """Errors of the running gradient against the true one, in plain arithmetic, no theory code.

    Entry ``k`` is the error after update ``k``, at the position the update was made for.
    """
    position = torch.ones(DIM, dtype=torch.float64)
    running = (1 - beta1) * grad(position)
    errors = [running - grad(position)]
    for u in random_steps(5, updates - 1):
        probe, position = position + omega * u, position + phi * u
        running = beta1 * running + (1 - beta1) * grad(probe)
        errors.append(running - grad(position))
    return errors


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("omega", [0.5, 1.0, 3.0])
def test_exact_fraction_contracts_the_error_by_beta1(beta1: float, omega: float):
    """``phi = (1 - b1) omega``: the error after update k is ``-b1^(k+1)`` times the first gradient.

    For every Hessian and every step, since neither appears in it.
    """
    _, grad = quadratic(0)
    first = grad(torch.ones(DIM, dtype=torch.float64))
    phi = exact_step_fraction(beta1, omega)
    for k, error in enumerate(simulate(grad, beta1, phi, omega, updates=12)):
        torch.testing.assert_close(error, -(beta1 ** (k + 1)) * first, **CLOSE)
        torch.testing.assert_close(gradient_error(first, beta1, k + 1), error, **CLOSE)


@pytest.mark.parametrize(("phi", "omega"), [(0.1, 1.0), (1.0, 1.0), (0.05, 1.0), (0.3, 2.0)])
def test_recursion_predicts_every_error(phi: float, omega: float):
    """``b1 error + ((1 - b1) omega - phi) H u`` follows the simulation, exact fraction or not."""
    hess, grad = quadratic(1)
    errors = simulate(grad, 0.9, phi, omega, updates=10)
    predicted = errors[0]
    for u, error in zip(random_steps(5, 9), errors[1:], strict=True):
        predicted = next_error(predicted, hess @ u, 0.9, phi, omega)
        torch.testing.assert_close(predicted, error, **CLOSE)


def test_functions_of_the_theorem_reproduce_the_simulation():
    """`look_ahead` and `average`, alternated, walk the same path as the plain loop."""
    _, grad = quadratic(2)
    beta1, phi, omega = 0.8, 0.35, 1.4
    position = torch.ones(DIM, dtype=torch.float64)
    running = average(torch.zeros_like(position), grad(position), beta1)
    errors = simulate(grad, beta1, phi, omega, updates=8)
    for u, error in zip(random_steps(5, 7), errors[1:], strict=True):
        position, probe = look_ahead(position, u, phi, omega)
        running = average(running, grad(probe), beta1)
        torch.testing.assert_close(running - grad(position), error, **CLOSE)


def test_whole_steps_do_not_contract():
    """``phi = omega = 1`` leaves ``-b1 H u`` behind at every step, so the error does not fade."""
    hess, grad = quadratic(3)
    errors = simulate(grad, 0.9, 1.0, 1.0, updates=60)
    first = grad(torch.ones(DIM, dtype=torch.float64)).norm()
    assert errors[-1].norm() > first * 0.9**60 * 100
    left = torch.stack([b - 0.9 * a for a, b in itertools.pairwise(errors)])
    fresh = torch.stack([-0.9 * hess @ u for u in random_steps(5, 59)])
    torch.testing.assert_close(left, fresh, **CLOSE)


@pytest.mark.parametrize("miss", [0.9, 1.1])
def test_any_other_fraction_is_inexact(miss: float):
    """Ten percent off the exact fraction and the Hessian is back in the error."""
    _, grad = quadratic(4)
    first = grad(torch.ones(DIM, dtype=torch.float64))
    error = simulate(grad, 0.9, 0.1 * miss, 1.0, updates=5)[-1]
    assert (error + 0.9**5 * first).norm() > 1e-3 * first.norm()


def test_bias_correction_undoes_exactness():
    """Dividing by ``1 - b1^(k+1)`` is exact at the first update and wrong from the second on."""
    _, grad = quadratic(5)
    position = torch.ones(DIM, dtype=torch.float64)
    first = grad(position)
    raw, beta1 = first * (1 - 0.9), 0.9
    torch.testing.assert_close(raw / (1 - beta1), first, **CLOSE)
    for k, u in enumerate(random_steps(5, 4), start=1):
        position, probe = look_ahead(position, u, 0.1, 1.0)
        raw = average(raw, grad(probe), beta1)
        torch.testing.assert_close(raw - grad(position), -(beta1 ** (k + 1)) * first, **CLOSE)
        corrected = raw / (1 - beta1 ** (k + 1)) - grad(position)
        assert (corrected + beta1 ** (k + 1) * first).norm() > 1e-2 * first.norm()


def test_gradient_taken_at_the_old_probe_center_is_not_exact():
    """The paper prints the old center in Equation 11; its error lags behind by one step."""
    _, grad = quadratic(6)
    position = probe = torch.ones(DIM, dtype=torch.float64)
    first, running = grad(position), torch.zeros(DIM, dtype=torch.float64)
    for u in random_steps(5, 4):
        running = average(running, grad(probe), 0.9)
        position, probe = look_ahead(position, u, 0.1, 1.0)
    assert (running - grad(position) + 0.9**4 * first).norm() > 1e-2 * first.norm()


def test_exact_step_fraction_is_the_root_of_the_second_term():
    """``phi = (1 - b1) omega``, the only fraction for which a unit ``H u`` leaves no trace."""
    assert exact_step_fraction(0.9) == pytest.approx(0.1, rel=1e-14)
    assert exact_step_fraction(0.75, 2.0) == 0.5
    assert exact_step_fraction(0.0, 0.25) == 0.25
    zero, one = torch.zeros(1), torch.ones(1)
    assert next_error(zero, one, 0.75, exact_step_fraction(0.75, 2.0), 2.0).item() == 0.0


def test_before_any_update_the_whole_gradient_is_missing():
    """A zero average is wrong by minus the gradient."""
    first = torch.tensor([1.0, -2.0])
    assert torch.equal(gradient_error(first, 0.9, 0), -first)
