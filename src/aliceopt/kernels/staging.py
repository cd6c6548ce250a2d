"""Small tensors laid end to end in spare memory, so that one call serves many of them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

from ..layout import local
from ..site import Site
from .base import Job
from .memory import conformed, flat

__all__ = ["Stage", "count_skipped", "dtypes_of", "is_small", "joined", "packs", "zeros"]

SMALL = 1 << 13
"""Tensors below this many elements are laid end to end."""
PACK = 1 << 18
"""Elements in such a row, at most, unless it is a single tensor."""
PADDING = 64
"""Zeros behind such a row."""


def is_small(numel: int) -> bool:
    """Whether a tensor of so many elements had better share a call with others."""
    return numel < SMALL


class Stage:
    """Spare memory in which small tensors stand end to end, with zeros behind them.

    These make every row longer than the numbers of a pass, and never as short as one element:
    torch compiles anew for such.
    """

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, torch.dtype], Tensor] = {}

    def room(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised memory, the same for the same name."""
        room = self._rooms.get((name, dtype))
        if room is None or room.numel() < count:
            room = self._rooms[name, dtype] = torch.empty(count, dtype=dtype, device="cpu")
        return room[:count]

    def gather(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """A row of these flat tensors, all of one dtype."""
        dtype = parts[0].dtype
        # Anything else would be rounded without a word.
        assert all(part.dtype == dtype for part in parts)
        row = self.room(name, sum(part.numel() for part in parts) + PADDING, dtype)
        torch.cat([*parts, torch.zeros(PADDING, dtype=dtype, device="cpu")], out=row)
        return row

    def row(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """The same without the zeros."""
        return self.gather(name, parts)[:-PADDING]

    @staticmethod
    def pieces(row: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
        """A row divided as its parts are."""
        return list(row[:-PADDING].split([part.numel() for part in parts]))

    @classmethod
    def scatter(cls, row: Tensor, parts: Sequence[Tensor]) -> None:
        """Copy a row, with zeros behind it or not, back to where its parts came from."""
        sizes = [part.numel() for part in parts]
        torch._foreach_copy_(list(parts), list(row[: sum(sizes)].split(sizes)))


def packs(sites: Sequence[Site], keys: Sequence[Hashable] | None = None) -> Iterator[list[int]]:
    """Indices of sites that share a call: a large one alone, small ones of one key together.

    Without keys that is the dtype.
    """
    rows: dict[Hashable, list[int]] = {}
    counts: dict[Hashable, int] = {}
    for i, site in enumerate(sites):
        if not is_small(site.numel):
            yield [i]
            continue
        key = site.param.dtype if keys is None else keys[i]
        row, count = rows.get(key, []), counts.get(key, 0)
        if row and count + site.numel > PACK:
            yield row
            row, count = [], 0
        row.append(i)
        rows[key], counts[key] = row, count + site.numel
    yield from rows.values()


def joined(stage: Stage, jobs: Sequence[Job], states: Sequence[dict[str, Tensor]]) -> Job:
    """Many small updates with the same numbers, options and dtypes as one, on copies.

    The parameter is not copied, since an update only writes it. ``states`` are the sites', flat.
    """
    sites, first = [job.site for job in jobs], jobs[0].site
    rows = {name: stage.row(name, [state[name] for state in states]) for name in states[0]}
    position = [flat(site.position) for site in sites if site.position is not None]
    sides: dict[str, list[Tensor | None]] = {"grad": [site.gradient for site in sites]}
    if jobs[0].measuring:
        sides |= {"plus": [site.plus for site in sites], "minus": [site.minus for site in sites]}
    grads = {name: stage.row(name, _laid_out(sites, side)) for name, side in sides.items()}
    total = sum(site.numel for site in sites)
    site = Site(
        param=stage.room("param", total, first.param.dtype),  # type: ignore[arg-type]
        index=first.index,
        group=first.group,
        state=rows,
        skipped=torch.zeros((), dtype=torch.int64, device="cpu"),
        device=first.device,
        numel=total,
        radius=first.radius,
        position=stage.row("mu", position),
        unscaled=grads["grad"],
        plus=grads.get("plus"),
        minus=grads.get("minus"),
    )
    return Job(site, jobs[0].rates, jobs[0].measuring)


def _laid_out(sites: Sequence[Site], grads: Sequence[Tensor | None]) -> list[Tensor]:
    """Flat, in the order of the parameters' memory; zeros where there is none."""
    return [
        flat(zeros(site) if grad is None else conformed(local(grad), local(site.param)))
        for site, grad in zip(sites, grads, strict=True)
    ]


def zeros(site: Site) -> Tensor:
    """In place of a side's gradient."""
    return torch.zeros_like(local(site.param), dtype=site.gradient.dtype)


def dtypes_of(job: Job) -> tuple[torch.dtype, ...]:
    """Of the parameter and its gradients."""
    param, grad = job.site.param.dtype, job.site.gradient.dtype
    if not job.measuring:
        return param, grad
    sides = (job.site.plus, job.site.minus)
    return (param, grad, *(grad if side is None else side.dtype for side in sides))


def count_skipped(job: Job) -> Tensor:
    """How many coordinates of a small tensor have a gradient that is not finite."""
    grads = [local(job.site.gradient)]
    if job.measuring:
        grads += [side for side in (job.site.plus, job.site.minus) if side is not None]
    finite = [torch.isfinite(grad) for grad in grads]
    return functools.reduce(torch.logical_and, finite).logical_not().sum()
