"""Theorem 6: which gradients must be averaged, and where, for the error to contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aliceopt import topography
from aliceopt.theory import nesterov
from aliceopt.topography import Gradients

from .registry import Claim, Context, Measurement, register
from .simulated_glass import random_signs

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

BETA = 0.9
UPDATES = 40
SIZE = 8


@dataclass(frozen=True)
class Quadratic:
    """A loss with gradient ``H (x - x*)``, its coordinates coupled in a way the steps ignore."""

    hessian: Tensor
    solution: Tensor
    start: Tensor

    def gradient(self, x: Tensor) -> Tensor:
        """The true gradient."""
        return self.hessian @ (x - self.solution)


def _quadratic(context: Context) -> Quadratic:
    generator = context.generator("thm6")
    half = torch.randn(SIZE, 2 * SIZE, generator=generator, dtype=torch.float64)
    solution, start = torch.randn(2, SIZE, generator=generator, dtype=torch.float64)
    return Quadratic(half @ half.T / SIZE, solution, start)


Center = Literal["new", "old", "position"]
Step = Callable[[Tensor], Tensor]


def _newton(grad_avg: Tensor) -> Tensor:
    """A diagonal quasi-Newton step with a curvature that is wrong on purpose."""
    return -grad_avg / torch.linspace(3.0, 9.0, SIZE, dtype=torch.float64)


def _clamped(grad_avg: Tensor) -> Tensor:
    """The same, bounded so that many coordinates stand at a bound."""
    return _newton(grad_avg).clamp(-0.05, 0.05)


@dataclass(frozen=True)
class Trajectory:
    """Errors of the running gradient before every move [updates, parameters], and what drove them.

    ``hess_steps`` are the ``H u``, the changes of the true gradient over whole steps.
    """

    first_grad: Tensor
    errors: Tensor
    hess_steps: Tensor

    def deviation(self, expected: Tensor) -> float:
        """Largest difference of the errors from these, over the size of the first gradient."""
        gap: float = ((self.errors - expected).abs().max() / self.first_grad.norm()).item()
        return gap

    def remaining(self, errors: Tensor) -> float:
        """Size of the last error over the size of the first gradient."""
        share: float = (errors[-1].norm() / self.first_grad.norm()).item()
        return share


def follow(
    problem: Quadratic, step: Step, step_fraction: float, lookahead: float, center: Center = "new"
) -> Trajectory:
    """Equations 10 and 11, with the gradient averaged at one of three places.

    "new" is the probe center that the last step set, "old" the one before it, "position" the
    parameters themselves.
    """
    position, probe, previous = problem.start, problem.start, problem.start
    grad_avg = torch.zeros(SIZE, dtype=torch.float64)
    errors, hess_steps = [], []
    for _ in range(UPDATES):
        place = {"new": probe, "old": previous, "position": position}[center]
        grad_avg = nesterov.average(grad_avg, problem.gradient(place), BETA)
        errors.append(grad_avg - problem.gradient(position))
        u = step(grad_avg)
        hess_steps.append(problem.hessian @ u)
        previous = probe
        position, probe = nesterov.look_ahead(position, u, step_fraction, lookahead)
    first = problem.gradient(problem.start)
    return Trajectory(first, torch.stack(errors), torch.stack(hess_steps))


def _exact_errors(first_grad: Tensor) -> Tensor:
    """Theorem 6: ``-b1^(k+1)`` times the first gradient after update k."""
    return torch.stack([nesterov.gradient_error(first_grad, BETA, k + 1) for k in range(UPDATES)])


def _recursion(path: Trajectory, step_fraction: float, lookahead: float) -> Tensor:
    """The errors that the recursion behind the theorem gives for the steps that were taken."""
    error = -BETA * path.first_grad
    errors = [error]
    for hess_step in path.hess_steps[:-1]:
        error = nesterov.next_error(error, hess_step, BETA, step_fraction, lookahead)
        errors.append(error)
    return torch.stack(errors)


def _exactness(context: Context, step: Step, lookahead: float) -> Measurement:
    fraction = nesterov.exact_step_fraction(BETA, lookahead)
    path = follow(_quadratic(context), step, fraction, lookahead)
    gap = path.deviation(_exact_errors(path.first_grad))
    return Measurement(gap, 0.0, tolerance=1e-12, paper=0.0)


@claim(
    "thm6-exact",
    "Theorem 6",
    "phi = 1 - b1, omega = 1: error of the running gradient minus -b1^(k+1) g_0, largest",
    paper="0",
)
def exact(context: Context) -> Measurement:
    """The error contracts by exactly ``b1`` each update, whatever the unknown Hessian."""
    return _exactness(context, _newton, lookahead=1.0)


@claim(
    "thm6-clamped",
    "Theorem 6",
    "Clamped steps, omega = 1.5, phi = (1 - b1) omega: error minus -b1^(k+1) g_0, largest",
    paper="0",
)
def exact_clamped(context: Context) -> Measurement:
    """The step need not be optimal: the unknown term vanishes for every step."""
    return _exactness(context, _clamped, lookahead=1.5)


@claim(
    "thm6-recursion",
    "Theorem 6",
    "phi = 0.3, omega = 0.8: errors minus b1 e + ((1 - b1) omega - phi) H u, largest",
    paper="none",
)
def recursion(context: Context) -> Measurement:
    """The proof's recursion holds for every ``phi`` and ``omega``."""
    path = follow(_quadratic(context), _newton, 0.3, 0.8)
    gap = path.deviation(_recursion(path, 0.3, 0.8))
    return Measurement(gap, 0.0, tolerance=1e-12, paper=0.0)


