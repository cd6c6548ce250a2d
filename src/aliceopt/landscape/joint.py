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

from ..sharding import is_dtensor
from ..site import Draw, Site, averages
from ..step import bounded_step
from ..telemetry import numbers_of
from ..topography import corrected
from .excursion import excursion, sites_of

if TYPE_CHECKING:
    from ..alice import Alice

__all__ = ["JointCurvature", "joint_curvature"]


@dataclass(frozen=True)
class JointCurvature:
    """``along = u'Hu``, ``diagonal = sum h_i u_i^2``, and their ratio, NaN for a diagonal of zero.

    u is the step that the optimizer would take now, h its measured Hessian diagonal.
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
    number = isinstance(length, int | float) and not isinstance(length, bool)
    if not number or not math.isfinite(length) or length <= 0:
        raise ValueError(f"length must be a number in (0, inf), got {length!r}")
    moves = _moves(optimizer)
    trained = [param for param in moves if param.requires_grad]
    named = {str(i): param for i, param in enumerate(trained)}
    sites = list(sites_of(named, optimizer.model, 0.0, None).values())
    steps = [moves[site.param][0] * length for site in sites]
    ends = []
    for sign in (0.5, -0.5):
        for site, step in zip(sites, steps, strict=True):
            site.state["probe_center"] = site.param.detach().to(step.dtype) + sign * step
        with excursion(sites, optimizer.model, closure, 1.0) as (visit, _):
            ends.append([_along(g, u) for g, u in zip(visit(Draw(0, 0), 0.0), steps, strict=True)])
    along = (math.fsum(ends[0]) - math.fsum(ends[1])) / length**2
    diagonal = math.fsum(priced for _, priced in moves.values())
    factor = along / diagonal if diagonal else math.nan
    return JointCurvature(along=along, diagonal=diagonal, factor=factor)


def _moves(optimizer: Alice) -> dict[Tensor, tuple[Tensor, float]]:
    """For every parameter that was updated: the next step, and what its diagonal says of it."""
    optimizer.come_home()
    optimizer._bind()
    with torch.no_grad():
        found: dict[Tensor, tuple[Tensor, float]] = {
            site.param: _move(site) for site in optimizer.sites if site.state
        }
    if not found:
        raise ValueError("joint_curvature needs an optimizer that has taken a step")
    return found


def _move(site: Site) -> tuple[Tensor, float]:
    if is_dtensor(site.param):
        raise ValueError("joint_curvature cannot look at sharded parameters yet")
    avg, numbers = averages(site.state, site.group), numbers_of(site)
    h = corrected(avg, numbers).hess
    if h is None or numbers.topo_weight == 0:
        raise ValueError(
            "joint_curvature compares with a measured Hessian diagonal, and there is none: "
            f"construct Alice(..., hessian='abs'), got {site.group['hessian']!r}, and drive it "
            "with a closure or evaluations()"
        )
    step = bounded_step(avg, numbers)
    return step, (h * step.square()).sum().item()


def _along(grad: Tensor | None, step: Tensor) -> float:
    return 0.0 if grad is None else torch.sum(grad.to(step.dtype) * step).item()
