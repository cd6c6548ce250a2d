"""Gradient variations over a ladder of radii: glass or Hessian, and where one gives way.

One radius proves nothing, since a smooth gradient that saturates has exponents below 2 as well.
Over a ladder of radii, with random signs t and on several batches, per block of parameters::

    v(radius)   = E sum (g(x + radius t) - g(x))^2                                variation
    rho(radius) = (2/radius) E sum ((g(x + radius t) + g(x - radius t))/2 - g(x))^2

Glass has v = rho radius with a rho that stays as the radius shrinks, a Hessian v ~ radius^2 and a
rho that falls as radius^3. Both together are ``v = a radius + b radius^2``, equal at the
*crossover* a/b: below it glass decides how the gradient changes, above it the Hessian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..site import Draw, Site
from .excursion import Visit, excursion
from .floor import ABOVE_ROUNDING, Radii, rungs_of
from .packs import by_site
from .power_law import around, displaced_share
from .rungs import Rungs, read_rungs
from .subject import STREAM, Blocks, Subject, check_above, check_whole, closures_of, without_nan

__all__ = ["Ladder", "ladder"]

_Key = TypeVar("_Key", str, Site)

_ROUNDING = 16  # changes below so many spacings of the gradient's norm are noise


@dataclass(frozen=True)
class Ladder:
    """One measurement: the rungs of every block and of all parameters together.

    ``displaced`` is the share of coordinates that could move at the smallest radius: below 1 in
    bf16, where a large weight may have no neighbour that close. ``sums`` are what all is computed
    from: for every parameter [batches, directions, radii, 3] sums of squares, of the gradient's
    change, of its second difference and of the gradient; ``noise`` are variations up to which a
    change may be rounding. Tied names have the same.
    """

    radii: tuple[float, ...]
    directions: int
    batches: int
    gradients: int
    displaced: float
    total: Rungs
    blocks: dict[str, Rungs]
    sums: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    noise: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    def of(self, names: Iterable[str]) -> Rungs:
        """The rungs of any other set of parameters, from the same measurement."""
        listed = list(names)
        if not listed:
            raise ValueError("no parameter was named: the rungs are of one or more")
        for name in listed:
            if name not in self.sums:
                raise ValueError(f"{name!r} was not measured")
        own = {id(self.sums[name]): name for name in listed}  # tied names once
        return _read(own.values(), self.sums, self.radii, self.noise)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, no tensors; what is not finite becomes None."""
        plain: dict[str, Any] = without_nan(asdict(replace(self, sums={}, noise={})))
        del plain["sums"], plain["noise"]
        return plain


def ladder(
    model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    closure: Callable[..., Any] | Sequence[Callable[[], Any]],
    radii: float | Sequence[float] | Radii,
    *,
    count: int = 6,
    factor: float = 2.0,
    batches: Iterable[Any] | None = None,
    directions: int = 4,
    second: bool = True,
    blocks: Blocks = None,
    center: Mapping[str, Tensor] | None = None,
    spacing: float | None = None,
    seed: int = 0,
    step: int = 0,
) -> Ladder:
    """Measure variation, glass density and exponents over a ladder of radii.

    Takes ``1 + 2 directions radii`` gradients a batch, without ``second`` ``1 + directions radii``.
    What is put back, and what several processes have to do, is as for `power_law`.

    Args:
        model: as for `power_law`.
        closure: as for `power_law`; or several, one a batch; or with ``batches`` one of a batch.
        radii: displacements of every coordinate, increasing; or the smallest of ``count``; or
            those that `choose_radii` found, with what rounding makes of a gradient.
        count: how many radii, if only the smallest is given.
        factor: from one of them to the next, then; whole for bf16 and fp16.
        batches: what to call the closure with, batches of one size, taken one at a time and only
            once. Drawing them is not part of the measurement, and may use torch's random state.
        directions: random sign directions a batch: others in each, the same at every radius.
        second: also take the other side, which the glass density needs.
        blocks: as for `power_law`.
        center: as for `power_law`.
        spacing: of the arithmetic, as for `choose_radii`; what that measured is better, and goes
            first.
        seed: of the directions; torch's random state is not used.
        step: other directions for every step of a training run.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> def closure():
    ...     layer(torch.eye(3)).square().sum().backward()
    >>> found = ladder(layer, closure, 0.01, count=3).total
    >>> found.verdict, [round(p.value, 2) for p in found.exponents]
    ('smooth', [2.0, 2.0])
    """
    rungs = rungs_of(radii, count, factor)
    check_whole("directions", directions, 1)
    check_whole("seed", seed, 0)
    check_whole("step", step, 0)
    if spacing is not None:
        check_above("spacing", spacing)
    multiples = [radius / rungs[0] for radius in rungs]
    subject = Subject(model, rungs[0], center, multiples)
    unique, members = subject.unique, subject.blocks(blocks)
    tables, displaced = [], 1.0
    for j, on_batch in enumerate(closures_of(closure, batches)):
        draws = [Draw(seed ^ STREAM, (step << 32) + j * directions + k) for k in range(directions)]
        with excursion(unique, subject.module, on_batch, multiples[-1]) as visit, torch.no_grad():
            tables.append(by_site(visit.packs, _climb(visit, draws, multiples, second=second)))
            displaced = displaced_share(visit)
    rows = {site: torch.stack([table[site] for table in tables]) for site in unique}
    measured = radii.rounding if isinstance(radii, Radii) else {}
    names = {site: name for name, site in subject.sites.items()}
    noise = {site: _noise(site, rows[site], measured.get(names[site]), spacing) for site in unique}
    each = 1 + (2 if second else 1) * directions * len(rungs)
    return _summary(rows, rungs, noise, subject.sites, members, each, displaced)


