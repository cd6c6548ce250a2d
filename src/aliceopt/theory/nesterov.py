r"""Theorem 6: the look-ahead that keeps a running gradient exact.

One step moves the position ``mu`` by a fraction ``phi`` of the step ``u`` and evaluates the next
gradient at ``nu = mu + omega u``. If the true gradient is affine, ``g*(mu + u) = g*(mu) + H u``,
and ``grad_avg = g*(mu) + error`` before the step, then averaging the gradient at ``nu`` leaves

    error' = b1 error + ((1 - b1) omega - phi) H u

against the gradient at the new position. The second term holds everything unknown about ``H``. It
vanishes for *every* ``H`` and *every* step, clamped or not, exactly when ``phi = (1 - b1) omega``.
From a zero average the first error is ``-b1 g*(mu_0)``, so after update ``k`` (from 0) it is
``-b1^(k+1) g*(mu_0)``. This speaks of the uncorrected average: a bias correction undoes it.
"""

from __future__ import annotations

from torch import Tensor

from ._checks import BELOW_ONE, FINITE, NONNEGATIVE, POSITIVE, checked, require, require_int

__all__ = ["average", "exact_step_fraction", "gradient_error", "look_ahead", "next_error"]


def exact_step_fraction(beta1: float, lookahead: float = 1.0) -> float:
    """``phi = (1 - b1) omega``, the step fraction that makes the running gradient exact.

    >>> round(exact_step_fraction(0.9), 12)
    0.1
    """
    require("beta1", beta1, BELOW_ONE)
    require("lookahead", lookahead, POSITIVE)
    return (1 - beta1) * lookahead


@checked(position=FINITE, step=FINITE, step_fraction=NONNEGATIVE, lookahead=NONNEGATIVE)
def look_ahead(
    position: Tensor, step: Tensor, step_fraction: float, lookahead: float
) -> tuple[Tensor, Tensor]:
    """Equation 10: the new position ``mu + phi u`` and probe center ``mu + omega u``."""
    return position + step_fraction * step, position + lookahead * step


@checked(grad_avg=FINITE, grad=FINITE, beta1=BELOW_ONE)
def average(grad_avg: Tensor, grad: Tensor, beta1: float) -> Tensor:
    """Running gradient ``b1 g + (1 - b1) g0``, with ``g0`` taken at the *new* probe center.

    The paper's Equation 11 prints the old one, which its own proof does not use.
    """
    return beta1 * grad_avg + (1 - beta1) * grad


@checked(
    error=FINITE,
    hess_step=FINITE,
    beta1=BELOW_ONE,
    step_fraction=NONNEGATIVE,
    lookahead=NONNEGATIVE,
)
def next_error(
    error: Tensor, hess_step: Tensor, beta1: float, step_fraction: float, lookahead: float
) -> Tensor:
    """``b1 error + ((1 - b1) omega - phi) H u``: the recursion behind the theorem.

    ``hess_step`` is ``H u``, the change of gradient over the whole step.
    """
    return beta1 * error + ((1 - beta1) * lookahead - step_fraction) * hess_step


@checked(first_grad=FINITE, beta1=BELOW_ONE)
def gradient_error(first_grad: Tensor, beta1: float, updates: int) -> Tensor:
    """Error of the running gradient after ``updates`` exact updates: ``-b1^updates g*(mu_0)``."""
    require_int("updates", updates, 0)
    return -(beta1**updates) * first_grad
