"""Slices through the loss, along one direction or two, with what curvature predicts of them.

A slice shows the loss where it is cut; what is predicted from its middle is drawn over it::

    quadratic   g.d + 1/2 sum h_i d_i^2
    glass       g.d + glass(d)              Theorem 4: how far kinks may lift it, on average
    combined    g.d + 1/2 sum h_i d_i^2 + glass(d)

with the glass term of all coordinates together, ``sqrt(2/3pi) sqrt(sum rho_i |d_i|^3)``, and h and
rho measured at a finite radius on the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..sharding import is_dtensor, local
from ..site import Draw, Site
from .excursion import Visit, excursion, named_parameters, sites_of
from .ladder import closures_of
from .packs import Pack, parts_of, total_of
from .power_law import STREAM, check_whole, without_nan
from .rises import LossOf, Move, Rise, given_move, measured_on, move_by_site, rise_at

__all__ = ["PREDICTIONS", "Direction", "Slice", "slices"]

PREDICTIONS = ("quadratic", "glass", "combined")
"""What is drawn over a slice."""

Direction = str | Mapping[str, Tensor]
"""``random``, ``gradient`` (down the gradient of the first batch), or a move by name."""


@dataclass(frozen=True)
class Slice:
    """Changes of the loss on a grid, means over batches: [points] or [points, points].

    ``positions`` are multiples of the directions, whose lengths (root mean squares over all
    coordinates) are ``lengths``; the middle one is 0. ``change`` is the loss minus that at the
    middle, ``error`` its standard error over batches (NaN for one), ``predicted`` is by name.
    """

    directions: tuple[str, ...]
    lengths: tuple[float, ...]
    positions: tuple[float, ...]
    loss: float
    change: list[Any]
    error: list[Any]
    predicted: dict[str, list[Any]]
    radius: float
    batches: int
    gradients: int

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; what is not finite becomes None."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return plain


def slices(
    model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    closure: Callable[..., Any] | Sequence[Callable[[], Any]],
    directions: Direction | Sequence[Direction],
    reach: float = 1.0,
    *,
    points: int = 21,
    batches: Iterable[Any] | None = None,
    filters: bool = False,
    probes: int = 4,
    radius: float | None = None,
    seed: int = 0,
) -> Slice:
    """Cut through the loss along one direction, or two.

    Takes one gradient, and on every batch ``1 + 2 probes`` and one for every point but the middle.
    Nothing is left behind, also if a closure raises.

    Args:
        model: as for `ladder`.
        closure: as for `ladder`, and returns the loss.
        directions: one or two: "random" signs; "gradient", down that of the first batch; or a
            displacement by parameter name, such as another checkpoint minus this one.
        reach: where a slice ends, to both sides: the root mean square of the displacement, or for
            a displacement that is given and for ``filters`` a multiple of it.
        points: on each axis, an odd number.
        batches: as for `ladder`.
        filters: scale every filter of a direction to the size of the model's own (and leave out
            what has no filters: biases and norms), so that networks whose weights have
            different scales can be compared; a reach of 1 is as far as the weights are from 0.
        probes: random directions from which h and rho are measured.
        radius: of the probes; None: a quarter of the root mean square at the end.
        seed: of directions and probes.

    >>> layer = nn.Linear(3, 1, bias=False).double()
    >>> def closure():
    ...     loss = layer(torch.eye(3, dtype=torch.float64)).square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> found = slices(layer, closure, "random", 0.1, points=3)
    >>> found.positions, round(found.change[0] + found.change[2], 6)  # twice 3 * 0.1^2 / 2
    ((-0.1, 0.0, 0.1), 0.03)
    """
    chosen = [directions] if isinstance(directions, str | Mapping) else list(directions)
    _check(chosen, reach, points, probes, seed, radius)
    named, module = named_parameters(model)
    sites = sites_of(named, module, 1.0, None)
    unique = list(dict.fromkeys(sites.values()))
    cut = _Cut(unique, sites, chosen, reach, points, probes, filters, radius, seed)
    found: list[list[Rise]] = []
    losses = []
    for j, on_batch in enumerate(closures_of(closure, batches)):
        loss = LossOf(on_batch)
        with excursion(unique, module, loss, 1.0) as visit, torch.no_grad():
            if not cut.moves:
                visit(Draw(0, 0), 0.0)
                cut.aim(visit)
            here = measured_on(visit, cut.draws(j), loss)
            losses.append(here.loss)
            found.append(
                [
                    rise_at(visit, here, partial(cut.place, visit, at), loss) if any(at) else _ZERO
                    for at in cut.grid()
                ]
            )
    return cut.read(found, losses)


_ZERO = Rise("", 0, 0.0, 0.0, 0.0, 0.0, {"separable": 0.0, "joint": 0.0}, 0.0)


def _check(
    chosen: Sequence[Any], reach: Any, points: Any, probes: Any, seed: Any, radius: Any
) -> None:
    if not 1 <= len(chosen) <= 2:
        raise ValueError(f"one or two directions make a slice, got {len(chosen)}")
    for direction in chosen:
        if not isinstance(direction, Mapping) and direction not in ("random", "gradient"):
            raise ValueError(
                f"a direction is 'random', 'gradient' or a displacement by name, got {direction!r}"
            )
    for label, value in (("reach", reach), ("radius", 1.0 if radius is None else radius)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{label} must be a number in (0, inf), got {value!r}")
    check_whole("points", points, 3)
    if points % 2 == 0:
        raise ValueError(f"points must be odd, so that one is in the middle, got {points}")
    check_whole("probes", probes, 1)
    check_whole("seed", seed, 0)


class _Cut:
    """Where a slice goes: directions by site, and the points on it."""

    def __init__(
        self,
        unique: Sequence[Site],
        sites: Mapping[str, Site],
        chosen: Sequence[Direction],
        reach: float,
        points: int,
        probes: int,
        filters: bool,
        radius: float | None,
        seed: int,
    ) -> None:
        self.sites, self.chosen, self.filters = unique, chosen, filters
        self.probes, self.radius, self.seed = probes, radius, seed
        half = points // 2
        self.positions = tuple(reach * k / half for k in range(-half, half + 1))
        self.given = [
            move_by_site(sites, d, "the given direction") if isinstance(d, Mapping) else {}
            for d in chosen
        ]
        self.moves: list[Move] = []
        self.lengths: list[float] = []
        if filters and any(is_dtensor(site.param) for site in unique):
            raise ValueError("filters=True needs whole parameters, and some are sharded")

    def draws(self, batch: int) -> list[Draw]:
        first = (1 << 59) + batch * self.probes
        return [Draw(self.seed ^ STREAM, first + k) for k in range(self.probes)]

    def aim(self, visit: Visit) -> None:
        """Find the directions at the middle, where the gradient of the first batch is known."""
        count = sum(site.param.numel() for site in self.sites)
        for k, (direction, given) in enumerate(zip(self.chosen, self.given, strict=True)):
            move = self._raw(visit, direction, given, k)
            scaled = self.filters or bool(given)
            if self.filters:
                raw = parts_of(visit.packs, map(move, visit.packs))
                move = given_move({site: _like_filters(site, u) for site, u in raw.items()})
            (square,) = total_of([pack.totals(move(pack).square()) for pack in visit.packs])
            size = math.sqrt(square / count)
            if size == 0:
                raise ValueError(f"the {self._name(k)} direction is zero everywhere")
            if not scaled:
                move = _divided(move, size)
            self.moves.append(move)
            self.lengths.append(size if scaled else 1.0)
        longest = max(self.lengths) * self.positions[-1]
        for site in self.sites:
            site.radius = longest / 4 if self.radius is None else self.radius

    def _raw(
        self, visit: Visit, direction: Direction, given: Mapping[Site, Tensor], k: int
    ) -> Move:
        """Made anew whenever it is asked for, but for a gradient, which is kept."""
        if direction == "random":
            return partial(Pack.signs, draw=Draw(self.seed ^ STREAM, (1 << 58) + k))
        if given:
            return given_move(given)
        down = (-pack.gradient().to(pack.dtype) for pack in visit.packs)
        return given_move(parts_of(visit.packs, down))

    def _name(self, k: int) -> str:
        direction = self.chosen[k]
        return direction if isinstance(direction, str) else "given"

    def grid(self) -> list[tuple[float, ...]]:
        return list(product(self.positions, repeat=len(self.chosen)))

    def place(self, visit: Visit, at: Sequence[float], pack: Pack) -> Tensor:
        """Where a point is."""
        there = visit.home(pack)
        for multiple, move in zip(at, self.moves, strict=True):
            there = there + multiple * move(pack)
        return there

    def read(self, found: Sequence[Sequence[Rise]], losses: Sequence[float]) -> Slice:
        shape = [len(self.positions)] * len(self.chosen)

        def grid(value: Callable[[Rise], float]) -> Tensor:
            rows = [[value(rise) for rise in batch] for batch in found]
            return torch.tensor(rows, dtype=torch.float64).reshape(-1, *shape)

        change = grid(lambda r: r.first + r.measured)
        several = len(found) > 1
        error = change.std(0) / math.sqrt(len(found)) if several else change[0] * math.nan
        terms: dict[str, Callable[[Rise], float]] = {
            "quadratic": lambda r: r.first + r.hessian,
            "glass": lambda r: r.first + r.glass["joint"],
            "combined": lambda r: r.first + r.predicted("joint"),
        }
        each = 1 + 2 * self.probes + len(self.grid()) - 1
        return Slice(
            directions=tuple(self._name(k) for k in range(len(self.chosen))),
            lengths=tuple(self.lengths),
            positions=self.positions,
            loss=sum(losses) / len(losses),
            change=change.mean(0).tolist(),
            error=error.tolist(),
            predicted={name: grid(term).mean(0).tolist() for name, term in terms.items()},
            radius=self.sites[0].radius,
            batches=len(found),
            gradients=1 + len(found) * each,
        )


def _divided(move: Move, size: float) -> Move:
    """So many times shorter."""
    return lambda pack: move(pack) / size


def _like_filters(site: Site, u: Tensor) -> Tensor:
    """Every filter of a direction as large as that of the weight; zero for vectors."""
    weight = local(site.param).to(u.dtype)
    if weight.dim() < 2:
        return torch.zeros_like(u)
    rest = tuple(range(1, weight.dim()))
    sizes = [x.square().sum(rest, keepdim=True).sqrt() for x in (weight, u)]
    return u * sizes[0] / sizes[1].clamp(min=torch.finfo(u.dtype).tiny)
