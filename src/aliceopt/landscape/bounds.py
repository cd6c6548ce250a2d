"""Does the bound hold? Predicted against measured changes of the loss, along several directions.

Theorem 5 minimises what a move d is predicted to cost::

    L(x + d) - L(x)  <=  g.d  +  1/2 sum h_i d_i^2  +  glass(d)

with the glass term of Theorem 4 in one of three forms::

    separable   sqrt(2/3pi) sum_i sqrt(rho_i) |d_i|^(3/2)      a floor in every coordinate
    joint       sqrt(2/3pi) sqrt(sum_i rho_i |d_i|^3)          one floor, independent coordinates
    coherent    kappa times the separable one                  one floor, as coordinates really add

kappa = sqrt(rho_t) / sum_i sqrt(rho_i) is measured along random moves. h and rho are measured on
the batch itself, from gradients on both sides of random sign directions. What is compared is the
*rise*, the change of the loss beyond g.d, which every first-order method knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..site import Draw, Site
from .excursion import Visit, excursion
from .packs import Pack, total_of
from .rises import LossOf, Move, Rise, center_of, given_move, measured_on, move_by_site, rise_at
from .spread import Estimate, estimates
from .subject import STREAM, Subject, check_above, check_whole, with_losses, without_nan

__all__ = ["FORMS", "BoundCheck", "Calibration", "bound_check"]

FORMS = ("separable", "joint", "coherent")
"""Of the glass term."""

Moves = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class Calibration:
    """All moves of one kind against one form of the bound.

    ``violations`` is the share of moves whose rise exceeds the bound, without those whose rise is
    rounding: ``moves`` counts the rest, ``rounded`` those. ``ratio`` is the mean rise of all over
    the mean bound: 1 if the bound is right on average, below 1 if it is too large.
    """

    violations: float
    ratio: Estimate
    moves: int
    rounded: int


@dataclass(frozen=True)
class BoundCheck:
    """What `bound_check` found: calibrations by kind of direction and form of the bound.

    ``coherence`` is kappa. ``walk`` compares the glass term alone with what Theorem 4 speaks of,
    the mean absolute excursion of the loss with gradient and Hessian taken away: measured over
    predicted, by form, along random moves. ``losses`` were evaluated without a gradient.
    """

    radius: float
    batches: int
    gradients: int
    losses: int
    coherence: float
    walk: dict[str, Estimate]
    kinds: dict[str, dict[str, Calibration]]
    rises: tuple[Rise, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; what is not finite becomes None."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return plain


def bound_check(
    model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    closure: Callable[..., Any] | Sequence[Callable[[], Any]],
    radius: float,
    *,
    loss: Callable[..., Any] | Sequence[Callable[[], Any]] | None = None,
    batches: Iterable[Any] | None = None,
    probes: int = 4,
    directions: int = 4,
    moves: Moves | None = None,
    spacing: float | None = None,
    seed: int = 0,
) -> BoundCheck:
    """Compare the bounds of Theorems 4 and 5 with what the loss does.

    Along random signs, both ways; down and up the gradient of the batch; and along ``moves``, such
    as an optimizer's step. All moves are as long as ``radius sqrt(n)``. Takes ``1 + 2 probes``
    gradients a batch and ``2 + 2 directions + moves`` more, or as many losses if ``loss`` has
    them, and leaves nothing behind, also if a closure raises.

    Args:
        model: as for `ladder`.
        closure: as for `ladder`, and returns the loss.
        radius: of the probes, and of the moves as their root mean square.
        loss: as for `slices`, but ``along`` of a rise is NaN.
        batches: as for `ladder`.
        probes: random directions from which h, rho and kappa are measured.
        directions: random directions to move along.
        moves: other moves by kind, each a displacement by parameter name; only their direction
            counts, and a parameter that is not named stays.
        spacing: of the arithmetic, as for `choose_radii`; None: of the loss' type.
        seed: of the directions.

    >>> layer = nn.Linear(3, 1, bias=False).double()
    >>> def closure():
    ...     loss = layer(torch.eye(3, dtype=torch.float64)).square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> found = bound_check(layer, closure, 0.01).kinds["random"]
    >>> round(found["joint"].ratio.value, 6)  # a quadratic, h = 1 and no glass
    1.0
    """
    moves = moves or {}
    check_above("radius", radius)
    check_whole("probes", probes, 1)
    check_whole("directions", directions, 1)
    check_whole("seed", seed, 0)
    for kind in ("random", "gradient"):
        if kind in moves:
            raise ValueError(f"moves has {kind!r}, which is measured anyway: give it another name")
    subject = Subject(model, float(radius))
    others = {k: move_by_site(subject.sites, move, f"moves[{k!r}]") for k, move in moves.items()}
    count = probes + directions
    found = []
    for j, (on_batch, alone) in enumerate(with_losses(closure, loss, batches)):
        draws = [Draw(seed ^ STREAM, (1 << 61) + j * count + k) for k in range(count)]
        of_batch = LossOf(on_batch, alone, spacing)
        with excursion(subject.unique, subject.module, of_batch, 1.0) as visit, torch.no_grad():
            found.append(_on_batch(visit, draws, probes, others, radius, of_batch, j))
    return _summary(found, radius, len(found) * (1 + 2 * probes), alone=loss is not None)


def _on_batch(
    visit: Visit,
    draws: Sequence[Draw],
    probes: int,
    others: Mapping[str, Mapping[Site, Tensor]],
    radius: float,
    loss: LossOf,
    batch: int,
) -> tuple[list[Rise], float, float]:
    """Go along every move and come back with what it cost; and sums for kappa.

    What is measured, three copies of the parameters, is gone before the next batch has its own.
    """
    here = measured_on(visit, draws[:probes], center_of(visit, loss))
    gradient = dict(zip(visit.packs, here.grads, strict=True))
    listed: list[tuple[str, float, Move]] = []
    for draw in draws[probes:]:
        for side in (1.0, -1.0):
            listed.append(("random", side, partial(Pack.signs, draw=draw)))
    for side in (-1.0, 1.0):
        listed.append(("gradient", side, gradient.__getitem__))
    for kind, move in others.items():
        listed.append((kind, 1.0, given_move(move)))
    costs = [
        rise_at(visit, here, _place(visit, move, side * radius), loss, kind, batch)
        for kind, side, move in listed
    ]
    return costs, here.along, here.roots


def _place(visit: Visit, move: Move, length: float) -> Callable[[Pack], Tensor]:
    """Where a move of this root mean square ends, by pack: nothing is kept."""
    (squares,) = total_of([pack.totals(move(pack).square()) for pack in visit.packs])
    count = sum(site.param.numel() for pack in visit.packs for site in pack.sites)
    scale = length * math.sqrt(count / squares) if squares > 0 else 0.0
    return lambda pack: visit.home(pack) + scale * move(pack)


# ---- what it amounts to ------------------------------------------------------------------------


def _summary(
    found: Sequence[tuple[list[Rise], float, float]], radius: float, probing: int, *, alone: bool
) -> BoundCheck:
    """All batches together: rises, and sums for kappa, along moves and of roots.

    ``probing`` gradients were taken to predict, and one for every rise, or a loss if ``alone``.
    """
    along = sum(along for _, along, _ in found) / len(found)
    roots = sum(roots for *_, roots in found) / len(found)
    kappa = math.sqrt(along) / roots if roots else 0.0
    # Kappa is that of all batches: one batch has few probes.
    tables = [
        [replace(r, glass={**r.glass, "coherent": kappa * r.glass["separable"]}) for r in table]
        for table, *_ in found
    ]
    listed = tuple(rise for table in tables for rise in table)
    return BoundCheck(
        radius=radius,
        batches=len(tables),
        gradients=probing if alone else probing + len(listed),
        losses=len(listed) if alone else 0,
        coherence=kappa if roots else math.nan,
        walk={form: _walk(tables, form) for form in FORMS},
        kinds={
            kind: {form: _calibration(tables, kind, form) for form in FORMS}
            for kind in dict.fromkeys(rise.kind for rise in listed)
        },
        rises=listed,
    )


def _calibration(tables: Sequence[Sequence[Rise]], kind: str, form: str) -> Calibration:
    mine = [[rise for rise in table if rise.kind == kind] for table in tables]
    told = [rise for table in mine for rise in table if rise.told]
    count = sum(map(len, mine))
    over = sum(rise.measured > rise.predicted(form) for rise in told)
    pairs = [[(r.measured, r.predicted(form)) for r in table] for table in mine]
    return Calibration(
        violations=over / len(told) if told else math.nan,
        ratio=_ratio(pairs) if told else Estimate(*[math.nan] * 5),
        moves=len(told),
        rounded=count - len(told),
    )


def _walk(tables: Sequence[Sequence[Rise]], form: str) -> Estimate:
    """The excursion of a random walk from the two sides of a move: what is odd in d.

    The Hessian is even and cancels. Each side's walk has its own kinks, so that half of the
    difference is smaller by the root of 2 than one side's excursion.
    """
    rows = []
    for table in tables:
        sides = [rise for rise in table if rise.kind == "random"]
        pairs = zip(sides[::2], sides[1::2], strict=True)
        rows.append(
            [(abs(a.measured - b.measured) / math.sqrt(2), a.glass[form]) for a, b in pairs]
        )
    return _ratio(rows)


def _ratio(rows: Sequence[Sequence[tuple[float, float]]]) -> Estimate:
    """Mean over mean, with an interval over moves and batches, of [batches][moves] pairs."""
    table = torch.tensor(rows, dtype=torch.float64, device="cpu")
    return estimates(table, lambda mean: mean[..., :1] / mean[..., 1:])[0]
