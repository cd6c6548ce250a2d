r"""Theorem 5: the curvature of expectation and the step that is optimal for it.

Per coordinate, ``loss_bound`` is ``-|g| d + h d^2 / 2 + sqrt(2 rho / 3 pi) d^(3/2)`` for a step of
length ``d`` downhill. Its derivative vanishes where ``x = sqrt(d)`` solves

    0 = -|g| + sqrt(3 rho / 2 pi) x + h x^2,

and with ``hg = 3 rho / (4 pi |g|)`` the positive root squared is ``d = |g| / hbar``:

    hbar = hg + h + sqrt(hg (hg + 2 h)).

So glass acts as an extra Hessian ``hg`` that grows as the gradient shrinks. Limits: ``hbar = h``
without glass, ``hbar = 2 hg``, i.e. ``d = 2 pi g^2 / (3 rho)``, without Hessian.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import CURVATURE, FINITE, NONNEGATIVE, checked

__all__ = ["GLASS_CURVATURE_FACTOR", "glass_curvature", "optimal_step", "total_curvature"]

GLASS_CURVATURE_FACTOR = 3 / (4 * math.pi)


@checked(glass_density=NONNEGATIVE, grad=FINITE, eps=NONNEGATIVE)
def glass_curvature(glass_density: Tensor, grad: Tensor, eps: float = 0.0) -> Tensor:
    """``hg = (3 / 4 pi) rho / (|g| + eps)``: the glass, expressed as a Hessian (loss / length^2).

    Follows Algorithm 3; Theorem 5 prints ``3 rho / (4 pi |g| + eps)``, another use of ``eps``.
    No glass is no curvature, also at ``g = 0``; glass at ``g = 0`` with ``eps = 0`` is infinitely
    stiff, and the step from it is zero.

    >>> import math, torch
    >>> glass_curvature(torch.tensor([0.0, 4 * math.pi]), torch.tensor([0.0, 1.0]))
    tensor([0., 3.])
    """
    hg = (glass_density / grad.abs().add_(eps)).mul_(GLASS_CURVATURE_FACTOR)
    if eps >= torch.finfo(hg.dtype).tiny:
        return hg  # nothing was divided by zero
    return torch.where(glass_density == 0, 0.0, hg)


@checked(glass_curvature=CURVATURE, hess=CURVATURE, eps=NONNEGATIVE)
def total_curvature(glass_curvature: Tensor, hess: Tensor, eps: float = 0.0) -> Tensor:
    """Modified Hessian of Theorem 5: the quasi-Newton denominator that also pays for glass.

    ``hbar = hg + h + sqrt(hg (hg + 2 h)) + eps``, computed as the square of
    ``sqrt(hg/2 + h) + sqrt(hg/2)``: the same number, but nothing can overflow before ``hbar``
    itself does. Infinite curvature is legal and stays infinite.

    >>> import torch
    >>> total_curvature(torch.tensor([0.0, 2.0, 2.0]), torch.tensor([4.0, 0.0, 3.0]))
    tensor([4., 4., 9.])
    """
    hg, h = glass_curvature, hess
    half = hg * 0.5
    root, other = (half + h).sqrt_(), half.sqrt_()
    if root.requires_grad:  # backward needs them as they are
        return (root + other).square().add_(eps)
    return root.add_(other).square_().add_(eps)


@checked(grad=FINITE, glass_density=NONNEGATIVE, hess=NONNEGATIVE, eps=NONNEGATIVE)
def optimal_step(grad: Tensor, glass_density: Tensor, hess: Tensor, eps: float = 0.0) -> Tensor:
    """Theorem 5: the displacement ``-g / hbar`` that minimises the separable `loss_bound`.

    Zero where the gradient is zero. Where glass and Hessian both vanish nothing bounds the step
    and it is infinite (with ``eps > 0``: ``-g / eps``); an optimizer must clamp it.

    >>> import math, torch
    >>> optimal_step(torch.tensor(-12.0), torch.tensor(0.0), torch.tensor(4.0))
    tensor(3.)
    >>> optimal_step(torch.tensor(3.0), torch.tensor(2 * math.pi), torch.tensor(0.0))
    tensor(-3.)
    """
    hg = glass_curvature.unchecked(glass_density, grad, eps)
    hbar = total_curvature.unchecked(hg, hess, eps)
    return torch.where(grad == 0, 0.0, -grad / hbar)
