"""Tensors as runs of memory: flat views, layouts, and room that is kept.

Nothing here needs a compiler or a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..layout import block_of, local
from ..site import Site, state_dtype

__all__ = [
    "BareSites",
    "Room",
    "bare",
    "conformed",
    "flat",
    "flat_state",
    "is_dense",
    "is_flat",
    "memory_order",
]

_STATE = ("probe_center", "position", "grad_avg", "grad_sq", "glass_density", "hess")


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in memory order, as a view."""
    return tensor.as_strided((tensor.numel(),), (1,))


def bare(tensor: Tensor) -> Tensor:
    """The memory of a dense tensor, flat, as one that is no view and whose writes bump no version.

    torch.compile looks through a view at what it was made from, and would compile anew for every
    shape of that.
    """
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), tensor.storage_offset(), (tensor.numel(),), (1,))


def conformed(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in the memory layout of ``like``: itself where it has that already."""
    same = tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous())
    return tensor if same else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def memory_order(site: Site) -> tuple[int, list[int], list[int]]:
    """Global index of the first element, and sizes and global strides in memory order.

    Dimensions that run on from one another in both orders are merged, so that a plain or
    row-sharded tensor has one.
    """
    block, here = block_of(site.param), local(site.param)
    strides = [math.prod(block.global_shape[d + 1 :]) for d in range(len(block.shape))]
    first = sum(o * s for o, s in zip(block.offsets, strides, strict=True))
    order = sorted(range(here.dim()), key=lambda d: (-here.stride()[d], d))
    dims = [(here.shape[d], strides[d]) for d in order if here.shape[d] != 1]
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return first, [size for size, _ in merged], [stride for _, stride in merged]


def is_flat(site: Site) -> bool:
    """Whether all of a site can be worked on as flat tensors, signs included.

    Its memory has no gaps, its state is laid out alike, and what this process holds of a sharded
    parameter is one run of its elements.
    """
    block, here = block_of(site.param), local(site.param)
    state = [local(site.state[name]) for name in _STATE if name in site.state]
    alike = all(there.shape == here.shape and there.stride() == here.stride() for there in state)
    return alike and is_dense(here) and block.shape[1:] == block.global_shape[1:]


def flat_state(site: Site) -> dict[str, Tensor]:
    """The state's large tensors, flat."""
    return {name: flat(local(site.state[name])) for name in _STATE if name in site.state}


class BareSites:
    """Parameter and state of each site as `bare` tensors, made anew only when memory moved.

    Making them costs as much as a small pass over them.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Site, list[tuple[str, int]], dict[str, Tensor]]] = {}

    def of(self, site: Site) -> dict[str, Tensor]:
        """By the names of the state, and ``param``; not to be changed."""
        known = self._made.get(id(site))
        if known is not None and _stands(site, known[1]):
            return known[2]
        mine = {name: local(site.state[name]) for name in _STATE if name in site.state}
        made = {name: bare(tensor) for name, tensor in mine.items()}
        made["param"] = bare(local(site.param))
        # Memory that is referred to from here cannot become that of another tensor.
        addresses = [(name, tensor.data_ptr()) for name, tensor in made.items()]
        self._made[id(site)] = (site, addresses, made)
        return made


def _stands(site: Site, addresses: Sequence[tuple[str, int]]) -> bool:
    """Whether a site's plain tensors, parameter last, are where they were."""
    state = site.state
    if type(site.param) is not nn.Parameter or site.param.data_ptr() != addresses[-1][1]:
        return False
    if len(addresses) - 1 != sum(name in state for name in _STATE):
        return False
    return all(state[name].data_ptr() == address for name, address in addresses[:-1])


class Room:
    """Memory that is kept from step to step, one buffer for each dtype.

    Fresh memory is handed out page by page as it is first written, which can cost more than all
    the arithmetic of a step.
    """

    def __init__(self) -> None:
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._divided: tuple[list[Any], list[Tensor]] = [], []

    def divide(self, sites: Sequence[Site]) -> list[Tensor]:
        """A tensor for every site, in state precision and laid out like its parameter.

        What an earlier call gave out is given out again.
        """
        wanted = [(site, s.dtype, s.shape, s.stride()) for site in sites for s in [site.param]]
        if wanted != self._divided[0]:
            self._divided = wanted, list(self._divide(sites))
        return self._divided[1]

    def _divide(self, sites: Sequence[Site]) -> Iterator[Tensor]:
        sizes: dict[torch.dtype, int] = {}
        starts = []
        for site in sites:
            dtype = state_dtype(site.param)
            starts.append(sizes.get(dtype, 0))
            # Every tensor starts at a multiple of 64 bytes, as torch's own allocations do.
            sizes[dtype] = starts[-1] + -(-site.numel // 16) * 16
        for dtype, size in sizes.items():
            if dtype not in self._buffers or self._buffers[dtype].numel() < size:
                self._buffers[dtype] = torch.empty(size, dtype=dtype, device="cpu")
        for site, start in zip(sites, starts, strict=True):
            here = local(site.param)
            buffer = self._buffers[state_dtype(here)]
            yield buffer.as_strided(here.shape, here.stride(), start)
