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
from . import rises
from .excursion import Visit, excursion
from .packs import Pack, parts_of, total_of
from .rises import LossOf, Move, Rise
from .subject import STREAM, Subject, check_above, check_whole, with_losses, without_nan

__all__ = ["PREDICTIONS", "Cut", "Direction", "Slice", "cut_together", "slices"]

PREDICTIONS = ("quadratic", "glass", "combined")
"""What is drawn over a slice."""

Direction = str | Mapping[str, Tensor]
"""``random``, ``gradient`` (down the gradient of the first batch), or a move by name."""


@dataclass(frozen=True)
class Cut:
    """Where to cut one of several slices, see `slices`."""

    directions: Direction | Sequence[Direction]
    reach: float = 1.0
    points: int = 21
    filters: bool = False


@dataclass(frozen=True)
class Slice:
    """Changes of the loss on a grid, means over batches: [points] or [points, points].

    ``positions`` are multiples of the directions, whose lengths (root mean squares over all
    coordinates) are ``lengths``; the middle one is 0. ``change`` is the loss minus that at the
    middle, ``error`` its standard error over batches (NaN for one), ``predicted`` is by name.
    ``gradients`` were taken for it, and ``losses`` without one; of slices that were cut together
    the first has the gradients of them all.
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
    losses: int

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
    loss: Callable[..., Any] | Sequence[Callable[[], Any]] | None = None,
    points: int = 21,
    batches: Iterable[Any] | None = None,
    filters: bool = False,
    probes: int = 4,
    radius: float | None = None,
    seed: int = 0,
) -> Slice:
    """Cut through the loss along one direction, or two.

    Takes ``1 + 2 probes`` gradients a batch, and one for every point but the middle, or a loss if
    ``loss`` has it. Nothing is left behind, also if a closure raises.

    Args:
        model: as for `ladder`.
        closure: as for `ladder`, and returns the loss.
        directions: one or two: "random" signs; "gradient", down that of the first batch; or a
            displacement by parameter name, such as another checkpoint minus this one.
        reach: where a slice ends, to both sides: the root mean square of the displacement, or for
            a displacement that is given and for ``filters`` a multiple of it.
        loss: called as the closure is, without gradients, for the same loss and no backward: a
            third of the time. All is as without, to the bit where torch computes a loss alike
            with and without gradients.
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
    cut = Cut(directions, reach, points, filters)
    return cut_together(
        *(model, closure, [cut]),
        loss=loss,
        batches=batches,
        probes=probes,
        radius=radius,
        seed=seed,
    )[0]


def cut_together(
    model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    closure: Callable[..., Any] | Sequence[Callable[[], Any]],
    cuts: Sequence[Cut],
    *,
    loss: Callable[..., Any] | Sequence[Callable[[], Any]] | None = None,
    batches: Iterable[Any] | None = None,
    probes: int = 4,
    radius: float | None = None,
    seed: int = 0,
) -> list[Slice]:
    """Several slices, as `slices` cuts them, from one measurement of gradient and curvature.

    At one ``radius``; None: a quarter of the root mean square at the end of the first slice.
    """
    if not cuts:
        raise ValueError("there is nothing to cut: no slices were asked for")
    if radius is not None:
        check_above("radius", radius)
    check_whole("probes", probes, 1)
    check_whole("seed", seed, 0)
    subject = Subject(model, 1.0)
    lines = [_Line(subject, cut, seed) for cut in cuts]
    found: list[list[list[Rise]]] = []
    losses = []
    for j, (on_batch, alone) in enumerate(with_losses(closure, loss, batches)):
        of_batch = LossOf(on_batch, alone)
        with excursion(subject.unique, subject.module, of_batch, 1.0) as visit, torch.no_grad():
            center = rises.center_of(visit, of_batch)
            if j == 0:
                for line in lines:
                    line.aim(visit, center[1])
                for site in subject.unique:
                    site.radius = lines[0].longest / 4 if radius is None else radius
            draws = [Draw(seed ^ STREAM, (1 << 59) + j * probes + k) for k in range(probes)]
            here = rises.measured_on(visit, draws, center)
            found.append([line.rises(visit, here, of_batch) for line in lines])
        losses.append(here.loss)
        del here, center  # before the next batch has its own
    shared = len(losses) * (1 + 2 * probes)
    rows = [list(row) for row in zip(*found, strict=True)]
    return [
        line.read(row, losses, 0 if k else shared, alone=loss is not None)
        for k, (line, row) in enumerate(zip(lines, rows, strict=True))
    ]


_ZERO = Rise("", 0, 0.0, 0.0, 0.0, 0.0, {"separable": 0.0, "joint": 0.0}, 0.0)


