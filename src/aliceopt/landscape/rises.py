"""What a move does to the loss, beside what gradient, Hessian diagonal and glass predict.

All on one batch: h and rho are measured from gradients on both sides of random sign directions,
then the parameters go to wherever a move ends, and the loss there is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..sharding import is_distributed, local
from ..site import Draw, Site
from ..theory.glass_bound import GLASS_LOSS_FACTOR
from ..topography import Gradients, glass_sample, hess_sample
from .excursion import Visit
from .packs import Pack, total_of

__all__ = [
    "LossOf",
    "Measured",
    "Move",
    "Rise",
    "center_of",
    "given_move",
    "measured_on",
    "move_by_site",
    "rise_at",
]

Move = Callable[[Pack], Tensor]
"""The displacement of a pack; asked for whenever it is needed, rather than kept."""

_ROUNDING = 16  # rises below so many spacings of the loss are rounding


@dataclass(frozen=True)
class Rise:
    """One move on one batch: what the loss did beyond g.d, and the terms of its prediction.

    ``first`` is g.d; ``hessian`` is half of the diagonal's; ``along`` is half of d'Hd, averaged
    over the way, with all that coordinates do to each other, which takes a gradient where the move
    ends: NaN where only the loss was asked for; ``glass`` is by form.
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

    That of its type, unless the arithmetic before it has a coarser one. ``alone`` is the same for
    a function that has the loss without a backward, if there is one.
    """

    def __init__(
        self,
        closure: Callable[[], Any],
        loss: Callable[[], Any] | None = None,
        spacing: float | None = None,
    ) -> None:
        self._closure, self._loss = closure, loss
        self.last = math.nan
        self.spacing = self._least = spacing or 0.0

    def __call__(self) -> None:
        """Forward and backward; one transfer from the device."""
        self._remember(self._closure(), "the closure")

    @property
    def alone(self) -> Callable[[], None] | None:
        """Forward."""
        return None if self._loss is None else partial(self._evaluate, self._loss)

    def _evaluate(self, evaluate: Callable[[], Any]) -> None:
        try:
            loss = evaluate()
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise ValueError(
                "loss must not call backward: it is evaluated without gradients"
            ) from error
        self._remember(loss, "loss")

    def _remember(self, loss: Any, label: str) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(
                f"{label} must return the loss, a tensor with one number, got {loss!r}"
            )
        value = loss.detach().double().reshape(())
        self.spacing = max(torch.finfo(loss.dtype).eps, self._least)
        if is_distributed():
            torch.distributed.all_reduce(value)
            value /= torch.distributed.get_world_size()
        self.last = value.item()


def move_by_site(
    sites: Mapping[str, Site], move: Mapping[str, Tensor], label: str
) -> dict[Site, Tensor]:
    """A given displacement, checked; it stays where it is until it is needed."""
    found = {}
    for name, value in move.items():
        if name not in sites:
            raise ValueError(f"{label} has {name!r}, which is no trainable parameter")
        shape = sites[name].param.shape
        if value.shape != shape:
            raise ValueError(
                f"{label}[{name!r}] must have the parameter's shape {tuple(shape)}, got "
                f"{tuple(value.shape)}"
            )
        found[sites[name]] = local(value)
    return found


def given_move(move: Mapping[Site, Tensor]) -> Move:
    """A displacement by site; what is not named stays."""

    def there(pack: Pack) -> Tensor:
        given = [move.get(site) for site in pack.sites]
        device = next((u.device for u in given if u is not None), pack.device)
        values = [None if u is None else u.to(device) for u in given]
        return pack.joined(values, device).to(pack.device, pack.dtype)

    return there


class Measured(NamedTuple):
    """Of one batch: loss; gradient, h and rho, a row for every pack; and sums for kappa."""

    loss: float
    grads: list[Tensor]
    hess: list[Tensor]
    density: list[Tensor]
    along: float
    roots: float


def center_of(visit: Visit, loss: LossOf) -> tuple[float, list[Tensor]]:
    """Loss and gradient at the center, a row for every pack."""
    visit(Draw(0, 0), 0.0)
    return loss.last, [pack.gradient().to(pack.dtype) for pack in visit.packs]


def measured_on(
    visit: Visit, draws: Sequence[Draw], center: tuple[float, list[Tensor]]
) -> Measured:
    """Means over probes of h, rho and rho_t; the last two give kappa."""
    here, grads = center
    hess, density = ([torch.zeros_like(g) for g in grads] for _ in range(2))

    def add(draw: Draw) -> float:
        """One probe's samples to the means; returns the glass' slope along it."""
        visit(draw, 1.0)
        kept = visit.gradients()
        visit(draw, -1.0)
        slopes = []
        for i, pack in enumerate(visit.packs):
            signs, far = pack.signs(draw), visit.reach(pack)
            plus, minus = (row.to(pack.dtype) for row in (kept[i], pack.gradient()))
            found = Gradients(grads[i], plus, minus, far.where(far > 0, 1.0), signs)
            moved = (far > 0).to(far.dtype)
            hess[i] += moved * hess_sample(found, "signed") / len(draws)
            density[i] += moved * glass_sample(found) / len(draws)
            bent = (plus + minus) / 2 - grads[i]
            slopes.append(pack.totals(bent * signs))
        (slope,) = total_of(slopes)
        return slope

    radius = visit.packs[0].sites[0].radius
    along = sum(2 / radius * add(draw) ** 2 / len(draws) for draw in draws)
    roots = [pack.totals(rho.sqrt()) for pack, rho in zip(visit.packs, density, strict=True)]
    return Measured(here, grads, hess, density, along, *total_of(roots))


def rise_at(
    visit: Visit,
    here: Measured,
    place: Callable[[Pack], Tensor],
    loss: LossOf,
    kind: str = "",
    batch: int = 0,
) -> Rise:
    """Go where ``place`` says, as the parameters can hold it, and compare."""
    visit.at(place, loss.alone)
    rows = []
    for pack, g0, h, rho in zip(visit.packs, here.grads, here.hess, here.density, strict=True):
        d = pack.position() - visit.home(pack)
        size = d.abs()
        terms = [
            g0 * d,
            h * d.square() / 2,
            rho.sqrt() * size * size.sqrt(),
            rho * size * size * size,
        ]
        if loss.alone is None:
            terms.append((pack.gradient().to(pack.dtype) - g0) * d / 2)
        rows.append(pack.totals(*terms))
    first, hessian, separable, cubes, *known = total_of(rows)
    along = known[0] if known else math.nan
    glass = {
        "separable": GLASS_LOSS_FACTOR * separable,
        "joint": GLASS_LOSS_FACTOR * math.sqrt(cubes),
    }
    floor = _ROUNDING * loss.spacing * (abs(here.loss) + abs(first))
    rise = loss.last - here.loss - first
    return Rise(kind, batch, rise, first, hessian, along, glass, floor)
