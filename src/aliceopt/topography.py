"""Algorithms 1 and 2: gradients at the probe points -> running averages.

Pure functions of tensors and numbers; the optimizer and any fused kernel share this signature.
Between steps nothing here is bias-corrected; `corrected` does that on the way to the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Averages", "Gradients", "Rates", "corrected", "updated"]


class Averages(NamedTuple):
    """Running averages of one parameter; None where the group does not use the term.

    ``hess`` averages ``|x|`` ("abs"), ``x^2`` ("rms") or ``t x`` ("signed").
    """

    grad_avg: Tensor
    grad_sq: Tensor
    glass_density: Tensor | None
    hess: Tensor | None


class Gradients(NamedTuple):
    """What one step evaluated: at the probe center, and on a measuring step on either side of it.

    ``radius`` is the probe's distance in every coordinate: one number, or a tensor where low
    precision rounded the displacement. ``signs`` are the Rademacher directions, needed only for
    the signed Hessian.
    """

    center: Tensor
    plus: Tensor | None = None
    minus: Tensor | None = None
    radius: float | Tensor = 0.0
    signs: Tensor | None = None


@dataclass(frozen=True)
class Rates:
    """Every number that one parameter's update needs, resolved for this step.

    ``grad_weight``, ``sq_weight`` and ``topo_weight`` are the total weights of the averages
    *after* this step (``1 - beta^(k+1)`` and ``w``): what a bias correction divides by.
    ``measuring``: both sides were evaluated, too.
    """

    beta1: float
    beta2: float
    beta_topo: float
    grad_weight: float
    sq_weight: float
    topo_weight: float
    lr: float
    lr_min: float
    eps: float
    step_fraction: float
    lookahead: float
    weight_decay: float
    limit: str
    hessian: str
    glass: bool
    measuring: bool = False
    maximize: bool = False

    @property
    def measured(self) -> bool:
        """A curvature term is on and has been measured at least once."""
        return self.topo_weight > 0 and (self.glass or self.hessian != "none")


def updated(old: Averages, grads: Gradients, rates: Rates) -> Averages:
    """The averages after one evaluation: measuring (both sides given) or quick (center alone).

    g   <- b1 g + (1-b1) g0            s <- b2 s + (1-b2) g0^2
    h   <- bt h + (1-bt) x             x: `hess_sample`
    rho <- bt rho + (1-bt) y           y: `glass_sample`

    Those that change are new tensors: whoever is interrupted has the old ones.
    """
    g0, b1, b2, bt = grads.center, rates.beta1, rates.beta2, rates.beta_topo
    g, s, rho, h = old
    if grads.plus is not None and rho is not None:
        rho = (bt * rho).add_(glass_sample(grads, weight=1 - bt))
    if grads.plus is not None and h is not None:
        h = (bt * h).add_(hess_sample(grads, rates.hessian, weight=1 - bt))
    g = (b1 * g).add_((1 - b1) * g0)
    s = (b2 * s).add_(((1 - b2) * g0).mul_(g0))
    return Averages(g, s, rho, h)


def glass_sample(grads: Gradients, weight: float = 1.0) -> Tensor:
    """``weight`` times ``(2/lambda) ((g+ + g-)/2 - g0)^2``: the second difference of a glass has
    mean square ``lambda rho / 2``, and a quadratic contributes nothing to it.

    Gradients are halved before they are added, so that none are too large for that; what still
    overflows counts as the largest number.
    """
    assert grads.plus is not None
    assert grads.minus is not None
    difference = (0.5 * grads.plus).add_(grads.minus, alpha=0.5).sub_(grads.center)
    y = difference.square_().mul_(weight * (2 / grads.radius))
    return y.clamp_(max=weight * torch.finfo(y.dtype).max)


def hess_sample(grads: Gradients, kind: str, weight: float = 1.0) -> Tensor:
    """``weight`` times a sample of the Hessian made of ``x = (g+ - g-)/(2 lambda)``, ``H t``.

    "abs" takes ``|x|``, "rms" its square, "signed" ``t x``, the only one that is unbiased for the
    diagonal. What overflows counts as the largest number: infinities of both signs would average
    to NaN.
    """
    assert grads.plus is not None
    assert grads.minus is not None
    x, scale = grads.plus - grads.minus, 0.5 / grads.radius
    if kind == "abs":
        x.mul_(weight * scale).abs_()
    elif kind == "rms":
        x.mul_(scale).square_().mul_(weight)
    else:
        assert grads.signs is not None
        x.mul_(weight * scale).mul_(grads.signs)
    largest = weight * torch.finfo(x.dtype).max
    return x.clamp_(-largest, largest)


def corrected(averages: Averages, rates: Rates) -> Averages:
    """Divide every average by its total weight, and make the Hessian nonnegative.

    ``h`` for "abs", ``sqrt(h)`` for "rms", ``|h|`` for "signed". Where nothing was measured yet
    the curvature terms are None.
    """
    glass_density = hess = None
    if rates.measured and averages.glass_density is not None:
        glass_density = averages.glass_density * (1 / rates.topo_weight)
    if rates.measured and averages.hess is not None:
        hess = averages.hess * (1 / rates.topo_weight)
        if rates.hessian == "rms":
            hess.sqrt_()
        elif rates.hessian == "signed":
            hess.abs_()
    return Averages(
        grad_avg=averages.grad_avg * (1 / rates.grad_weight),
        grad_sq=averages.grad_sq * (1 / rates.sq_weight),
        glass_density=glass_density,
        hess=hess,
    )
