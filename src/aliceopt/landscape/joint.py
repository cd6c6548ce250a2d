"""Is a step limited by its coordinates, or by all of them together?

Alice's step is diagonal: it pays ``sum h_i u_i^2`` for moving by u. What the loss pays is ``u'Hu``,
with all that coordinates do to each other. Their ratio, the joint factor, is 1 if a diagonal tells
the truth, and large if the step is limited jointly: then no diagonal curvature, however well
measured, finds the right length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..driving import Driving
from ..sharding import is_dtensor
from ..site import Draw, Site, averages
from ..step import bounded_step
from ..telemetry import rates_of
from ..topography import corrected
from .excursion import excursion, sites_of
from .packs import parts_of
from .subject import check_above

if TYPE_CHECKING:
    from ..alice import Alice

__all__ = ["JointCurvature", "joint_curvature"]


@dataclass(frozen=True)
class JointCurvature:
    """``along = u'Hu``, ``diagonal = sum h_i u_i^2``, and their ratio, NaN for a diagonal of zero.

    u is the optimizer's last step, without decay, and h its measured Hessian diagonal.
    """

    along: float
    diagonal: float
    factor: float
    gradients: int = 2


def joint_curvature(
    optimizer: Alice, closure: Callable[[], Any], *, length: float = 1.0
) -> JointCurvature:
    """Curvature along the optimizer's own step, and what its diagonal makes of it.

    Two gradients, half a ``length`` of the step before and beyond the position, give
    ``u'Hu = (g(mu + u/2) - g(mu - u/2)) u``, averaged over that length. Nothing else notices:
    parameters, gradients, buffers and torch's random state are as before.

    Args:
        optimizer: an Alice that measures a Hessian and has taken a step.
        closure: forward and backward on one batch, the same at every call.
        length: of the move, in steps.
    """
    check_above("length", length)
    if not isinstance(optimizer, Driving):
        raise TypeError(
            f"joint_curvature looks at the steps of an Alice, got {type(optimizer).__name__}"
        )
    moves = _moves(optimizer)
    named = {str(i): param for i, param in enumerate(moves)}
    sites = list(sites_of(named, optimizer.model, 0.0, None).values())
    ends = [_ends(site.param, moves[site.param][0] * length) for site in sites]
    grads = []
    for end in (0, 1):
        for site, places in zip(sites, ends, strict=True):
            site.state["probe_center"] = places[end]
        with excursion(sites, optimizer.model, closure, 1.0) as visit:
            visit(Draw(0, 0), 0.0)
            found = parts_of(visit.packs, visit.gradients())
            grads.append([found[site] for site in sites])
    along = diagonal = 0.0
    for site, (far, near), plus, minus in zip(sites, ends, *grads, strict=True):
        moved = far - near  # what rounding left of the step
        ahead, behind = (torch.sum(g.to(moved.dtype) * moved).item() for g in (plus, minus))
        along += ahead - behind
        diagonal += (moves[site.param][1] * moved.square()).sum().item()
    factor = along / diagonal if diagonal else math.nan
    return JointCurvature(along / length**2, diagonal / length**2, factor)


def _ends(param: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Half a step beyond the position and half a step before it, where the parameter can be."""
    here = param.detach().to(step.dtype)
    far, near = ((here + sign * step).to(param.dtype).to(step.dtype) for sign in (0.5, -0.5))
    return far, near


def _moves(optimizer: Alice) -> dict[Tensor, tuple[Tensor, Tensor]]:
    """For every parameter that is trained: the last step, without decay, and the diagonal."""
    optimizer.come_home()
    optimizer._bind()
    with torch.no_grad():
        trained = [site for site in optimizer.sites if site.state and site.param.requires_grad]
        found: dict[Tensor, tuple[Tensor, Tensor]] = {site.param: _move(site) for site in trained}
    if not found:
        raise ValueError("joint_curvature needs an optimizer that has taken a step")
    return found


def _move(site: Site) -> tuple[Tensor, Tensor]:
    if is_dtensor(site.param):
        raise ValueError("joint_curvature cannot look at sharded parameters yet")
    numbers = rates_of(site)
    avg = averages(site.state, vars(numbers))
    h = corrected(avg, numbers).hess
    if h is None or numbers.topo_weight == 0:
        raise ValueError(
            "joint_curvature compares with a measured Hessian diagonal, and there is none: "
            f"construct Alice(..., hessian='abs'), got {site.group['hessian']!r}, and drive it "
            "with a closure or evaluations()"
        )
    return bounded_step(avg, numbers), h
