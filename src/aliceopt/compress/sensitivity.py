"""How the loss minds a move of each weight, over a distance and not at a point.

Removing a weight moves it by its whole size, and many go at once. So all weights are displaced
together, by ``lambda t`` with random signs t, and the gradient is compared between the two sides::

    x = (g(w + lambda t) - g(w - lambda t)) / (2 lambda)          H t, averaged over the way

What is averaged over batches, each with signs of its own:

========== ================================== =================================================
rms        ``x^2``                            square of the size of a row of the Hessian
abs        ``|x|``                            its size, by the mean
signed     ``t x``                            the diagonal, unbiased
free       ``(g+ - g0)(g0 - g-)/lambda^2``    a row's square, to which single kinks add nothing
glass      ``(2/lambda)((g+ + g-)/2 - g0)^2`` density of gradient jumps
gradient   ``g0``                             the first-order term
fisher     ``g0^2``                           of batch means
========== ================================== =================================================

The first three do without the gradient at the center.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..landscape.excursion import Visit, excursion, sites_of
from ..landscape.packs import Pack, by_site
from ..landscape.samples import checked_terms, samples
from ..sharding import as_part_of, whole
from ..site import Draw, Site
from .averages import CENTER, SIDES, TERMS, Key, Sensitivity
from .resuming import own_path, same_everywhere, save, started
from .weights import weights_of

__all__ = ["default_radius", "sensitivity"]

_STREAM = 0x636D7072 << 32  # other signs than an optimizer of the same seed


def default_radius(
    model: nn.Module, names: Iterable[str] | None = None, *, sparsity: float = 0.8
) -> float:
    """As far as weights move, root mean square over all, when the smaller ones are removed.

    ``sparsity`` is the share that is to be removed.

    >>> layer = nn.Linear(4, 1, bias=False)
    >>> layer.weight.data = torch.tensor([[1.0, -1.0, 5.0, 7.0]])
    >>> round(default_radius(layer, sparsity=0.5), 4)  # sqrt((1 + 1) / 4)
    0.7071
    """
    if not 0 < sparsity < 1:
        raise ValueError(f"sparsity must be a number in (0, 1), got {sparsity!r}")
    parts = []
    for name, weight in weights_of(model, names).items():
        parts.append(whole(weight.values()).abs().float().flatten())
        if not parts[-1].isfinite().all():
            raise ValueError(f"the weights {name!r} are not finite")
    sizes = torch.cat(parts)
    removed = sizes.sort().values[: round(sparsity * len(sizes))]
    radius = math.sqrt(removed.double().square().sum().item() / len(sizes))
    if radius == 0:
        raise ValueError("what would be removed is zero already: give the radius of the probes")
    return radius


def sensitivity(
    model: nn.Module,
    closure: Callable[[Any], Any],
    batches: Iterable[Any],
    radius: float | Sequence[float] | None = None,
    *,
    terms: Sequence[str] = ("rms",),
    names: Iterable[str] | None = None,
    errors: bool = False,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    every: int = 16,
    progress: Callable[[int], Any] | None = None,
) -> Sensitivity:
    """Measure the sensitivity of a model's weights on some batches.

    Two gradients a batch and radius, and one at the center if a term needs it. Nothing is left
    behind: parameters, gradients, buffers and random state are as before, also if it fails. Put
    the model into eval mode first, unless the one in training mode is to be pruned. With several
    processes the closure must be collective, and every process must call.

    Args:
        model: whose linear and convolution layers are measured, see `weights_of`.
        closure: forward and backward on one batch, which it is given.
        batches: in the same order if the measurement is to be resumed.
        radius: of the probes, in units of the weights, or several; None: `default_radius`.
        terms: some of `TERMS`; each keeps one tensor as large as the weights, a radius.
        names: of the weights, all by default.
        errors: keep a second tensor a term, for `Sensitivity.error`.
        seed: of the signs; torch's random state is not used.
        checkpoint: a file, written at every ``every``-th batch and at the end; if it is there
            already, the measurement goes on from it, to the same bits. Of several processes each
            has its own, the rank behind its name.
        progress: called with the number of batches done.
    """
    if not callable(closure):
        raise ValueError(f"closure must be callable, got {type(closure).__name__}")
    weights = weights_of(model, names)
    radii = _checked_radii(default_radius(model, names) if radius is None else radius)
    tensors = {name: weight.parameter for name, weight in weights.items()}
    sites = sites_of(tensors, model, radii[0], None)
    path = None if checkpoint is None else own_path(Path(checkpoint))
    found = started(Sensitivity(radii, checked_terms(terms, TERMS), seed), path, sites, errors)
    rest = iter(batches)
    given = sum(1 for _ in islice(rest, found.batches))
    if given < found.batches or not same_everywhere(given):
        raise ValueError(
            f"{str(path)!r} has {found.batches} batches already, and not as many are given"
        )
    for batch in rest:
        unique = list(sites.values())
        looking = excursion(unique, model, partial(closure, batch), radii[-1] / radii[0])
        with looking as visit, torch.no_grad():
            _measure(found, sites, visit)
        found.batches += 1
        if path is not None and found.batches % every == 0:
            save(found, path)
        if progress is not None:
            progress(found.batches)
    if found.batches == 0:
        raise ValueError("there are no batches: nothing was measured")
    if path is not None:
        save(found, path)
    return _distributed(found, sites)


def _checked_radii(radius: Any) -> tuple[float, ...]:
    radii = tuple(radius) if isinstance(radius, Sequence) else (radius,)
    for value in radii:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise ValueError(f"radius must be a number in (0, inf), got {value!r}")
    if not radii or len(set(radii)) < len(radii):
        raise ValueError(f"radius must be different numbers in (0, inf), got {radius!r}")
    return tuple(sorted(float(value) for value in radii))


def _distributed(found: Sensitivity, sites: Mapping[str, Site]) -> Sensitivity:
    """The averages of sharded weights as the distributed tensors that they are parts of."""
    for kept in (*found.means.values(), *found.spreads.values()):
        kept.update({name: as_part_of(sites[name].param, kept[name]) for name in kept})
    return found


def _measure(found: Sensitivity, sites: Mapping[str, Site], visit: Visit) -> None:
    """One batch: its samples go into the averages."""
    draw, names = Draw(found.seed ^ _STREAM, found.batches), {s: n for n, s in sites.items()}

    def add(pack: Pack, term: str, radius: float, sample: Tensor) -> None:
        for site, part in zip(pack.sites, pack.parts(sample), strict=True):
            _add_one(found, (term, radius), names[site], part)

    def taken(multiple: float) -> list[Tensor]:
        visit(draw, multiple)
        found.gradients += 1
        return _taken(visit.packs, names, found.batches + 1)

    center: list[Tensor] = []
    if any(term in CENTER for term in found.terms):
        center = taken(0.0)
        for pack, g in zip(visit.packs, center, strict=True):
            for term, sample in (("gradient", g), ("fisher", g.square())):
                if term in found.terms:
                    add(pack, term, 0.0, sample)
    for radius in found.radii if any(term in SIDES for term in found.terms) else ():
        multiple = radius / found.radii[0]
        plus, minus = taken(multiple), taken(-multiple)
        for i, pack in enumerate(visit.packs):
            far, signs = multiple * visit.reach(pack), partial(pack.signs, draw)
            made = samples(found.terms, signs, far, plus[i], minus[i], center[i : i + 1])
            for term, sample in made.items():
                add(pack, term, radius, sample)


def _taken(packs: Sequence[Pack], names: Mapping[Site, str], number: int) -> list[Tensor]:
    """Gradients in state precision; one that is not given is zero."""
    if all(site.param.grad is None for site in names):
        raise ValueError(
            f"batch {number}: the closure left no gradient in any weight; it must call backward()"
        )
    taken = [pack.gradient().to(pack.dtype) for pack in packs]
    # Over shards, so that all processes say the same.
    sums = by_site(packs, [pack.sums(row) for pack, row in zip(packs, taken, strict=True)])
    for site, name in names.items():
        if not sums[site].isfinite():
            raise ValueError(f"batch {number}: the gradient of {name!r} is not finite")
    return taken


def _add_one(found: Sensitivity, key: Key, name: str, sample: Tensor) -> None:
    """Into the mean, and into the sum of squared deviations (Welford's way)."""
    mean = found.means[key][name]
    before = sample - mean
    mean.add_(before, alpha=1 / (found.batches + 1))
    if key in found.spreads:
        found.spreads[key][name].add_(before.mul_(sample - mean))