def _chosen(cut: Cut) -> list[Direction]:
    """The directions of a cut that can be made."""
    one = isinstance(cut.directions, str | Mapping)
    chosen: list[Any] = [cut.directions] if one else list(cut.directions)
    if not 1 <= len(chosen) <= 2:
        raise ValueError(f"one or two directions make a slice, got {len(chosen)}")
    for direction in chosen:
        if not isinstance(direction, Mapping) and direction not in ("random", "gradient"):
            raise ValueError(
                f"a direction is 'random', 'gradient' or a displacement by name, got {direction!r}"
            )
    check_above("reach", cut.reach)
    check_whole("points", cut.points, 3)
    if cut.points % 2 == 0:
        raise ValueError(f"points must be odd, so that one is in the middle, got {cut.points}")
    return chosen


class _Line:
    """Where a slice goes, a line or a plane: directions by site, and the points on it."""

    def __init__(self, subject: Subject, cut: Cut, seed: int) -> None:
        self.sites, self.chosen, self.filters = subject.unique, _chosen(cut), cut.filters
        self.seed = seed
        half = cut.points // 2
        self.positions = tuple(cut.reach * k / half for k in range(-half, half + 1))
        label, sites = "the given direction", subject.sites
        self.given = [
            {} if isinstance(one, str) else rises.move_by_site(sites, one, label)
            for one in self.chosen
        ]
        self.moves: list[Move] = []
        self.lengths: list[float] = []
        if cut.filters and any(is_dtensor(site.param) for site in self.sites):
            raise ValueError("filters=True needs whole parameters, and some are sharded")

    def aim(self, visit: Visit, gradient: Sequence[Tensor]) -> None:
        """Find the directions at the middle, where the gradient of the first batch is known."""
        count = sum(site.param.numel() for site in self.sites)
        for k, (direction, given) in enumerate(zip(self.chosen, self.given, strict=True)):
            move: Move
            if direction == "random":
                move = partial(Pack.signs, draw=Draw(self.seed ^ STREAM, (1 << 58) + k))
            elif direction == "gradient":
                move = _divided(rises.given_move(parts_of(visit.packs, gradient)), -1.0)
            else:
                move = rises.given_move(given)
            scaled = self.filters or bool(given)
            if self.filters:
                raw = parts_of(visit.packs, map(move, visit.packs))
                move = rises.given_move({site: _like_filters(site, u) for site, u in raw.items()})
            (square,) = total_of([pack.totals(move(pack).square()) for pack in visit.packs])
            size = math.sqrt(square / count)
            if size == 0:
                raise ValueError(f"the {self._name(k)} direction is zero everywhere")
            if not scaled:
                move = _divided(move, size)
            self.moves.append(move)
            self.lengths.append(size if scaled else 1.0)

    @property
    def longest(self) -> float:
        """The root mean square at the end."""
        return max(self.lengths) * self.positions[-1]

    def _name(self, k: int) -> str:
        direction = self.chosen[k]
        return direction if isinstance(direction, str) else "given"

    def rises(self, visit: Visit, here: rises.Measured, loss: LossOf) -> list[Rise]:
        """At every point."""
        return [
            rises.rise_at(visit, here, partial(self.place, visit, at), loss) if any(at) else _ZERO
            for at in product(self.positions, repeat=len(self.chosen))
        ]

    def place(self, visit: Visit, at: Sequence[float], pack: Pack) -> Tensor:
        """Where a point is."""
        there = visit.home(pack)
        for multiple, move in zip(at, self.moves, strict=True):
            there = there + multiple * move(pack)
        return there

    def read(
        self, found: Sequence[Sequence[Rise]], losses: Sequence[float], shared: int, *, alone: bool
    ) -> Slice:
        """The means; ``shared`` gradients were taken before, and at the points losses if alone."""
        shape = [len(self.positions)] * len(self.chosen)

        def grid(value: Callable[[Rise], float]) -> Tensor:
            rows = [[value(rise) for rise in batch] for batch in found]
            return torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(-1, *shape)

        change = grid(lambda r: r.first + r.measured)
        several = len(found) > 1
        error = change.std(0) / math.sqrt(len(found)) if several else change[0] * math.nan
        terms: dict[str, Callable[[Rise], float]] = {
            "quadratic": lambda r: r.first + r.hessian,
            "glass": lambda r: r.first + r.glass["joint"],
            "combined": lambda r: r.first + r.predicted("joint"),
        }
        points = sum(len(batch) - 1 for batch in found)  # all but the middle
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
            gradients=shared if alone else shared + points,
            losses=points if alone else 0,
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
