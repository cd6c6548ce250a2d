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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..sharding import is_distributed, local, sum_over_shards
from ..site import Draw, Site, signs_of, state_dtype
from ..theory.glass_bound import GLASS_LOSS_FACTOR
from ..topography import Gradients, glass_sample, hess_sample
from .excursion import Visit, excursion, named_parameters, sites_of
from .ladder import closures_of
from .power_law import STREAM, check_whole, fetched, kept, sum_dtype, without_nan
from .spread import Estimate, estimates

__all__ = ["FORMS", "BoundCheck", "Calibration", "Rise", "bound_check"]

FORMS = ("separable", "joint", "coherent")
"""Of the glass term."""

_ROUNDING = 16  # rises below so many spacings of the loss are rounding

Moves = Mapping[str, Mapping[str, Tensor]]


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


@dataclass(frozen=True)
class Calibration:
    """All moves of one kind against one form of the bound.

    ``violations`` is the share of moves whose rise exceeds the bound, ``ratio`` the mean rise over
    the mean bound: 1 if the bound is right on average, below 1 if it is too large. Moves whose
    rise is rounding are left out: ``moves`` counts the rest, ``rounded`` those.
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
    predicted, by form, along random moves.
    """

    radius: float
    batches: int
    gradients: int
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
    batches: Iterable[Any] | None = None,
    probes: int = 4,
    directions: int = 4,
    moves: Moves | None = None,
    seed: int = 0,
) -> BoundCheck:
    """Compare the bounds of Theorems 4 and 5 with what the loss does.

    Along random signs, both ways; down and up the gradient of the batch; and along ``moves``, such
    as an optimizer's step. All moves are as long as ``radius sqrt(n)``. Takes
    ``3 + 2 probes + 2 directions + moves`` gradients a batch, and leaves nothing behind, also if a
    closure raises.

    Args:
        model: as for `ladder`.
        closure: as for `ladder`, and returns the loss.
        radius: of the probes, and of the moves as their root mean square.
        batches: as for `ladder`.
        probes: random directions from which h, rho and kappa are measured.
        directions: random directions to move along.
        moves: other moves by kind, each a displacement by parameter name; only their direction
            counts, and a parameter that is not named stays.
        seed: of the directions.

    >>> layer = nn.Linear(3, 1, bias=False).double()
    >>> def closure():
    ...     loss = layer(torch.eye(3, dtype=torch.float64)).square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> found = bound_check(layer, closure, 0.01)
    >>> round(found.kinds["random"]["joint"].ratio.value, 6)  # a quadratic, h = 1 and no glass
    1.0
    """
    _check(radius, probes, directions, seed)
    named, module = named_parameters(model)
    sites = sites_of(named, module, float(radius), None)
    others = _others(sites, moves or {})
    unique = list(dict.fromkeys(sites.values()))
    tables: list[list[Rise]] = []
    measured: list[_Measured] = []
    for j, on_batch in enumerate(closures_of(closure, batches)):
        draws = [
            Draw(seed ^ STREAM, (1 << 61) + j * (probes + directions) + k)
            for k in range(probes + directions)
        ]
        loss = _Loss(on_batch)
        with excursion(unique, module, loss, 1.0) as (visit, reach), torch.no_grad():
            here = _measure(unique, visit, reach, draws[:probes], loss)
            measured.append(here)
            tables.append(_rises(unique, visit, here, draws[probes:], others, radius, loss, j))
    each = 3 + 2 * probes + 2 * directions + len(others)
    return _summary(tables, measured, radius, len(tables) * each)


def _check(radius: Any, probes: Any, directions: Any, seed: Any) -> None:
    number = isinstance(radius, int | float) and not isinstance(radius, bool)
    if not number or not math.isfinite(radius) or radius <= 0:
        raise ValueError(f"radius must be a number in (0, inf), got {radius!r}")
    check_whole("probes", probes, 1)
    check_whole("directions", directions, 1)
    check_whole("seed", seed, 0)


