"""Where a parameter's elements live: plain tensors, and the local shards of DTensors.

All arithmetic happens on local tensors. Signs need the global position of every local element,
norms need a sum over shards. Only ``Shard`` and ``Replicate`` placements are understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Block", "block_of", "is_dtensor", "local", "reshard", "sum_over_shards"]


class Block(NamedTuple):
    """A rectangular part of a tensor of ``global_shape``."""

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def is_dtensor(tensor: Tensor) -> bool:
    """Whether this is a distributed tensor, without importing torch.distributed for the rest."""
    if type(tensor) in (Tensor, nn.Parameter) or not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The tensor itself, or the local shard of a DTensor (sharing its memory)."""
    if not is_dtensor(tensor):
        return tensor.detach()
    shard: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return shard


def _mesh_dims(tensor: Tensor) -> list[tuple[Any, Any, int]]:
    """(placement, mesh, mesh dimension) of a DTensor; ValueError for an unknown placement."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    assert isinstance(tensor, DTensor)
    dims = []
    for dim, placement in enumerate(tensor.placements):
        if type(placement) not in (Shard, Replicate):
            raise ValueError(
                f"DTensor parameters must be placed by Shard or Replicate, got {placement} in "
                f"{tuple(tensor.placements)}"
            )
        dims.append((placement, tensor.device_mesh, dim))
    return dims


def block_of(tensor: Tensor) -> Block:
    """Which part of the global tensor this process holds."""
    size = list(tensor.shape)
    if not is_dtensor(tensor):
        return Block(tuple(size), (0,) * len(size), tuple(size))
    from torch.distributed.tensor import Shard

    offsets = [0] * len(size)
    for placement, mesh, dim in _mesh_dims(tensor):
        if type(placement) is Shard:
            axis = placement.dim
            chunk = -(-size[axis] // mesh.size(dim))
            start = min(chunk * mesh.get_local_rank(dim), size[axis])
            offsets[axis] += start
            size[axis] = min(chunk, size[axis] - start)
    shape = tuple(local(tensor).shape)
    if shape != tuple(size):
        raise ValueError(
            f"DTensor of shape {tuple(tensor.shape)} placed as {tensor.placements} must have a "  # type: ignore[attr-defined]
            f"local shard of shape {tuple(size)}, got {shape}"
        )
    return Block(tuple(tensor.shape), tuple(offsets), shape)


def sum_over_shards(value: Tensor, like: Tensor) -> Tensor:
    """Add up a per-shard number of a parameter placed as ``like``; replicas count once."""
    if not is_dtensor(like):
        return value
    from torch.distributed.tensor import Shard

    value = value.clone()
    for placement, mesh, dim in _mesh_dims(like):
        if type(placement) is Shard:
            torch.distributed.all_reduce(value, group=mesh.get_group(dim))
    return value


def reshard(modules: Iterable[nn.Module]) -> None:
    """Drop the unsharded copies FSDP2 may hold, so that the next forward sees moved shards."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.fsdp import FSDPModule

    for module in modules:
        if isinstance(module, FSDPModule):
            module.reshard()