@claim(
    "thm6-full-steps",
    "Theorem 6",
    f"phi = omega = 1: error left after {UPDATES} updates, where exact coefficients leave less",
    paper=f"> b1^{UPDATES}",
)
def full_steps(context: Context) -> Measurement:
    """No contraction at ``phi = omega = 1``: every step adds ``-b1 H u`` to the error.

    Steps are of bounded length, as those of an optimizer that has not converged.
    """

    def bounded(grad_avg: Tensor) -> Tensor:
        return -0.05 * grad_avg.sign()

    path = follow(_quadratic(context), bounded, 1.0, 1.0)
    return Measurement(
        path.remaining(path.errors),
        path.remaining(_recursion(path, 1.0, 1.0)),
        tolerance=1e-9,
        paper=BETA**UPDATES,
        paper_relation=">=",
    )


@claim(
    "alg2-glass",
    "Algorithm 2, line 7",
    "Glass density of a pure quadratic with g0 at mu, over that of H (nu - mu)",
    paper="0",
    correction="g0 must be taken at nu, between the probes; at mu the Hessian itself shows as "
    "glass, (2/lambda) (H (nu - mu))^2",
)
def spurious_glass(context: Context) -> Measurement:
    """``(g+ + g-)/2 - g0 = H (nu - mu)``: zero only if the three gradients share a center."""
    problem, radius = _quadratic(context), 0.01
    signs = random_signs((SIZE,), context.generator("alg2"))
    position, probe = problem.start, problem.start + 0.1 * problem.solution
    plus, minus = (problem.gradient(probe + s * radius * signs) for s in (1, -1))
    at_position, at_probe = (
        topography.glass_sample(Gradients(problem.gradient(x), plus, minus, radius)).sum().item()
        for x in (position, probe)
    )
    unit = 2 / radius * (problem.hessian @ (probe - position)).square().sum().item()
    note = f"with g0 at nu {at_probe / unit:.0e}"
    return Measurement(at_position / unit, 1.0, tolerance=1e-9, paper=0.0, note=note)


@claim(
    "alg2-error",
    "Algorithm 2, line 7",
    "g0 at mu, phi = 1 - b1: error of the running gradient minus -b1^(k+1) g_0, largest",
    paper="0",
    correction="averaging gradients at mu is the case omega = phi of the recursion, in which the "
    "unknown Hessian stays in the error",
)
def average_at_position(context: Context) -> Measurement:
    """``e' = b1 e - b1 phi H u``: Theorem 6 needs the gradient at the look-ahead point."""
    fraction = nesterov.exact_step_fraction(BETA)
    path = follow(_quadratic(context), _newton, fraction, 1.0, center="position")
    return _departure(path, _recursion(path, fraction, fraction))


def _departure(path: Trajectory, errors: Tensor) -> Measurement:
    """How far the errors stray from Theorem 6's law, measured and by a recursion."""
    law = _exact_errors(path.first_grad)
    expected = (errors - law).abs().max() / path.first_grad.norm()
    return Measurement(path.deviation(law), expected.item(), tolerance=1e-9, paper=0.0)


@claim(
    "eq11-center",
    "Equation 11",
    "Gradient averaged at the old nu, as printed: error minus -b1^(k+1) g_0, largest",
    paper="0",
    correction="the proof of Theorem 6 averages the gradient at the new nu, one step later than "
    "the equation prints",
)
def old_probe_center(context: Context) -> Measurement:
    """``e' = b1 e + (1 - b1)(omega - phi) H u_old - phi H u`` when nu is one step old."""
    fraction = nesterov.exact_step_fraction(BETA)
    path = follow(_quadratic(context), _newton, fraction, 1.0, center="old")
    error, older = -BETA * path.first_grad, torch.zeros_like(path.first_grad)
    errors = [error]
    for newer in path.hess_steps[:-1]:
        error = BETA * error + (1 - BETA) * (1 - fraction) * older - fraction * newer
        errors.append(error)
        older = newer
    return _departure(path, torch.stack(errors))
