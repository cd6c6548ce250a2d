"""Algorithm 3: running averages -> bounded quasi-Newton step -> new position and probe center.

Pure functions of tensors and numbers, on top of Theorem 5's curvature.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .theory.curvature import glass_curvature, total_curvature
from .topography import Averages, Rates, corrected

__all__ = ["Anatomy", "anatomy", "bounded_step", "moved"]


class Anatomy(NamedTuple):
    """How one step comes about, per coordinate; all lengths are nonnegative.

    ``newton`` is None where no curvature term is on or measured: the step is the upper bound.
    """

    grad: Tensor
    glass_curvature: Tensor | None
    total_curvature: Tensor | None
    newton: Tensor | None
    lower: Tensor
    upper: Tensor

    def length(self) -> Tensor:
        """The quasi-Newton length, clamped between the bounds."""
        if self.newton is None:
            return self.upper
        return self.newton.clamp(self.lower, self.upper)


def anatomy(averages: Averages, rates: Rates) -> Anatomy:
    """Curvatures, quasi-Newton length and bounds of the step these averages call for."""
    est = corrected(averages, rates)
    g, size = est.grad_avg, est.grad_avg.abs()
    unit = _unit(averages, est, size, rates)
    least, upper = min(rates.lr_min, rates.lr), rates.lr * unit
    # Not 0 times the unit, which is infinite where s underflows and eps is 0.
    lower = least * unit if least > 0 else unit.new_zeros(()).expand_as(unit)
    if not rates.measured:
        return Anatomy(g, None, None, None, lower, upper)
    zero = torch.zeros((), dtype=g.dtype, device=g.device)
    rho = est.glass_density if est.glass_density is not None else zero
    h = est.hess if est.hess is not None else zero
    hg = glass_curvature.unchecked(rho, g, rates.eps)
    hbar = total_curvature.unchecked(hg, h, rates.eps)
    return Anatomy(g, hg, hbar, size / hbar, lower, upper)


def _unit(averages: Averages, est: Averages, size: Tensor, rates: Rates) -> Tensor:
    """What the bounds multiply: 1, the *uncorrected* |g| as in SGD, or Adam's |g|/sqrt(s).

    ``size`` is the corrected |g|.
    """
    if rates.limit == "fixed":
        return torch.ones_like(size)
    if rates.limit == "sgd":
        return averages.grad_avg.abs()
    return size / (est.grad_sq.sqrt() + rates.eps)


def bounded_step(averages: Averages, rates: Rates) -> Tensor:
    """``-sign(g)`` times the clamped length; exactly zero where the running gradient is zero."""
    parts = anatomy(averages, rates)
    # The sign of the negative, not the negative sign: that of zero is then +0.
    step = (-parts.grad).sign() * parts.length()
    if rates.eps >= torch.finfo(step.dtype).tiny:
        return step  # a zero gradient's length is finite there
    return torch.where(parts.grad == 0, 0.0, step)


def moved(position: Tensor, step: Tensor, rates: Rates) -> tuple[Tensor, Tensor]:
    """New position ``mu + phi u`` and probe center ``mu + omega u`` (Equation 10).

    ``u = step - lr weight_decay mu``: decoupled decay is part of the step, which keeps Theorem 6
    exact.
    """
    u = step
    if rates.weight_decay != 0:
        u = step - rates.lr * rates.weight_decay * position
    return position + rates.step_fraction * u, position + rates.lookahead * u