def _others(sites: Mapping[str, Site], moves: Moves) -> dict[str, dict[Site, Tensor]]:
    """Given moves by site, local and in state precision."""
    found: dict[str, dict[Site, Tensor]] = {}
    for kind, move in moves.items():
        if kind in ("random", "gradient"):
            raise ValueError(f"moves has {kind!r}, which is measured anyway: give it another name")
        found[kind] = {}
        for name, value in move.items():
            if name not in sites:
                raise ValueError(f"moves[{kind!r}] has {name!r}, which is no trainable parameter")
            param = sites[name].param
            if value.shape != param.shape:
                raise ValueError(
                    f"moves[{kind!r}][{name!r}] must have the parameter's shape "
                    f"{tuple(param.shape)}, got {tuple(value.shape)}"
                )
            found[kind][sites[name]] = local(value).to(param.device, state_dtype(param))
    return found


class _Loss:
    """A closure that remembers the loss, the mean of all processes'."""

    def __init__(self, closure: Callable[[], Any]) -> None:
        self.closure = closure
        self.last = math.nan
        self.spacing = 0.0

    def __call__(self) -> None:
        loss = self.closure()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(
                f"the closure must return the loss, a tensor with one number, got {loss!r}"
            )
        value = loss.detach().double().reshape(())
        self.spacing = torch.finfo(loss.dtype).eps
        if is_distributed():
            torch.distributed.all_reduce(value)
            value /= torch.distributed.get_world_size()
        self.last = value.item()


class _Measured(NamedTuple):
    """Of one batch: loss, gradient, h and rho by site, and sums for kappa."""

    loss: float
    home: list[Tensor]
    grads: list[Tensor]
    hess: list[Tensor]
    density: list[Tensor]
    along: float
    roots: float


def _measure(
    sites: Sequence[Site],
    visit: Visit,
    reach: Callable[[Site], Tensor],
    draws: Sequence[Draw],
    loss: _Loss,
) -> _Measured:
    """Means over probes of h, rho and rho_t; the last two give kappa."""
    grads = [_taken(site, grad) for site, grad in zip(sites, visit(draws[0], 0.0), strict=True)]
    here = loss.last
    home = [_here(site) for site in sites]
    hess, density = ([torch.zeros_like(g) for g in grads] for _ in range(2))
    along = 0.0
    for draw in draws:
        plus = [kept(grad) for grad in visit(draw, 1.0)]
        minus = visit(draw, -1.0)
        slopes = []
        for i, site in enumerate(sites):
            signs, far = signs_of(site, draw), reach(site)
            sides = (_taken(site, plus[i]), _taken(site, minus[i]))
            found = Gradients(grads[i], *sides, far.where(far > 0, 1.0), signs)
            moved = (far > 0).to(far.dtype)
            hess[i] += moved * hess_sample(found, "signed") / len(draws)
            density[i] += moved * glass_sample(found) / len(draws)
            bent = (sides[0] + sides[1]) / 2 - grads[i]
            slopes.append(_sums(site, bent * signs))
        (slope,) = _total(sites, slopes)
        along += 2 / sites[0].radius * slope**2 / len(draws)
    rows = [_sums(site, rho.sqrt()) for site, rho in zip(sites, density, strict=True)]
    return _Measured(here, home, grads, hess, density, along, *_total(sites, rows))


def _rises(
    sites: Sequence[Site],
    visit: Visit,
    here: _Measured,
    draws: Sequence[Draw],
    others: Mapping[str, Mapping[Site, Tensor]],
    radius: float,
    loss: _Loss,
    batch: int,
) -> list[Rise]:
    """Go along every move and come back with what it cost."""
    listed: list[tuple[str, float, Callable[[int], Tensor | None]]] = []
    for draw in draws:
        for side in (1.0, -1.0):
            listed.append(("random", side, lambda i, d=draw: signs_of(sites[i], d)))  # type: ignore[misc]
    for side in (-1.0, 1.0):
        listed.append(("gradient", side, lambda i: here.grads[i]))
    for kind, move in others.items():
        listed.append((kind, 1.0, lambda i, m=move: m.get(sites[i])))  # type: ignore[misc]
    try:
        return [
            _rise(sites, visit, here, kind, _places(sites, here, move, side * radius), loss, batch)
            for kind, side, move in listed
        ]
    finally:
        for site in sites:
            site.state.pop("probe_center", None)


