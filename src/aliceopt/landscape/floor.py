"""Which radii a ladder should have: as small as rounding and the number of kinks allow.

Glass is read at small radii. Two things end the way down. Rounding changes a gradient however
small the displacement is, and below some radius it is all that changes. And a radius that crosses
few kinks says by chance what it says. Both are looked at before the ladder is climbed::

    rounding   the variation when every weight moves by a spacing of its floating-point grid, and
               no less than a spacing of the gradient
    scatter    how much the variation differs between the two sides of a direction, at which a
               Hessian gives the same and few kinks do not
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..site import Draw, Site
from .excursion import Visit, excursion
from .packs import by_site, packs_of
from .subject import STREAM, Blocks, Subject, check_above, check_callable, check_whole

__all__ = [
    "ABOVE_ROUNDING",
    "CANDIDATES",
    "CHOOSING_GRADIENTS",
    "LOOKING_GRADIENTS",
    "Radii",
    "choose_radii",
    "rungs_of",
]

CANDIDATES = tuple(2.4**k / 4096 for k in range(6))
"""Smallest radii to choose from, over the root mean square of all parameters. Where few kinks can
be read further up only, it is a Hessian and more that hides how few they are."""

ABOVE_ROUNDING = 30
"""A variation is read where it is so many times what rounding was measured to make."""

Rows = Mapping[Site, Tensor]
"""Sums by parameter."""

_ERROR = 0.08
_MOST = 5 / 6  # of the blocks that can be read anywhere
_TOP = 0.25  # the largest radius, over the root mean square of all parameters, 1 at most
_SCATTER = 0.3  # of the sides about their mean; above, a few kinks are all there is
_DRAWS = 2
LOOKING_GRADIENTS = 2 + 2 * _DRAWS
"""What it takes to look at one radius."""

CHOOSING_GRADIENTS = 2 + 2 * _DRAWS * len(CANDIDATES)
"""What choosing takes."""


@dataclass(frozen=True)
class Radii:
    """Radii for a ladder, and the variation that rounding makes by itself, by parameter.

    ``readable`` says of every block whether the smallest radius is above rounding and crosses
    enough kinks.
    """

    radii: tuple[float, ...]
    rounding: dict[str, float]
    readable: dict[str, bool]
    gradients: int


def choose_radii(
    model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    closure: Callable[[], Any],
    *,
    count: int = 6,
    factor: float | None = None,
    smallest: float | None = None,
    samples: int = 4,
    spacing: float | None = None,
    blocks: Blocks = None,
    seed: int = 0,
) -> Radii:
    """The smallest radius at which most blocks can be read, and ``count`` radii from there up.

    They reach to a quarter of the root mean square of all parameters, in steps of 2 to 4; where
    those would go beyond that root mean square, in smaller ones, of 1.25 at least, but for bf16 and
    fp16, whose steps are whole. A block
    can be read where its variation is 30 times that of rounding, and where ``samples`` of it will
    have a mean that is known to 8%: by how much the two sides of a direction differ. At larger
    radii the same must hold, since a radius that crosses no kink at all has two equal sides. Of
    `CANDIDATES` the smallest is taken at which five sixths of the blocks can be read that can at
    any; the largest if none can. Takes 26 gradients; nothing is left behind.

    Args:
        model: as for `power_law`.
        closure: forward and backward on one batch, the same at every call.
        count: how many radii.
        factor: from one to the next, instead; whole for bf16 and fp16.
        smallest: the smallest radius, if it is known; whether it can be read is still said.
        samples: directions times batches that the ladder will have.
        spacing: of the arithmetic, relative; None: of the parameters' type. Give 2^-8 for bf16
            autocast and 2^-11 for TF32, which round more coarsely than the parameters do.
        blocks: as for `power_law`.
        seed: of the directions.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> def closure():
    ...     layer(torch.eye(3)).square().sum().backward()
    >>> found = choose_radii(layer, closure, count=3)
    >>> len(found.radii), found.gradients, found.readable
    (3, 26, {'weight': True})
    """
    rungs_of(1.0, count, 2.0 if factor is None else factor)
    check_whole("seed", seed, 0)
    check_whole("samples", samples, 1)
    check_callable("closure", closure)
    subject = Subject(model, 1.0)
    members, unique = subject.blocks(blocks), subject.unique
    sizes, typical = _sizes(unique)
    radii = [typical * share for share in CANDIDATES]
    if smallest is not None:
        radii = rungs_of([smallest, 2 * smallest], 2, 2.0)[:1]
    spacings = [spacing or torch.finfo(site.param.dtype).eps for site in unique]
    rounding, scanned = _look(unique, subject.module, closure, spacings, sizes, radii, seed)
    best, readable = _choice(members, scanned, rounding, samples)
    step = factor or _factor(typical / radii[best], count, unique)
    return Radii(
        radii=tuple(rungs_of(radii[best], count, step)),
        rounding={name: rounding[site] for name, site in subject.sites.items()},
        readable=readable,
        gradients=2 + 2 * _DRAWS * len(radii),
    )


def _look(
    sites: Sequence[Site],
    module: nn.Module | None,
    closure: Callable[[], Any],
    spacings: Sequence[float],
    sizes: Sequence[float],
    radii: Sequence[float],
    seed: int,
) -> tuple[dict[Site, float], list[Rows]]:
    """By site: how the gradient changes by rounding alone, and how at every radius.

    ``spacings`` are of the arithmetic, relative to ``sizes`` and to the gradient.
    """
    draws = [Draw(seed ^ STREAM, (1 << 62) + k) for k in range(_DRAWS)]
    with excursion(sites, module, closure, 1.0) as visit, torch.no_grad():
        visit(draws[0], 0.0)
        center = visit.gradients()
        squares = [pack.squares(g0) for pack, g0 in zip(visit.packs, center, strict=True)]
        whole = by_site(visit.packs, squares)
        for site, spacing, size in zip(sites, spacings, sizes, strict=True):
            site.radius = spacing * size
        floor = _changes(visit, center, draws[:1], (1.0,))
        scanned = []
        for radius in radii:
            for site in sites:
                site.radius = radius
            scanned.append(_changes(visit, center, draws, (1.0, -1.0)))
    rounding = {
        site: max(floor[site].item(), spacing**2 * whole[site].item())
        for site, spacing in zip(sites, spacings, strict=True)
    }
    return rounding, scanned


def _factor(ratio: float, count: int, sites: Sequence[Site]) -> float:
    """Up to the top in even steps; in whole ones where the grid of a parameter is coarse."""
    steps = count - 1
    step = min(4.0, max(2.0, (_TOP * ratio) ** (1 / steps)), max(1.25, ratio ** (1 / steps)))
    coarse = any(site.low_precision for site in sites)
    return float(max(2, int(step))) if coarse else step


def _sizes(sites: Sequence[Site]) -> tuple[list[float], float]:
    """Root mean square of every parameter, that of all where it is 0; and of all, 1 if it is 0."""
    packs = packs_of(sites)
    squares = by_site(packs, [pack.squares(pack.position()) for pack in packs])
    sums = [squares[site].item() for site in sites]
    counts = [max(1, site.param.numel()) for site in sites]
    typical = math.sqrt(sum(sums) / sum(counts)) or 1.0
    own = (math.sqrt(total / count) for total, count in zip(sums, counts, strict=True))
    return [size or typical for size in own], typical


def _changes(
    visit: Visit, center: Sequence[Tensor], draws: Sequence[Draw], sides: Sequence[float]
) -> Rows:
    """For each site: squared changes of the gradient, [draws x sides]."""

    def look(draw: Draw, side: float) -> list[Tensor]:
        visit(draw, side)
        return [
            pack.squares(pack.gradient().to(pack.dtype) - g0.to(pack.dtype))
            for pack, g0 in zip(visit.packs, center, strict=True)
        ]

    rows = [look(draw, side) for draw in draws for side in sides]
    return by_site(visit.packs, [torch.stack(column) for column in zip(*rows, strict=True)])


def _choice(
    members: Mapping[str, Sequence[Site]],
    scanned: Sequence[Rows],
    rounding: Mapping[Site, float],
    samples: int,
) -> tuple[int, dict[str, bool]]:
    """The first radius at which most blocks can be read, by its place, and which can there."""
    most = min(_SCATTER, _ERROR * math.sqrt(samples))
    told = [
        {block: _readable(there, rows, rounding, most) for block, there in members.items()}
        for rows in scanned
    ]
    for small, large in reversed(list(pairwise(told))):
        small.update({block: small[block] and large[block] for block in small})
    counts = [sum(readable.values()) for readable in told]
    best = len(told) - 1  # if nothing can be read
    if any(counts):
        best = next(i for i, count in enumerate(counts) if count >= _MOST * max(counts))
    return best, told[best]


def _readable(
    sites: Sequence[Site],
    rows: Rows,
    rounding: Mapping[Site, float],
    most: float,
) -> bool:
    """Whether a block's variation is above rounding and differs little between sides."""
    v = torch.stack([rows[site] for site in sites]).sum(0).unflatten(0, (_DRAWS, 2))
    above = v.mean().item() > ABOVE_ROUNDING * sum(rounding[site] for site in sites)
    apart = (v[:, 0] - v[:, 1]).abs() / v.sum(1)
    return above and bool(apart.mean() < most)


def rungs_of(radii: Any, count: Any, factor: Any) -> list[float]:
    """The radii, smallest first; or ``count`` from one up. Arrays and tensors will do."""
    if isinstance(radii, Radii):
        radii = radii.radii
    given = radii.tolist() if hasattr(radii, "tolist") else radii
    if isinstance(given, Sequence) and not isinstance(given, str):
        rungs = list(given)
    else:
        check_whole("count", count, 1)
        check_above("factor", factor, 1.0)
        rungs = [given * float(factor) ** k for k in range(count)] if _is_number(given) else [given]
    pairs = zip([0.0, *rungs], rungs, strict=False)
    if not all(_is_number(high) and high > low for low, high in pairs):
        raise ValueError(f"radii must be numbers above 0, each above the last, got {radii!r}")
    if len(rungs) < 2:
        raise ValueError(f"a ladder needs two radii or more, got {rungs!r}")
    return [float(radius) for radius in rungs]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
