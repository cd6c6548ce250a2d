"""How the elements of a tensor lie in memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .sharding import block_of, local

__all__ = ["conformed", "is_dense", "memory_order", "same_layout"]


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def same_layout(tensor: Tensor, like: Tensor) -> bool:
    """Whether elements of two tensors of one shape lie in the same order, with the same gaps."""
    return tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous())


def conformed(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in the memory layout of ``like``: itself where it has that already."""
    if same_layout(tensor, like):
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def memory_order(param: Tensor) -> tuple[int, list[int], list[int]]:
    """Global index of the first element, and sizes and global strides in memory order.

    Dimensions that run on from one another in both orders are merged, so that a plain or
    row-sharded tensor has one.
    """
    block, here = block_of(param), local(param)
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
