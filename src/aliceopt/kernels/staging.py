"""Small tensors laid end to end in spare memory, so that one call serves many of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..site import Site

__all__ = ["Stage", "is_small", "packs"]

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

    @staticmethod
    def pieces(row: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
        """A row divided as its parts are."""
        return list(row[:-PADDING].split([part.numel() for part in parts]))

    @classmethod
    def scatter(cls, row: Tensor, parts: Sequence[Tensor]) -> None:
        """Copy a row back to where its parts came from."""
        torch._foreach_copy_(list(parts), cls.pieces(row, parts))


def packs(sites: Sequence[Site]) -> Iterator[list[int]]:
    """Indices of sites that share a call: a large one alone, small ones of one dtype together."""
    rows: dict[torch.dtype, list[int]] = {}
    counts: dict[torch.dtype, int] = {}
    for i, site in enumerate(sites):
        if not is_small(site.numel):
            yield [i]
            continue
        dtype = site.param.dtype
        row, count = rows.get(dtype, []), counts.get(dtype, 0)
        if row and count + site.numel > PACK:
            yield row
            row, count = [], 0
        row.append(i)
        rows[dtype], counts[dtype] = row, count + site.numel
    yield from rows.values()
