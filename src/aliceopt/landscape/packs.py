"""Parameters in one row: what is done to all of them is done at once.

A network has many small parameters, and on a device an operation on a small tensor costs as much as
on a large one. So the coordinates of a `Pack` of parameters lie one after the other in tensors of
one dimension, in which the formulas of all instruments are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from ..sharding import local, sum_over_shards
from ..signs import joined_signs, joined_words, sign_key
from ..site import Draw, Site, signs_of, state_dtype

__all__ = ["Pack", "by_site", "fetched", "packs_of", "parts_of", "total_of"]

LARGE = 1 << 23
"""Coordinates of a pack; only a parameter by itself may have more."""


class Pack:
    """Some parameters of one type on one device; or one that is sharded, the part that is here.

    ``dtype`` is that of the state, ``sum_dtype`` what sums are taken in: float64 where the device
    has it.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        first = local(sites[0].param)
        self.sites = list(sites)
        self.sharded = sites[0].sharded
        self.param_dtype, self.device = first.dtype, first.device
        self.dtype = state_dtype(first)
        has_float64 = first.device.type in ("cpu", "cuda")
        self.sum_dtype = torch.float64 if has_float64 else torch.float32
        self.shapes = [first.shape] if self.sharded else [site.param.shape for site in sites]
        self.sizes = [shape.numel() for shape in self.shapes]
        self._words: tuple[Draw, Tensor] | None = None

    def joined(
        self, tensors: Iterable[Tensor | None], device: torch.device | None = None
    ) -> Tensor:
        """Tensors of the parameters' shapes in one row, a copy; one that is not given is zero."""
        parts = (
            torch.zeros(size, dtype=self.param_dtype, device=device or self.device)
            if tensor is None
            else tensor.reshape(-1)
            for tensor, size in zip(tensors, self.sizes, strict=True)
        )
        return torch.cat(list(parts))

    def parts(self, row: Tensor) -> list[Tensor]:
        """What belongs to each parameter, in its shape; no copy."""
        pieces = zip(row.split(self.sizes), self.shapes, strict=True)
        return [piece.view(shape) for piece, shape in pieces]

    def params(self) -> list[Tensor]:
        """The parameters, as this process holds them."""
        return [local(site.param) if self.sharded else site.param for site in self.sites]

    @torch.no_grad()
    def position(self) -> Tensor:
        """Where the parameters are, in state precision."""
        return self.joined(self.params()).to(self.dtype)

    def gradient(self) -> Tensor:
        """A copy of the gradients at hand, as precise as they are."""
        grads = (site.param.grad for site in self.sites)
        return self.joined(local(g) if self.sharded and g is not None else g for g in grads)

    def move_(self, there: Tensor) -> None:
        """Put the parameters there."""
        torch._foreach_copy_(self.params(), self.parts(there.to(self.param_dtype)))

    def signs(self, draw: Draw) -> Tensor:
        """The random directions of a draw, in state precision; one bit a coordinate is kept."""
        if self.sharded:
            return signs_of(self.sites[0], draw).reshape(-1)
        if self._words is None or self._words[0] != draw:
            keys = [sign_key(draw.seed, draw.step, site.index) for site in self.sites]
            self._words = draw, joined_words(keys, self.sizes, self.device)
        return joined_signs(self._words[1], self.sizes, self.dtype)

    def sums(self, row: Tensor) -> Tensor:
        """The sum over each parameter, all shards: [parameters]."""
        pieces = row.split(self.sizes)
        return self._over_shards(torch.stack([p.sum(dtype=self.sum_dtype) for p in pieces]))

    def squares(self, row: Tensor) -> Tensor:
        """The sum of squares over each parameter."""
        return self.sums(row.to(self.sum_dtype).square())

    def totals(self, *terms: Tensor) -> Tensor:
        """The sums of some terms over all parameters together: [terms]."""
        return self._over_shards(torch.stack([t.sum(dtype=self.sum_dtype) for t in terms]))

    def _over_shards(self, sums: Tensor) -> Tensor:
        return sum_over_shards(sums, self.sites[0].param)


def packs_of(sites: Iterable[Site]) -> list[Pack]:
    """As few packs as may be."""
    found: list[list[Site]] = []
    filling: dict[tuple[torch.device, torch.dtype], tuple[list[Site], int]] = {}
    for site in sites:
        kind, size = (site.param.device, site.param.dtype), site.param.numel()
        members, count = filling.get(kind, ([], LARGE + 1))  # full, even for an empty parameter
        if site.sharded or count + size > LARGE:
            members, count = [], 0
            found.append(members)
        members.append(site)
        if not site.sharded:
            filling[kind] = members, count + size
    return [Pack(members) for members in found]


def parts_of(packs: Sequence[Pack], rows: Iterable[Tensor]) -> dict[Site, Tensor]:
    """What belongs to each parameter, in its shape, of a row for every pack; no copy."""
    pairs = zip(packs, rows, strict=True)
    return dict(chain.from_iterable(zip(p.sites, p.parts(row), strict=True) for p, row in pairs))


def by_site(packs: Sequence[Pack], tables: Iterable[Tensor]) -> dict[Site, Tensor]:
    """Of tables [..., parameters], one a pack: each parameter's, on the CPU in float64."""
    columns = chain.from_iterable(table.unbind(-1) for table in tables)
    sites = (site for pack in packs for site in pack.sites)
    return dict(zip(sites, fetched(list(columns)), strict=True))


def total_of(rows: Sequence[Tensor]) -> list[float]:
    """The sum of all packs' rows, in one transfer a device."""
    total: list[float] = torch.stack(fetched(rows)).sum(0).tolist()
    return total


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same on the CPU in float64, one transfer a device."""
    by_device: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(i)
    fetched: dict[int, Tensor] = {}
    for indices in by_device.values():
        there = torch.stack([tensors[i] for i in indices]).cpu().double()
        fetched.update(zip(indices, there.unbind(), strict=True))
    return [fetched[i] for i in range(len(tensors))]
