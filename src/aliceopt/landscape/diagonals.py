"""Curvature by coordinate, summed by block: glass density, Hessian diagonal, a Hessian's rows.

Every sample takes one random sign direction on one batch, see `samples` for the terms. Averages
over samples are kept for every coordinate, and sums over blocks with their errors, which are far
smaller: coordinates share a sample's luck, but there are many.

Where a model is small and can be differentiated twice, `exact_diagonals` has the truth at a point.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..site import Draw, Site
from .excursion import Visit, excursion
from .packs import Pack, by_site, parts_of
from .samples import checked_terms, samples
from .spread import Estimate, estimates
from .subject import STREAM, Blocks, Subject, check_above, check_whole, closures_of, without_nan

__all__ = ["TERMS", "Diagonals", "diagonals", "exact_diagonals"]

TERMS = ("glass", "signed", "free")
"""Glass density; Hessian diagonal; squares of the Hessian's rows, to which kinks add nothing."""

MOST = 20_000
"""Parameters of a model whose exact diagonal is computed."""


@dataclass(frozen=True)
class Diagonals:
    """Sums over blocks by term, each an `Estimate`; averages and errors of every coordinate.

    ``means[term][name]`` has the parameter's shape, and ``errors[term][name]`` its standard error
    over samples.
    """

    radius: float
    directions: int
    batches: int
    gradients: int
    total: dict[str, Estimate]
    blocks: dict[str, dict[str, Estimate]]
    means: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    errors: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers with relative errors, no tensors; what is not finite becomes None."""

        def told(sums: Mapping[str, Estimate]) -> dict[str, Any]:
            return {
                term: {**asdict(sum_), "relative_error": sum_.relative_error}
                for term, sum_ in sums.items()
            }

        plain: dict[str, Any] = without_nan(
            {
                "radius": self.radius,
                "directions": self.directions,
                "batches": self.batches,
                "gradients": self.gradients,
                "total": told(self.total),
                "blocks": {name: told(sums) for name, sums in self.blocks.items()},
            }
        )
        return plain


def diagonals(
    model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    closure: Callable[..., Any] | Sequence[Callable[[], Any]],
    radius: float,
    *,
    batches: Iterable[Any] | None = None,
    directions: int = 4,
    terms: Sequence[str] = TERMS,
    blocks: Blocks = None,
    coordinates: bool = True,
    seed: int = 0,
) -> Diagonals:
    """Measure curvature by coordinate, from ``1 + 2 directions`` gradients a batch.

    Nothing is left behind, also if a closure raises.

    Args:
        model: as for `ladder`.
        closure: as for `ladder`.
        radius: of the probes.
        batches: as for `ladder`.
        directions: random sign directions a batch.
        terms: some of `TERMS`.
        blocks: as for `power_law`.
        coordinates: keep averages of every coordinate; False saves memory.
        seed: of the directions.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> def closure():
    ...     (layer(torch.eye(3)).square().sum() / 2).backward()
    >>> found = diagonals(layer, closure, 0.01).total
    >>> round(found["signed"].value, 3)  # the trace of the identity
    3.0
    """
    check_above("radius", radius)
    check_whole("directions", directions, 1)
    check_whole("seed", seed, 0)
    wanted = checked_terms(terms, TERMS)
    subject = Subject(model, float(radius))
    members, unique = subject.blocks(blocks), subject.unique
    averages = _Averages() if coordinates else None
    packs: Sequence[Pack] = ()
    tables = []
    for j, on_batch in enumerate(closures_of(closure, batches)):
        draws = [Draw(seed ^ STREAM, (1 << 60) + j * directions + k) for k in range(directions)]
        with excursion(unique, subject.module, on_batch, 1.0) as visit, torch.no_grad():
            packs = visit.packs
            tables.append(by_site(packs, _sums(visit, draws, wanted, averages)))
    rows = {site: torch.stack([table[site] for table in tables]) for site in unique}
    means, errors = averages.by_name(wanted, packs, subject.sites) if averages else ({}, {})
    return Diagonals(
        radius=float(radius),
        directions=directions,
        batches=len(tables),
        gradients=len(tables) * (1 + 2 * directions),
        total=_read(unique, rows, wanted),
        blocks={block: _read(there, rows, wanted) for block, there in members.items()},
        means=means,
        errors=errors,
    )


class _Averages:
    """Means and sums of squared deviations of every coordinate, by Welford's way.

    By term and number of the pack: packs are cut alike for every batch.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.means: dict[tuple[str, int], Tensor] = {}
        self.spreads: dict[tuple[str, int], Tensor] = {}

    def add(self, term: str, number: int, sample: Tensor) -> None:
        """One more sample of a pack."""
        key = term, number
        if key not in self.means:
            self.means[key], self.spreads[key] = (torch.zeros_like(sample) for _ in range(2))
        self.counts[key] += 1
        before = sample - self.means[key]
        self.means[key] += before / self.counts[key]
        self.spreads[key] += before * (sample - self.means[key])

    def by_name(
        self, terms: Sequence[str], packs: Sequence[Pack], sites: Mapping[str, Site]
    ) -> list[dict[str, dict[str, Tensor]]]:
        """Means and standard errors, in memory of their own: each can be saved and dropped."""
        for key, spread in self.spreads.items():
            spread.div_(self.counts[key] * (self.counts[key] - 1) or math.nan).sqrt_()
        found = []
        for kept in (self.means, self.spreads):
            named: dict[str, dict[str, Tensor]] = {}
            for term in terms:
                parts = parts_of(packs, [kept[term, i] for i in range(len(packs))])
                own = {site: part.clone() for site, part in parts.items()}
                named[term] = {name: own[site] for name, site in sites.items()}
            found.append(named)
        return found


