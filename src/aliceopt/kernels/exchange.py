"""Exchanges of parameter and probe center that an exception leaves either undone or done.

Ctrl-C is raised between any two of Python's instructions, and so also after memory was written and
before that was noted. Whatever is raised here, ``site.swapped`` says what memory holds: then going
back to the positions finds them. A second exception while the first is being dealt with is not
provided for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..site import Site
from .native import Rows

__all__ = ["Witness", "Witnesses", "completed", "exchange_", "noted", "noted_all"]

_SCAN = 1 << 16
T = TypeVar("T")


def exchange_(
    sites: Sequence[Site],
    params: list[Tensor],
    centers: list[Tensor],
    kept: list[Tensor],
) -> None:
    """Copy centers to parameters and ``kept``, what parameters hold or go back to, to centers.

    The sites are all swapped or all not. An exception leaves everything as it was.
    """
    before, whole = sites[0].swapped, centers
    try:
        torch._foreach_copy_(params, centers)
        whole = params  # from here on the old centers are safe there
        torch._foreach_copy_(centers, kept)
        _mark(sites, not before)
    except BaseException:
        if whole is params:
            torch._foreach_copy_(centers, params)
        torch._foreach_copy_(params, kept)
        _mark(sites, before)
        raise


def completed(work: Callable[[], None]) -> None:
    """Do this, from the start again if interrupted: for what may be done twice, but not half."""
    try:
        work()
    except BaseException:
        work()
        raise


def noted(site: Site, witness: Witness, work: Callable[[], T], *, swapped: bool) -> T:
    """Run a pass over parameter and center, after which the two are ``swapped`` or not.

    The pass is one call into compiled code, which no exception interrupts. Whether one was raised
    before or after it is told by what memory holds.
    """
    # Two that are equal are swapped and not swapped.
    before = site.swapped if witness.found else swapped
    try:
        site.swapped = before
        result = work()
        site.swapped = swapped
    except BaseException:
        site.swapped = swapped if witness.changed() else before
        raise
    return result


def noted_all(sites: Sequence[Site], rows: Rows, *, swapped: bool) -> None:
    """`noted` of one call for many sites, which are all swapped or all not.

    The call itself tells whether it was made.
    """
    before = sites[0].swapped
    try:
        rows.run()
        _mark(sites, swapped)
    except BaseException:
        _mark(sites, swapped if rows.ran else before)
        raise


class Witness:
    """An element in which two flat arrays differ, to tell whether a pass has been over them."""

    def __init__(self, one: np.ndarray, other: np.ndarray):
        self._pair = one, other
        x, y = one[0], other[0]
        self._place: int | None = 0
        if not (x < y or x > y):  # as a rule they do
            # Bits, not numbers: NaN equals nothing, and a zero equals its negative.
            bits = np.int64 if one.itemsize == 8 else np.int32
            one, other = self._pair = one.view(bits), other.view(bits)
            self._place = _difference(one, other)
            x, y = (0, 0) if self._place is None else (one[self._place], other[self._place])
        self._was = x, y

    @property
    def found(self) -> bool:
        """Whether there is one."""
        return self._place is not None

    def changed(self) -> bool:
        """Whether the two have not the values there that they had."""
        return self.found and self._was != tuple(values[self._place] for values in self._pair)


class Witnesses:
    """A `Witness` for each of many sites, step after step.

    For numpy to take a look at a tensor costs more than the look, so that is kept.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[tuple[Tensor, Tensor], tuple[np.ndarray, np.ndarray]]] = {}

    def of(self, site: Site, param: Tensor, center: Tensor) -> Witness:
        """A new one, for flat tensors that hold the site's parameter and probe center."""
        known = self._made.get(id(site))
        if known is None or known[0][0] is not param or known[0][1] is not center:
            known = self._made[id(site)] = (param, center), (param.numpy(), center.numpy())
        return Witness(*known[1])


def _difference(first: np.ndarray, second: np.ndarray) -> int | None:
    for start in range(0, len(first), _SCAN):
        differ = first[start : start + _SCAN] != second[start : start + _SCAN]
        if differ.any():
            return start + int(differ.argmax())
    return None


def _mark(sites: Sequence[Site], swapped: bool) -> None:
    for site in sites:
        site.swapped = swapped
