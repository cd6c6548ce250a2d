"""Moves and updates of many sites in one call: what `Rows` needs of them.

All sites of a call have flat memory, and parameters of one dtype. Tensors are collected by column,
one for each argument of a pass, since a few lists of many are made in less time than many of a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..layout import local
from ..site import Site
from .base import Job
from .exchange import noted_all
from .memory import conformed
from .native import PIECE, STREAM, Kernel, Rows, copy_kernel, pieces
from .passes import Kind
from .staging import packs, zeros
from .words import Span

__all__ = ["copy_all", "displace_all", "hash_all", "packs_for", "swap_all", "update_all"]

Column = Sequence[Any]
"""A tensor of each site."""


def packs_for(sites: Sequence[Site], kernel: Kernel | None) -> Iterable[list[int]]:
    """Indices of sites, of one dtype, that share a call: all of them, where there is a kernel."""
    return packs(sites) if kernel is None else [list(range(len(sites)))]


def copy_all(there: Column, here: Column) -> bool:
    """Copy tensors to others of the same sizes and dtypes, if this is possible here."""
    columns = [_local(there), _local(here)]
    sizes = np.minimum(*(_numbers(Tensor.numel, column) for column in columns))
    sizes *= np.asarray([tensor.itemsize for tensor in columns[0]])
    kernel = copy_kernel(stream=bool(sizes.sum() >= STREAM))
    if kernel is not None:
        addresses = [_numbers(Tensor.data_ptr, column) for column in columns]
        there = pieces(tuple(sizes.tolist()), 4 * PIECE)
        Rows(kernel, there, 0, addresses, [8, 8], keep=columns).run()
    return kernel is not None


def swap_all(kernel: Kernel, yes: Tensor, sites: Sequence[Site]) -> None:
    """Exchange parameters and probe centers; the sites are all swapped or all not."""
    columns = [[site.param for site in sites], [site.state["probe_center"] for site in sites]]
    noted_all(sites, _rows(kernel, yes, sites, columns), swapped=not sites[0].swapped)


def displace_all(kernel: Kernel, shift: Tensor, sites: Sequence[Site], words: Column) -> None:
    """Write ``nu + shift t`` to the parameters."""
    # Before the first step there is no center but the position.
    centers = [site.state.get("probe_center", site.position) for site in sites]
    _rows(kernel, shift, sites, [[site.param for site in sites], centers, words]).run()


def hash_all(kernel: Kernel, spans: Sequence[Span]) -> None:
    """Fill all these spans."""
    there = pieces(tuple(span.words.numel() for span in spans))
    keys = np.asarray([(*span.key, span.first) for span in spans], dtype=np.int64)[there.owner]
    keys[:, 2] += there.start
    numbers = keys.ctypes.data + keys.strides[0] * np.arange(len(keys))
    words = _numbers(Tensor.data_ptr, [span.words for span in spans])
    Rows(kernel, there, numbers, [words], [32]).run()


def update_all(
    kernel: Kernel, numbers: Tensor, jobs: Sequence[Job], kind: Kind, extra: Mapping[str, Column]
) -> None:
    """Averages, position and probe center of every job; ``extra`` has words and radii, if any."""
    sites = [job.site for job in jobs]
    own: dict[str, Column] = {
        "param": [site.param for site in sites],
        "mu": [site.position for site in sites],
        "grad": _gradients(sites, [site.gradient for site in sites]),
        **extra,
    }
    if kind.measuring:
        own["plus"] = _gradients(sites, [site.plus for site in sites])
        own["minus"] = _gradients(sites, [site.minus for site in sites])
    columns = [
        own[name] if name in own else [site.state[name] for site in sites] for name in kind.tensors
    ]
    rows = _rows(kernel, numbers, sites, columns)
    if kind.swapped:
        noted_all(sites, rows, swapped=False)
    else:
        rows.run()
    for i in np.flatnonzero(rows.counts):
        sites[rows.there.owner[i]].skipped += int(rows.counts[i])


def _gradients(sites: Sequence[Site], grads: Column) -> Column:
    """Laid out as the parameters are; zeros where there is none."""
    own = [site.param for site in sites]
    there = all(grad is not None for grad in grads)
    if there and list(map(Tensor.stride, grads)) == list(map(Tensor.stride, own)):
        return grads
    return [
        zeros(site) if grad is None else conformed(local(grad), local(site.param))
        for site, grad in zip(sites, grads, strict=True)
    ]


def _rows(
    kernel: Kernel, numbers: Tensor, sites: Sequence[Site], columns: Sequence[Column]
) -> Rows:
    """Of every site the tensors that the pass takes, in its order."""
    mine = [_local(column) for column in columns]
    bits = [1 if c[0].dtype == torch.int32 else 8 * c[0].itemsize for c in mine]
    numels = [site.numel for site in sites]
    # Of all others that is known: of the state by `is_flat`, of gradients by torch.
    if (_numbers(Tensor.numel, mine[0]) != numels).any():
        raise RuntimeError("a parameter was given data of another size: make a new optimizer")
    addresses = [_numbers(Tensor.data_ptr, column) for column in mine]
    return Rows(kernel, pieces(tuple(numels)), numbers.data_ptr(), addresses, bits, keep=mine)


def _local(column: Column) -> Column:
    """`local`, in less time for plain tensors."""
    plain = set(map(type, column)) <= {Tensor, nn.Parameter}
    return column if plain else list(map(local, column))


def _numbers(of: Any, column: Column) -> np.ndarray:
    return np.fromiter(map(of, column), dtype=np.int64, count=len(column))
