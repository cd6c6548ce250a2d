"""What a move does to the loss, beside what gradient, Hessian diagonal and glass predict.

All on one batch: h and rho are measured from gradients on both sides of random sign directions,
then the parameters go to wherever a move ends, and the loss there is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..sharding import is_distributed, local, sum_over_shards
from ..site import Draw, Site, signs_of, state_dtype
from ..theory.glass_bound import GLASS_LOSS_FACTOR
from ..topography import Gradients, glass_sample, hess_sample
from .excursion import Visit
from .power_law import fetched, kept, sum_dtype

__all__ = [
    "LossOf",
    "Measured",
    "Move",
    "Rise",
    "measured_on",
    "rise_at",
    "sums_of",
    "taken",
    "total_of",
]

Move = Callable[[Site], Tensor | None]
"""The displacement of a site, or None; asked for whenever it is needed, rather than kept."""

_ROUNDING = 16  # rises below so many spacings of the loss are rounding


@dataclass(frozen=True)
class Rise:
    """One move on one batch: what the loss did beyond g.d, and the terms of its prediction.

    ``first`` is g.d; ``hessian`` is half of the diagonal's; ``along`` is half of d'Hd, averaged
    over the way, with all that coordinates do to each other; ``glass`` is by form.
    """

    kind: str
    batch: int
    measured: float
    first: float
    hessian: float
    along: float
    glass: dict[str, float]
    rounding: float

    def predicted(self, form: str) -> float:
        """The bound on the rise."""
        return self.hessian + self.glass[form]

    @property
    def told(self) -> bool:
        """Whether the rise is more than rounding of the loss."""
        return abs(self.measured) > self.rounding


class LossOf:
    """A closure that remembers the loss, the mean of all processes', and its relative spacing.

    That of its type, unless the arithmetic before it has a coarser one.
    """

    def __init__(self, closure: Callable[[], Any], spacing: float | None = None) -> None:
        self.closure = closure
        self.last = math.nan
        self.spacing = self._least = spacing or 0.0

    def __call__(self) -> None:
        """Forward and backward; one transfer from the device."""
        loss = self.closure()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(
                f"the closure must return the loss, a tensor with one number, got {loss!r}"
            )
        value = loss.detach().double().reshape(())
        self.spacing = max(torch.finfo(loss.dtype).eps, self._least)
        if is_distributed():
            torch.distributed.all_reduce(value)
            value /= torch.distributed.get_world_size()
        self.last = value.item()


class Measured(NamedTuple):
    """Of one batch: loss, gradient, h and rho by site, and sums for kappa."""

    loss: float
    grads: list[Tensor]
    hess: list[Tensor]
    density: list[Tensor]
    along: float
    roots: float


def measured_on(
    sites: Sequence[Site],
    visit: Visit,
    reach: Callable[[Site], Tensor],
    draws: Sequence[Draw],
    loss: LossOf,
) -> Measured:
    """Means over probes of h, rho and rho_t; the last two give kappa."""
    grads = [taken(site, grad) for site, grad in zip(sites, visit(draws[0], 0.0), strict=True)]
    here = loss.last
    hess, density = ([torch.zeros_like(g) for g in grads] for _ in range(2))

    def add(draw: Draw) -> float:
        """One probe's samples to the means; returns the glass' slope along it."""
        plus = [kept(grad) for grad in visit(draw, 1.0)]
        minus = visit(draw, -1.0)
        slopes = []
        for i, site in enumerate(sites):
            signs, far = signs_of(site, draw), reach(site)
            sides = (taken(site, plus[i]), taken(site, minus[i]))
            found = Gradients(grads[i], *sides, far.where(far > 0, 1.0), signs)
            moved = (far > 0).to(far.dtype)
            hess[i] += moved * hess_sample(found, "signed") / len(draws)
            density[i] += moved * glass_sample(found) / len(draws)
            bent = (sides[0] + sides[1]) / 2 - grads[i]
            slopes.append(sums_of(site, bent * signs))
        (slope,) = total_of(sites, slopes)
        return slope

    along = sum(2 / sites[0].radius * add(draw) ** 2 / len(draws) for draw in draws)
    rows = [sums_of(site, rho.sqrt()) for site, rho in zip(sites, density, strict=True)]
    return Measured(here, grads, hess, density, along, *total_of(sites, rows))


def rise_at(
    sites: Sequence[Site],
    visit: Visit,
    here: Measured,
    place: Callable[[Site], Tensor],
    loss: LossOf,
    kind: str = "",
    batch: int = 0,
) -> Rise:
    """Go where ``place`` says, as the parameters can hold it, and compare."""
    grads = visit.at(place)
    rows = []
    for i, site in enumerate(sites):
        home, rho = visit.home(site), here.density[i]
        d = local(site.param).to(home.dtype) - home
        size = d.abs()
        terms = (
            here.grads[i] * d,
            (taken(site, grads[i]) - here.grads[i]) * d / 2,
            here.hess[i] * d.square() / 2,
            rho.sqrt() * size * size.sqrt(),
            rho * size * size * size,
        )
        rows.append(sums_of(site, *terms))
    first, along, hessian, separable, cubes = total_of(sites, rows)
    glass = {
        "separable": GLASS_LOSS_FACTOR * separable,
        "joint": GLASS_LOSS_FACTOR * math.sqrt(cubes),
    }
    floor = _ROUNDING * loss.spacing * (abs(here.loss) + abs(first))
    rise = loss.last - here.loss - first
    return Rise(kind, batch, rise, first, hessian, along, glass, floor)


def taken(site: Site, grad: Tensor | None) -> Tensor:
    """A gradient in state precision and memory of its own; one that is not given is zero."""
    if grad is None:
        return torch.zeros_like(local(site.param), dtype=state_dtype(site.param))
    return grad.to(state_dtype(site.param), copy=True)


def sums_of(site: Site, *terms: Tensor) -> Tensor:
    """Sums of some terms over this process's part of a parameter, on its device."""
    kind, device = sum_dtype(site), site.param.device
    return torch.stack([term.to(device, kind).sum() for term in terms])


def total_of(sites: Sequence[Site], rows: Sequence[Tensor]) -> list[float]:
    """Over all parameters and shards, in one transfer a device."""
    whole = [sum_over_shards(row, site.param) for site, row in zip(sites, rows, strict=True)]
    total: list[float] = torch.stack(fetched(whole)).sum(0).tolist()
    return total