def _places(
    sites: Sequence[Site],
    here: _Measured,
    move: Callable[[int], Tensor | None],
    length: float,
) -> list[Tensor]:
    """Where a move of this root mean square ends, as the parameters can hold it."""
    (squares,) = _total(
        sites,
        [
            _sums(site, torch.zeros(()) if (u := move(i)) is None else u.square())
            for i, site in enumerate(sites)
        ],
    )
    count = sum(site.param.numel() for site in sites)
    scale = length * math.sqrt(count / squares) if squares > 0 else 0.0
    places = []
    for i, (site, home) in enumerate(zip(sites, here.home, strict=True)):
        u = move(i)
        there = home if u is None else home + scale * u.to(home.dtype)
        places.append(there.to(site.param.dtype).to(home.dtype))
    return places


def _rise(
    sites: Sequence[Site],
    visit: Visit,
    here: _Measured,
    kind: str,
    places: Sequence[Tensor],
    loss: _Loss,
    batch: int,
) -> Rise:
    for site, place in zip(sites, places, strict=True):
        site.state["probe_center"] = place
    grads = visit(Draw(0, 0), 0.0)
    rows = []
    for i, site in enumerate(sites):
        d, rho = places[i] - here.home[i], here.density[i]
        size = d.abs()
        terms = (
            here.grads[i] * d,
            (_taken(site, grads[i]) - here.grads[i]) * d / 2,
            here.hess[i] * d.square() / 2,
            rho.sqrt() * size * size.sqrt(),
            rho * size * size * size,
        )
        rows.append(_sums(site, *terms))
    first, along, hessian, separable, cubes = _total(sites, rows)
    glass = {
        "separable": GLASS_LOSS_FACTOR * separable,
        "joint": GLASS_LOSS_FACTOR * math.sqrt(cubes),
    }
    floor = _ROUNDING * loss.spacing * (abs(here.loss) + abs(first))
    rise = loss.last - here.loss - first
    return Rise(kind, batch, rise, first, hessian, along, glass, floor)


def _here(site: Site) -> Tensor:
    """Where the parameter stands, in state precision and memory of its own."""
    return local(site.param).to(state_dtype(site.param), copy=True)


def _taken(site: Site, grad: Tensor | None) -> Tensor:
    """A gradient in state precision and memory of its own; one that is not given is zero."""
    if grad is None:
        return torch.zeros_like(local(site.param), dtype=state_dtype(site.param))
    return grad.to(state_dtype(site.param), copy=True)


def _sums(site: Site, *terms: Tensor) -> Tensor:
    """Sums of some terms over this process's part of a parameter, on its device."""
    kind, device = sum_dtype(site), site.param.device
    return torch.stack([term.to(device, kind).sum() for term in terms])


def _total(sites: Sequence[Site], rows: Sequence[Tensor]) -> list[float]:
    """Over all parameters and shards, in one transfer a device."""
    whole = [sum_over_shards(row, site.param) for site, row in zip(sites, rows, strict=True)]
    total: list[float] = torch.stack(fetched(whole)).sum(0).tolist()
    return total


# ---- what it amounts to ------------------------------------------------------------------------


def _summary(
    tables: Sequence[Sequence[Rise]], measured: Sequence[_Measured], radius: float, gradients: int
) -> BoundCheck:
    roots = sum(found.roots for found in measured) / len(measured)
    along = sum(found.along for found in measured) / len(measured)
    kappa = math.sqrt(along) / roots if roots else 0.0
    tables = [[_with_coherent(rise, kappa) for rise in table] for table in tables]
    rises = tuple(rise for table in tables for rise in table)
    return BoundCheck(
        radius=radius,
        batches=len(tables),
        gradients=gradients,
        coherence=kappa if roots else math.nan,
        walk={form: _walk(tables, form) for form in FORMS},
        kinds={
            kind: {form: _calibration(tables, kind, form) for form in FORMS}
            for kind in dict.fromkeys(rise.kind for rise in rises)
        },
        rises=rises,
    )


def _with_coherent(rise: Rise, kappa: float) -> Rise:
    """With the third form, for which kappa is that of all batches: one batch has few probes."""
    return replace(rise, glass={**rise.glass, "coherent": kappa * rise.glass["separable"]})


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
    table = torch.tensor(rows, dtype=torch.float64)
    return estimates(table, lambda mean: mean[..., :1] / mean[..., 1:])[0]
