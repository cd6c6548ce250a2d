"""How gradient variations grow with distance: the power law of Figure 1.

Displace all parameters by ``radius t`` with random signs t, and see how the gradient changes::

    v_i(radius) = E[ (g_i(x + radius t) - g_i(x))^2 ],       v_i(radius) ~ k_i radius^p

A Hessian makes the change linear in the radius, so p = 2. Kinks are crossed in proportion to the
radius, and each adds its square, so glass gives p = 1. Over a set P of parameters

    p(P) = log_factor( sum_P v_i(factor radius) / sum_P v_i(radius) ).

Only ordinary gradients are taken, all on the same batch and with the same random state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..site import Draw
from .excursion import Visit, excursion
from .packs import Pack, by_site, total_of
from .spread import student
from .subject import (
    STREAM,
    Blocks,
    Subject,
    check_above,
    check_callable,
    check_whole,
    without_nan,
)

__all__ = ["Exponent", "PowerLaw", "power_law", "variation_exponent"]


@dataclass(frozen=True)
class Exponent:
    """The power law of one set of parameters.

    ``variation`` and ``variation_double`` are the variations at the radius and at ``factor``
    times the radius (twice, unless told), summed over the set and averaged over directions.
    ``low`` and ``high`` bound the exponent with 95% confidence over directions, at this point and
    on this batch: a jackknife over directions with Student's t. NaN means that it cannot be told:
    the exponent if a variation is zero (nothing changed: no gradient, or a gradient that does not
    depend on the parameters) or not finite, the interval for a single direction.
    """

    exponent: float
    low: float
    high: float
    variation: float
    variation_double: float


@dataclass(frozen=True)
class PowerLaw:
    """One measurement: the exponent of every block and of all parameters together.

    ``displaced`` is the share of coordinates that could move. It is 1 in float32 and float64 at
    any reasonable radius; in bf16 a large weight may have no neighbour within the radius.
    """

    radius: float
    factor: float
    directions: int
    gradients: int
    displaced: float
    total: Exponent
    blocks: dict[str, Exponent]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and dicts for a record; what is not finite becomes None."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return plain


def variation_exponent(near: Tensor, far: Tensor, factor: float = 2.0) -> Tensor:
    """``p = log_factor(far / near)``, elementwise; NaN unless both are positive and finite.

    >>> variation_exponent(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([2.0, 4.0, 0.0]))
    tensor([1., 2., nan])
    """
    told = (near > 0) & (far > 0) & near.isfinite() & far.isfinite()
    p = (far.log() - near.log()) / math.log(factor)
    return torch.where(told, p, math.nan)


def jackknife_interval(near: Tensor, far: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """95% interval of the exponent, from sums of each direction: [directions, sets] to [sets].

    Deleting a direction gives ``p_(-k)``; ``se^2 = (n-1)/n sum_k (p_(-k) - mean)^2``; the interval
    is p +- t se with Student's t of n - 1 degrees of freedom. NaN for a single direction.
    """
    n = near.shape[0]
    p = variation_exponent(near.sum(0), far.sum(0), factor)
    if n == 1:
        return torch.full_like(p, math.nan), torch.full_like(p, math.nan)
    others = 1 - torch.eye(n, dtype=near.dtype, device=near.device)
    without = variation_exponent(others @ near, others @ far, factor)
    se = ((n - 1) / n * (without - without.mean(0)).square().sum(0)).sqrt()
    return p - student(n - 1) * se, p + student(n - 1) * se


def power_law(
    model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    closure: Callable[[], Any],
    radius: float,
    *,
    factor: float = 2.0,
    directions: int = 4,
    blocks: Blocks = None,
    center: Mapping[str, Tensor] | None = None,
    second: bool = False,
    seed: int = 0,
    step: int = 0,
) -> PowerLaw:
    """Measure the exponent of gradient variations between ``radius`` and ``factor * radius``.

    Takes ``1 + 2 directions`` gradients, with ``second`` ``1 + 4 directions``. Afterwards
    parameters, gradients, buffers and torch's random state are as before, also if the closure
    raises. For more than one process the closure must be collective, and every process must call.

    Args:
        model: the module, all of whose trainable parameters are displaced together; or
            parameters or (name, parameter) pairs, whose buffers, if any, cannot be guarded.
        closure: forward and backward on one batch, the same at every call.
        radius: the displacement of every coordinate, in units of the parameters.
        factor: how much further the far displacement goes; whole for bf16 and fp16.
        directions: random sign directions, the same ones at both radii.
        blocks: parameter names of each block, which may overlap; or how many parts of a name
            make a block, as in telemetry (None: 1); or a regular expression, whose first group,
            or all that it finds in a name, is the block's name (names without are left out).
        center: where to measure, by parameter name; None: where they stand, which for Alice is mu.
        second: of ``(g(x + d) + g(x - d))/2 - g(x)`` instead: a Hessian cancels, glass gives 1.
        seed: of the directions; torch's random state is not used.
        step: other directions for every step of a training run.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> def closure():
    ...     layer(torch.eye(3)).square().sum().backward()
    >>> round(power_law(layer, closure, 0.01).total.exponent, 3)
    2.0
    """
    check_above("radius", radius)
    check_above("factor", factor, 1.0)
    check_whole("directions", directions, 1)
    check_whole("seed", seed, 0)
    check_whole("step", step, 0)
    check_callable("closure", closure)
    subject = Subject(model, float(radius), center, [factor])
    members = subject.blocks(blocks)
    draws = [Draw(seed ^ STREAM, step * directions + k) for k in range(directions)]
    with excursion(subject.unique, subject.module, closure, factor) as visit, torch.no_grad():
        rows = by_site(visit.packs, _variations(visit, draws, factor, second=second))
        return PowerLaw(
            radius=float(radius),
            factor=float(factor),
            directions=directions,
            gradients=1 + (4 if second else 2) * directions,
            displaced=displaced_share(visit),
            total=_exponent([rows[site] for site in subject.unique], factor),
            blocks={b: _exponent([rows[s] for s in there], factor) for b, there in members.items()},
        )


def _variations(
    visit: Visit, draws: Sequence[Draw], factor: float, *, second: bool
) -> list[Tensor]:
    """For each pack, on its device: squared gradient changes, [directions, near and far, sites]."""
    visit(draws[0], 0.0)
    center = visit.gradients()
    looks = [_look(visit, center, d, m, second=second) for d in draws for m in (1.0, factor)]
    return [torch.stack(found).unflatten(0, (-1, 2)) for found in zip(*looks, strict=True)]


def _look(
    visit: Visit, center: Sequence[Tensor], draw: Draw, multiple: float, *, second: bool
) -> list[Tensor]:
    """For each pack: sums of squares of ``g - g0``, or of ``(g + g_other)/2 - g0``: [sites]."""
    found = []
    for pack, g0, g, other in around(visit, center, draw, multiple, second=second):
        found.append(pack.squares(g - g0 if other is None else (g + other) / 2 - g0))
    return found


def around(
    visit: Visit, center: Sequence[Tensor], draw: Draw, multiple: float, *, second: bool
) -> Iterator[tuple[Pack, Tensor, Tensor, Tensor | None]]:
    """Each pack with gradients at the center, at one point and, if asked for, at the opposite one.

    They are dropped when all packs are through: the next are taken without them in memory.
    """
    visit(draw, multiple)
    others: Sequence[Tensor | None] = [None] * len(center)
    if second:
        others = visit.gradients()
        visit(draw, -multiple)
    for pack, middle, opposite in zip(visit.packs, center, others, strict=True):
        g0, g = (row.to(pack.dtype) for row in (middle, pack.gradient()))
        yield pack, g0, g, None if opposite is None else opposite.to(pack.dtype)


def displaced_share(visit: Visit) -> float:
    """The share of coordinates that can move."""
    (moved,) = total_of([pack.totals(visit.reach(pack) > 0) for pack in visit.packs])
    size = sum(site.param.numel() for pack in visit.packs for site in pack.sites)
    return moved / max(1, size)


def _exponent(rows: Sequence[Tensor], factor: float) -> Exponent:
    """The power law of a set of parameters, each [directions, near and far]."""
    near, far = torch.stack(list(rows)).sum(0).unbind(1)
    low, high = jackknife_interval(near[:, None], far[:, None], factor)
    return Exponent(
        exponent=variation_exponent(near.sum(), far.sum(), factor).item(),
        low=low.item(),
        high=high.item(),
        variation=near.mean().item(),
        variation_double=far.mean().item(),
    )
