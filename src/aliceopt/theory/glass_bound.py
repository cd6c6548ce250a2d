r"""Theorem 4: how much the loss may rise when a displacement crosses a gradient glass.

Along one coordinate the gradient performs a random walk of density ``rho`` (squared gradient per
unit length). The loss change is its integral, normal in the limit of many kinks, with

    E Delta(d)^2 = rho |d|^3 / 3.

A local floor that reflects every trajectory, ``|Delta|``, gives the largest expected rise:

    E |Delta(d)| = sqrt(2 / (3 pi)) sqrt(rho) |d|^(3/2).

Units: ``rho`` is loss^2 / length^3, a displacement a length, the bound a loss.

All coordinates move at once, though, and what the loss meets is *one* random walk, that of the
slope along the displacement, with the density `directional_density`. The sum over coordinates is
`1 / glass_coherence` times as large.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import FINITE, NONNEGATIVE, POSITIVE, checked

__all__ = [
    "GLASS_LOSS_FACTOR",
    "directional_density",
    "glass_coherence",
    "glass_loss_bound",
    "loss_bound",
    "loss_variance",
]

GLASS_LOSS_FACTOR = math.sqrt(2 / (3 * math.pi))
"""E|x| of a standard normal, sqrt(2/pi), times the root of Theorem 4's variance factor 1/3."""


@checked(glass_density=NONNEGATIVE, displacement=FINITE)
def loss_variance(glass_density: Tensor, displacement: Tensor) -> Tensor:
    """Theorem 4, second moment: ``rho |d|^3 / 3``, elementwise, with no floor.

    >>> import torch
    >>> loss_variance(torch.tensor(3.0), torch.tensor(-2.0))
    tensor(8.)
    """
    d = displacement.abs()
    return glass_density * d * d * d / 3  # no power of d alone: it may not be representable


@checked(glass_density=NONNEGATIVE, displacement=FINITE)
def glass_loss_bound(glass_density: Tensor, displacement: Tensor, *, joint: bool = False) -> Tensor:
    """Theorem 4: upper bound on the expected loss increase, summed over the last dimension.

    ``joint=False``: the sum of roots, ``sqrt(2/3pi) sum_i sqrt(rho_i) |d_i|^(3/2)``, a floor in
    each coordinate (Equation 7 of the paper). ``joint=True``: the root of the sum,
    ``sqrt(2/3pi sum_i rho_i |d_i|^3)``, one floor for the whole displacement, as Theorem 5 prints
    it. The first is never below the second and exceeds it by at most ``sqrt(dimension)``; only
    the first is separable, and only its minimiser is Theorem 5's closed form.

    0-dim arguments count as one coordinate. Zero density or displacement gives exactly zero.

    >>> import torch
    >>> round(glass_loss_bound(torch.tensor([1.0]), torch.tensor([1.0])).item(), 4)
    0.4607
    """
    d = displacement.abs()
    terms = glass_density.sqrt() * d * d.sqrt()
    if not joint:
        return GLASS_LOSS_FACTOR * _sum_last(terms)
    if terms.dim() == 0:
        return GLASS_LOSS_FACTOR * terms
    # The root of a sum of squares, scaled so that the squares stay representable.
    largest = terms.amax(-1, keepdim=True).detach()
    scale = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    return GLASS_LOSS_FACTOR * scale.squeeze(-1) * (terms / scale).square().sum(-1).sqrt()


@checked(displacement=FINITE, grad=FINITE, glass_density=NONNEGATIVE, hess=NONNEGATIVE)
def loss_bound(
    displacement: Tensor,
    grad: Tensor,
    glass_density: Tensor,
    hess: Tensor,
    *,
    joint: bool = False,
) -> Tensor:
    """What Theorem 5 minimises: ``d.(g + h d / 2)`` plus the glass term of Theorem 4.

    Bounds the expected ``loss(mu + d) - loss(mu)`` for a gradient ``grad`` (loss / length) and a
    nonnegative Hessian diagonal ``hess`` (loss / length^2). Convex in ``displacement`` for
    ``joint=False``. Summed over the last dimension; ``joint`` as in `glass_loss_bound`.
    """
    smooth = _sum_last(displacement * (grad + hess * displacement / 2))
    return smooth + glass_loss_bound.unchecked(glass_density, displacement, joint=joint)


@checked(second_difference=FINITE, signs=FINITE, probe_radius=POSITIVE)
def directional_density(second_difference: Tensor, signs: Tensor, probe_radius: float) -> Tensor:
    """``rho_t = (2 / lambda) (t . D)^2``: the glass that a move along ``t`` meets, in one sample.

    ``D = (g+ + g-)/2 - g0`` is what Alice measures at ``+-lambda t``; summed over the last
    dimension. Its mean over draws makes Theorem 4 a statement about the loss along ``t``:
    ``E |Delta(lambda t)| = sqrt(2/3pi) sqrt(rho_t) lambda^(3/2)``.

    >>> import torch
    >>> directional_density(torch.tensor([1.0, -2.0]), torch.tensor([1.0, -1.0]), 0.5)
    tensor(36.)
    """
    return 2 / probe_radius * _sum_last(second_difference * signs).square()


@checked(directional_density=NONNEGATIVE, glass_density=NONNEGATIVE)
def glass_coherence(directional_density: Tensor, glass_density: Tensor) -> Tensor:
    """``kappa = sqrt(rho_t) / sum_i sqrt(rho_i)``: how much of the separable bound is there.

    Give means over draws. The separable `glass_loss_bound` of a move that is equal in all
    coordinates, times kappa, is the bound along the move: ``kappa^2 rho`` are the densities that
    tell the truth about it. By the triangle inequality kappa is at most 1 for means over the same
    draws of signs; for n equal coordinates whose jumps are independent it is ``1 / sqrt(n)``.

    >>> import torch
    >>> glass_coherence(torch.tensor(4.0), torch.tensor([1.0, 9.0]))
    tensor(0.5000)
    """
    return directional_density.sqrt() / _sum_last(glass_density.sqrt())


def _sum_last(x: Tensor) -> Tensor:
    return x.sum(-1) if x.dim() else x