def _climb(
    visit: Visit, draws: Sequence[Draw], multiples: Sequence[float], *, second: bool
) -> list[Tensor]:
    """For each pack, on its device: [directions, radii, 3, sites] sums of squares on one batch.

    Of the gradient's change, averaged over both sides; of its second difference, NaN if only one
    side is asked for; and of the gradient at the center.
    """
    visit(draws[0], 0.0)
    center = visit.gradients()
    whole = [pack.squares(g0) for pack, g0 in zip(visit.packs, center, strict=True)]
    looks = [_look(visit, center, d, m, second=second) for d in draws for m in multiples]
    tables = []
    for square, found in zip(whole, zip(*looks, strict=True), strict=True):
        changes = torch.stack(found)  # [directions x radii, 2, sites]
        table = torch.cat([changes, square.expand(len(found), 1, -1)], 1)
        tables.append(table.unflatten(0, (len(draws), -1)))
    return tables


def _look(
    visit: Visit, center: Sequence[Tensor], draw: Draw, multiple: float, *, second: bool
) -> list[Tensor]:
    """For each pack: the first two sums, [2, sites], of one direction at one radius."""
    found = []
    for pack, g0, minus, plus in around(visit, center, draw, multiple, second=second):
        one = pack.squares(minus - g0)
        bent = torch.full_like(one, math.nan)
        if plus is not None:
            one = (pack.squares(plus - g0) + one) / 2
            bent = pack.squares((plus + minus) / 2 - g0)
        found.append(torch.stack([one, bent]))
    return found


# ---- what it amounts to ------------------------------------------------------------------------


def _summary(
    rows: Mapping[Site, Tensor],
    radii: Sequence[float],
    noise: Mapping[Site, float],
    sites: Mapping[str, Site],
    members: Mapping[str, Sequence[Site]],
    each: int,
    displaced: float,
) -> Ladder:
    """All batches together, ``each`` of so many gradients."""
    batches, directions = next(iter(rows.values())).shape[:2]
    return Ladder(
        radii=tuple(radii),
        directions=directions,
        batches=batches,
        gradients=batches * each,
        displaced=displaced,
        total=_read(rows, rows, radii, noise),
        blocks={block: _read(there, rows, radii, noise) for block, there in members.items()},
        sums={name: rows[site] for name, site in sites.items()},
        noise={name: noise[site] for name, site in sites.items()},
    )


def _noise(site: Site, rows: Tensor, measured: float | None, spacing: float | None) -> float:
    """A variation up to which a change may be rounding: as measured, or as usual."""
    if measured is not None:
        return ABOVE_ROUNDING * measured
    coarse = _ROUNDING * (spacing or torch.finfo(site.param.dtype).eps)
    return float(coarse**2 * rows[..., 2].mean())


def _read(
    keys: Collection[_Key],
    rows: Mapping[_Key, Tensor],
    radii: Sequence[float],
    noise: Mapping[_Key, float],
) -> Rungs:
    """What the ladder of a set of parameters says, each [batches, directions, radii, 3]."""
    table = torch.stack([rows[key] for key in keys]).sum(0)
    return read_rungs(table[..., :2], radii, sum(noise[key] for key in keys))