def _sums(
    visit: Visit, draws: Sequence[Draw], terms: Sequence[str], averages: _Averages | None
) -> list[Tensor]:
    """For each pack, on its device: [directions, terms, sites] sums of samples on one batch."""
    visit(draws[0], 0.0)
    center = [pack.gradient().to(pack.dtype) for pack in visit.packs]

    def sampled(draw: Draw) -> list[Tensor]:
        visit(draw, 1.0)
        kept = visit.gradients()
        visit(draw, -1.0)
        row = []
        for i, pack in enumerate(visit.packs):
            plus, minus = (side.to(pack.dtype) for side in (kept[i], pack.gradient()))
            signs, far = partial(pack.signs, draw), visit.reach(pack)
            found = samples(terms, signs, far, plus, minus, center[i : i + 1])
            row.append(torch.stack([pack.sums(found[term]) for term in terms]))
            if averages is not None:
                for term in terms:
                    averages.add(term, i, found[term])
        return row

    return [torch.stack(row) for row in zip(*map(sampled, draws), strict=True)]


def _read(
    sites: Sequence[Site], rows: Mapping[Site, Tensor], terms: Sequence[str]
) -> dict[str, Estimate]:
    table = torch.stack([rows[site] for site in sites]).sum(0)
    return dict(zip(terms, estimates(table, lambda mean: mean), strict=True))


# ---- the truth at a point ----------------------------------------------------------------------


def exact_diagonals(
    model: nn.Module,
    loss: Callable[..., Tensor],
    *,
    batches: Iterable[Any] | None = None,
    blocks: Blocks = None,
    rows: int = 256,
) -> dict[str, dict[str, float]]:
    """Sums over blocks of the exact Hessian: ``signed``, its diagonal; ``free``, its squares.

    By differentiating twice, a row of the Hessian a parameter: for models of up to `MOST`
    parameters whose operations allow it. Averaged over batches. Kinks do not show in it. Nothing
    is left behind.

    Args:
        model: the module.
        loss: of a batch, or of nothing where there are no batches; no backward.
        batches: what to call it with.
        blocks: as for `power_law`.
        rows: of the Hessian at once.
    """
    check_whole("rows", rows, 1)
    subject = Subject(model, 1.0)
    members, unique = subject.blocks(blocks), subject.unique
    size = sum(site.param.numel() for site in unique)
    if size > MOST or any(site.sharded for site in unique):
        raise ValueError(
            f"an exact diagonal takes a row of the Hessian a parameter: up to {MOST:,} of them, "
            f"not sharded, got {size:,}"
        )
    sums: list[Tensor] = []
    for one in closures_of(loss, batches, "loss"):
        found: list[Tensor] = []

        def closure(one: Callable[[], Tensor] = one, found: list[Tensor] = found) -> None:
            found[:] = _hessian_sums(one(), [site.param for site in unique], rows)

        with excursion(unique, subject.module, closure, 1.0) as visit:
            visit(Draw(0, 0), 0.0)
        sums.append(torch.stack(found))
    mean = dict(zip(unique, torch.stack(sums).mean(0), strict=True))
    return {
        block: dict(
            zip(("signed", "free"), sum(mean[site] for site in there).tolist(), strict=True)
        )
        for block, there in members.items()
    }


def _hessian_sums(loss: Tensor, params: Sequence[Tensor], rows: int) -> list[Tensor]:
    """For every parameter: the sum of its diagonal, and of squares of its rows; [2] on the CPU."""
    grads = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)
    if any(grad is not None and grad.layout != torch.strided for grad in grads):
        raise RuntimeError(
            "an exact diagonal needs dense gradients, got sparse ones: use sparse=False in the "
            "embedding"
        )
    found = []
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        total = torch.zeros(2, dtype=torch.float64, device="cpu")
        found.append(total)
        if grad is None or not grad.requires_grad:
            continue  # not used, or the same gradient everywhere: no curvature
        flat = grad.reshape(-1)
        for start in range(0, param.numel(), rows):
            ends = range(start, min(start + rows, param.numel()))
            chosen = torch.zeros(len(ends), len(flat), dtype=flat.dtype, device=flat.device)
            chosen[range(len(ends)), list(ends)] = 1
            parts = torch.autograd.grad(
                flat, params, chosen, retain_graph=True, is_grads_batched=True, allow_unused=True
            )
            if (own := parts[i]) is not None:
                own = own.reshape(len(ends), -1)
                total[0] += own[range(len(ends)), list(ends)].double().sum().cpu()
            total[1] += sum(
                part.double().square().sum().cpu() for part in parts if part is not None
            )
    return found
