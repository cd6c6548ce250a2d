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
    ``lower`` is 0 where there is no lower bound.
    """

    glass_curvature: Tensor | None
    total_curvature: Tensor | None
    newton: Tensor | None
    lower: Tensor | float
    upper: Tensor

    def length(self) -> Tensor:
        """The quasi-Newton length, clamped between the bounds."""
        if self.newton is None:
            return self.upper
        if isinstance(self.lower, Tensor):
            return self.newton.clamp(self.lower, self.upper)
        return torch.minimum(self.newton, self.upper)


def anatomy(averages: Averages, rates: Rates) -> Anatomy:
    """Curvatures, quasi-Newton length and bounds of the step these averages call for."""
    est = corrected(averages, rates)
    size = est.grad_avg.abs_()
    size.clamp_(max=torch.finfo(size.dtype).max)  # which the correction may exceed by rounding
    unit = _unit(averages, est, size, rates)
    least = min(rates.lr_min, rates.lr)
    # Not 0 times the unit, which is infinite where s underflows and eps is 0.
    lower = least * unit if least > 0 else 0.0
    upper = unit.mul_(rates.lr)
    if not rates.measured:
        return Anatomy(None, None, None, lower, upper)
    hg, h = None, size.new_zeros(()) if est.hess is None else est.hess
    if est.glass_density is None:
        hbar = h.add_(rates.eps)
    else:
        hg = glass_curvature.unchecked(est.glass_density, size, rates.eps)
        hbar = total_curvature.unchecked(hg, h, rates.eps)
    return Anatomy(hg, hbar, size.div_(hbar), lower, upper)


def _unit(averages: Averages, est: Averages, size: Tensor, rates: Rates) -> Tensor:
    """What the bounds multiply: 1, the *uncorrected* |g| as in SGD, or Adam's |g|/sqrt(s).

    ``size`` is the corrected |g|. A new tensor; ``est.grad_sq`` is written to.
    """
    if rates.limit == "fixed":
        return torch.ones_like(size)
    if rates.limit == "sgd":
        return averages.grad_avg.abs()
    root = est.grad_sq.sqrt_().add_(rates.eps)
    return torch.div(size, root, out=root)


def bounded_step(averages: Averages, rates: Rates) -> Tensor:
    """``-sign(g)`` times the clamped length; exactly zero where the running gradient is zero."""
    g = averages.grad_avg
    step = anatomy(averages, rates).length().copysign_(g).neg_()
    if rates.limit != "fixed" and rates.eps >= torch.finfo(step.dtype).tiny:
        return step  # a zero gradient's length is zero there
    return torch.where(g == 0, 0.0, step)


def moved(position: Tensor, step: Tensor, rates: Rates) -> tuple[Tensor, Tensor]:
    """New position ``mu + phi u`` and probe center ``mu + omega u`` (Equation 10).

    ``u = step - lr weight_decay mu``: decoupled decay is part of the step, which keeps Theorem 6
    exact.
    """
    u = step
    if rates.weight_decay != 0:
        u = step - rates.lr * rates.weight_decay * position
    phi, omega = rates.step_fraction, rates.lookahead
    return position + (u if phi == 1 else phi * u), position + (u if omega == 1 else omega * u)
