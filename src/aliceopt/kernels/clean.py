"""The update in plain torch operations, where every gradient is finite: few of them, in place.

The oracle, `eager.update_`, makes a new tensor with almost every operation, and masks what is not
finite. Without anything to mask, and with a few spare tensors to work in, no memory has to be
allocated. The algebra is that of `aliceopt.kernels.passes`; constant factors are left to the
operations that take one for nothing. Results agree with the oracle's to rounding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..topography import Averages, Gradients, Rates
from .eager import Target, all_finite
from .passes import Numbers

__all__ = ["LEAST_EPS", "SPARE", "clean_update_", "masked_update_"]

SPARE = 3
"""How many tensors of the slice's size an update works in."""
LEAST_EPS = 1e-18
"""Below it denominators may vanish, and the oracle has to look where."""
LEAST_UPPER = 1e-30
"""Below it no step in any direction changes a parameter, and one over it may be infinite."""


def clean_update_(
    target: Target,
    param: Tensor,
    grads: Gradients,
    rates: Rates,
    n: Numbers,
    spare: Sequence[Tensor],
    *,
    sure: bool = False,
) -> bool:
    """What `eager.update_` does; or False, and nothing done, if a gradient may not be finite.

    The new position goes to ``param``, which may be the old one; ``n`` are the numbers of
    ``rates``, as floats. ``sure``: the gradients are known to be finite.
    """
    averages, mu = target.averages, target.position
    if not _average_all_(averages, grads, rates, n, spare[0], sure):
        return False
    descent, factor = _descent(averages, rates, n, spare)
    if rates.weight_decay != 0:
        descent.mul_(factor).add_(mu, alpha=n.decay)
        factor = 1.0
    torch.sub(mu, descent, alpha=n.lookahead * factor, out=target.probe_center)
    torch.sub(mu, descent, alpha=n.step_fraction * factor, out=param)
    return True


def masked_update_(
    target: Target,
    param: Tensor,
    grads: Gradients,
    rates: Rates,
    n: Numbers,
    spare: Sequence[Tensor],
) -> Tensor:
    """`clean_update_` of the coordinates with finite gradients; returns how many others there are.

    What the former come to does not depend on the latter, not even in rounding.
    """
    ok = all_finite(grads)
    names = ("center", "plus", "minus")
    finite = {
        name: torch.where(ok, g, 0.0) for name in names if (g := getattr(grads, name)) is not None
    }
    averages = [average for average in target.averages if average is not None]
    written = [param, target.probe_center, *averages]
    before = [target.position.clone(), *(tensor.clone() for tensor in written[1:])]
    clean_update_(target, param, grads._replace(**finite), rates, n, spare, sure=True)
    for tensor, old in zip(written, before, strict=True):
        tensor.copy_(torch.where(ok, tensor, old))
    return ok.logical_not().sum()


