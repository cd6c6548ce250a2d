"""How launch tables and numbers reach the device: at once, never, or before each replay.

While a CUDA graph is being captured nothing may be copied from the host: the copy itself would be
recorded, and repeated from memory that is long gone. Nor may tables live in the graph's own
memory, which earlier operations of the graph overwrite. A `Recorder` therefore hands out pieces of
an arena allocated beforehand, of the size that a `Rehearsal` of the same step asked for; it fills
the tables when the capture is over, and refreshes the numbers before each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..site import Draw, Site
from ..topography import Rates

__all__ = ["Moment", "Recorder", "Rehearsal", "Rows", "Sender"]

_ALIGN = 16  # bytes


class Moment(NamedTuple):
    """What the numbers of a step depend on, besides the sites' radii.

    ``ahead`` has the next step's radius of every group, by its id, if this update shall write that
    step's probe points.
    """

    draw: Draw
    rates: Mapping[Site, Rates]
    ahead: Mapping[int, float] | None = None


class Rows(NamedTuple):
    """The numbers of a launch: one row for all ``sites`` that share them, made by ``fill``.

    ``fill`` asks one site a row, so that it can be asked again at a later step.
    """

    sites: Sequence[Sequence[Site]]
    fill: Callable[[Moment, Sequence[Site]], np.ndarray]

    @classmethod
    def by_rates(
        cls,
        sites: Sequence[Site],
        rates: Mapping[Site, Rates],
        fill: Callable[[Moment, Sequence[Site]], np.ndarray],
    ) -> tuple[Rows, list[int]]:
        """A row for every `Rates`, and each site's row."""
        sharing: dict[int, list[Site]] = {}
        for site in sites:
            sharing.setdefault(id(rates[site]), []).append(site)
        order = {key: i for i, key in enumerate(sharing)}
        return cls(list(sharing.values()), fill), [order[id(rates[site])] for site in sites]

    def made(self, moment: Moment) -> np.ndarray:
        """The numbers at this moment."""
        return self.fill(moment, [row[0] for row in self.sites])

    def fit(self, rates: Mapping[Site, Rates]) -> bool:
        """Whether sites that share a row still share their numbers.

        Steps outside the recording, in which some got no gradient, may have parted their counts.
        """
        return all(len({id(rates.get(site)) for site in row}) == 1 for row in self.sites)


class _PinnedRing:
    """Pinned memory for copies to the device, used in turn.

    A fresh pinned allocation can cost as much as a whole update; a slot is reused once the copy
    out of it, 64 copies ago, is over.
    """

    def __init__(self, slots: int = 64) -> None:
        self._slots: list[tuple[Tensor, np.ndarray, torch.cuda.Event] | None] = [None] * slots
        self._next = 0

    def copy_(self, target: Tensor, source: np.ndarray) -> None:
        """Copy a small array to the device without waiting for it."""
        slot, nbytes = self._slots[self._next], source.nbytes
        if slot is None or slot[1].nbytes < nbytes:
            size = max(1024, 1 << (nbytes - 1).bit_length())
            pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            slot = self._slots[self._next] = (pinned, pinned.numpy(), torch.cuda.Event())
        elif not slot[2].query():
            slot[2].synchronize()
        self._next = (self._next + 1) % len(self._slots)
        slot[1][:nbytes] = source.reshape(-1).view(np.uint8)
        target.view(-1).view(torch.uint8).copy_(slot[0][:nbytes], non_blocking=True)
        slot[2].record(torch.cuda.current_stream(target.device))


_RINGS: dict[torch.device, _PinnedRing] = {}


def _ring(device: torch.device) -> _PinnedRing:
    """The device's own ring: events belong to a device."""
    return _RINGS.setdefault(device, _PinnedRing())


class Sender:
    """Sends everything at once, without waiting for the device."""

    def table(self, array: np.ndarray, device: torch.device) -> Tensor:
        """Addresses, sizes or chunks."""
        host = torch.from_numpy(array)
        if device.type != "cuda":
            return host.clone()
        target = torch.empty(array.shape, dtype=host.dtype, device=device)
        _ring(device).copy_(target, array)
        return target

    def numbers(self, rows: Rows, moment: Moment, device: torch.device) -> Tensor:
        """The numbers of this step."""
        return self.table(rows.made(moment), device)


def _padded(array: np.ndarray) -> int:
    return -(-array.nbytes // _ALIGN) * _ALIGN


class Rehearsal(Sender):
    """Sends tables of empty tensors: every launch happens, and none has an effect.

    ``nbytes`` adds up what was sent.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    def table(self, array: np.ndarray, device: torch.device) -> Tensor:
        """Counted and sent."""
        self.nbytes += _padded(array)
        return super().table(array, device)


class Recorder(Sender):
    """Hands out pieces of an arena of ``nbytes`` during a capture and fills them afterwards."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._arena = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._used = 0
        self._tables: list[tuple[Tensor, np.ndarray]] = []
        self._numbers: list[tuple[Tensor, Rows]] = []

    def _piece(self, array: np.ndarray) -> Tensor:
        start, self._used = self._used, self._used + _padded(array)
        if self._used > self._arena.numel():
            raise RuntimeError("the captured step asked for more tables than its rehearsal")
        piece = self._arena[start : start + array.nbytes]
        return piece.view(torch.from_numpy(array).dtype).view(array.shape)

    def table(self, array: np.ndarray, device: torch.device) -> Tensor:
        """Memory that `flush` will fill with the array as it is now."""
        tensor = self._piece(array)
        self._tables.append((tensor, array.copy()))
        return tensor

    def numbers(self, rows: Rows, moment: Moment, device: torch.device) -> Tensor:
        """Memory that `stage` will fill before each replay."""
        tensor = self._piece(rows.made(moment))
        self._numbers.append((tensor, rows))
        return tensor

    def flush(self) -> None:
        """Fill all tables."""
        for tensor, array in self._tables:
            tensor.copy_(torch.from_numpy(array))

    def fits(self, rates: Mapping[Site, Rates]) -> bool:
        """Whether what was recorded as one row of numbers still is one."""
        return all(rows.fit(rates) for _, rows in self._numbers)

    def stage(self, moment: Moment) -> None:
        """Refresh all numbers, without waiting for the device."""
        for tensor, rows in self._numbers:
            _ring(tensor.device).copy_(tensor, rows.made(moment))