def _is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite, for sure: no sum can hide one that is not."""
    return math.isfinite(tensor.sum().item())


def _average_all_(
    averages: Averages, grads: Gradients, rates: Rates, n: Numbers, t: Tensor, sure: bool
) -> bool:
    """`topography.updated`; or False, and nothing done, if a gradient may not be finite."""
    g0, plus, minus = grads.center, grads.plus, grads.minus
    if plus is None or minus is None:
        if not sure and not _is_finite(g0):
            return False
    else:
        # Twice the second difference, finite only if all three are.
        torch.add(plus, minus, out=t).sub_(g0, alpha=2)
        if not sure and not _is_finite(t):
            return False
        _average_topography_(averages, grads, rates.hessian, n, t)
    averages.grad_sq.mul_(n.beta2).addcmul_(g0, g0, value=n.rest2)
    averages.grad_avg.lerp_(g0, n.rest1)
    return True


def _average_topography_(
    averages: Averages, grads: Gradients, kind: str, n: Numbers, twice_second: Tensor
) -> None:
    """New averages of glass density and Hessian; where precision is low the radius is a tensor."""
    t, radius = twice_second, grads.radius
    assert grads.plus is not None
    assert grads.minus is not None
    if averages.glass_density is not None and isinstance(radius, Tensor):
        t.mul_(t).div_(radius)
        averages.glass_density.mul_(n.beta_topo).add_(t, alpha=n.rest_topo / 2)
    elif averages.glass_density is not None:
        share = n.rest_topo * n.two_over_radius / 4
        averages.glass_density.mul_(n.beta_topo).addcmul_(t, t, value=share)
    if averages.hess is None:
        return
    torch.sub(grads.plus, grads.minus, out=t)
    if isinstance(radius, Tensor):
        t.div_(radius).mul_(0.5)
    else:
        t.mul_(n.over_two_radius)
    hess = averages.hess.mul_(n.beta_topo)
    if kind == "abs":
        hess.add_(t.abs_(), alpha=n.rest_topo)
    else:
        hess.addcmul_(t, t if grads.signs is None else grads.signs, value=n.rest_topo)


def _descent(
    averages: Averages, rates: Rates, n: Numbers, spare: Sequence[Tensor]
) -> tuple[Tensor, float]:
    """Minus `step.bounded_step` in one of the spare tensors, up to a factor."""
    g = averages.grad_avg
    eps = _scalar(n.eps, g.dtype, g.device)
    if not rates.measured:
        if rates.limit == "fixed":
            return torch.sign(g, out=spare[0]), n.upper
        if rates.limit == "sgd":
            return spare[0].copy_(g), n.upper * n.over_grad_weight
        root = torch.sqrt(averages.grad_sq, out=spare[0])
        root = torch.add(eps, root, alpha=math.sqrt(n.over_sq_weight), out=root)
        return torch.div(g, root, out=root), n.upper * n.over_grad_weight
    y = torch.add(eps, torch.abs(g, out=spare[0]), alpha=n.over_grad_weight, out=spare[0])
    curvature = _curvature(averages, y, eps, rates, n, spare[1:])
    if rates.limit == "adam":
        descent = _over_bounded(g, curvature, averages.grad_sq, n, spare)
        return descent, n.over_grad_weight
    newton = curvature.reciprocal_()
    if rates.limit == "fixed":
        size = torch.abs(g, out=spare[0]).mul_(n.over_grad_weight)
        newton.mul_(size).clamp_(n.lower, n.upper)
        return newton.mul_(torch.sign(g, out=size)), 1.0
    return newton.clamp_(n.lower, n.upper).mul_(g), n.over_grad_weight


def _over_bounded(
    g: Tensor, curvature: Tensor, grad_sq: Tensor, n: Numbers, spare: Sequence[Tensor]
) -> Tensor:
    """``g / hbar`` between the two bounds times ``g / (sqrt(s) + eps)``, in place of ``hbar``.

    The bounds are put on the denominator, where that needs a single division.
    """
    if n.upper < LEAST_UPPER:
        return curvature.zero_()
    least = torch.sqrt(grad_sq, out=spare[0])
    eps, share = n.eps / n.upper, math.sqrt(n.over_sq_weight) / n.upper
    torch.add(_scalar(eps, g.dtype, g.device), least, alpha=share, out=least)
    if n.lower > 0:
        free = spare[2] if curvature is spare[1] else spare[1]
        torch.minimum(curvature, torch.mul(least, n.upper / n.lower, out=free), out=curvature)
    torch.maximum(curvature, least, out=curvature)
    return torch.div(g, curvature, out=curvature)


@functools.lru_cache(maxsize=64)
def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor, which operations that take no number want; never to be written to."""
    return torch.tensor(value, dtype=dtype, device=device)


def _curvature(
    averages: Averages, y: Tensor, eps: Tensor, rates: Rates, n: Numbers, spare: Sequence[Tensor]
) -> Tensor:
    """``hbar`` at ``y = |g| + eps``, in one of two spare tensors.

    With glass and Hessian, ``hbar = c a (r + sqrt(rho))^2 / y + eps`` where ``c h`` is the
    corrected Hessian, ``c a rho`` is ``q`` of `passes`, and ``r^2 = h y / a + rho``.
    """
    x, other = spare
    rho, hess, c = averages.glass_density, averages.hess, n.over_topo_weight
    if hess is None:
        assert rho is not None
        return torch.addcdiv(eps, rho, y, value=4 * n.half_glass, out=x)
    h = hess
    if rates.hessian == "rms":
        h, c = torch.sqrt(hess, out=x), math.sqrt(c)
    elif rates.hessian == "signed":
        h = torch.abs(hess, out=x)
    if rho is None:
        return torch.add(eps, h, alpha=c, out=x)
    a = n.half_glass / c
    r = torch.addcmul(rho, h, y, value=1 / a, out=x).sqrt_()
    r.add_(torch.sqrt(rho, out=other))
    return torch.addcdiv(eps, r.mul_(r), y, value=c * a, out=other)
