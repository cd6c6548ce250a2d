"""Sharded parameters: which elements of a DTensor live here, and what FSDP2 must be told.

All arithmetic happens on local tensors. Signs need the global position of every local element,
norms need a sum over shards. Only ``Shard`` and ``Replicate`` placements are understood.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "Block",
    "align_gradients_",
    "as_part_of",
    "block_of",
    "check_seen",
    "devices_of",
    "is_distributed",
    "is_dtensor",
    "local",
    "recover",
    "reshard",
    "sum_over_shards",
    "whole",
]


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


def is_distributed() -> bool:
    """Whether this process is one of a group; only then can there be FSDP2 modules."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def local(tensor: Tensor) -> Tensor:
    """The tensor itself, or the local shard of a DTensor (sharing its memory)."""
    if not is_dtensor(tensor):
        return tensor.detach()
    shard: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return shard


def as_part_of(like: Tensor, shard: Tensor) -> Tensor:
    """A local tensor as the shard of a DTensor that is placed like another; else itself."""
    if not is_dtensor(like):
        return shard
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    return DTensor.from_local(
        shard, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all of a DTensor, gathered."""
    if not is_dtensor(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


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


def align_gradients_(params: Iterable[Tensor]) -> None:
    """Place every DTensor gradient as its parameter is.

    Autograd may leave it as ``Partial`` sums, whose squares and absolute values do not add up.
    """
    for param in params if is_distributed() else ():
        grad: Any = param.grad
        if grad is not None and is_dtensor(grad) and is_dtensor(param):
            placements = param.placements  # type: ignore[attr-defined]
            if grad.placements != placements:
                param.grad = grad.detach().redistribute(placements=placements)


def devices_of(params: Iterable[Tensor]) -> set[torch.device]:
    """Where parameters lie and where they are used: not the same when FSDP2 offloads to the CPU."""
    params = list(params)
    devices = {param.device for param in params}
    for param in params if is_distributed() else ():
        if is_dtensor(param):
            kind: str = param.device_mesh.device_type  # type: ignore[attr-defined]
            if kind != param.device.type:
                devices.add(torch.device(kind, torch.get_device_module(kind).current_device()))
    return devices


def _fsdp_modules(model: nn.Module | None) -> Iterator[Any]:
    if model is None or not is_distributed():
        return
    from torch.distributed.fsdp import FSDPModule

    yield from (module for module in model.modules() if isinstance(module, FSDPModule))


def _fsdp_groups(module: Any) -> list[Any]:
    """FSDP2's own records of a module's parameters; one at most before torch 2.12."""
    state = module._get_fsdp_state()
    several = hasattr(state, "_fsdp_param_groups")
    groups = state._fsdp_param_groups if several else [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def reshard(model: nn.Module | None) -> None:
    """Drop the unsharded copies FSDP2 may hold, so that the next forward sees moved shards."""
    for module in _fsdp_modules(model):
        if any(group._all_gather_result is not None for group in _fsdp_groups(module)):
            module.unshard()  # ends a gathering of the old weights, which the forward would use
        module.reshard()


def recover(model: nn.Module | None) -> None:
    """Clean up FSDP2 after a forward or backward that was left half-way.

    Without it a module interrupted in its forward stays unsharded, and gradients that were not
    reduced yet turn up in the next step.
    """
    for module in _fsdp_modules(model):
        _end_iteration(module)
        for group in _fsdp_groups(module):
            for param in group.fsdp_params:
                param.unsharded_accumulated_grad = None
                if hasattr(param, "_unsharded_param"):
                    param._unsharded_param.grad = None


def _end_iteration(module: Any) -> None:
    if hasattr(module, "reset_iter_state"):
        # Refused below the root, whose own covers it, and before there was any forward.
        with contextlib.suppress(AttributeError, RuntimeError):
            module.reset_iter_state()
        return
    state = module._get_fsdp_state()  # torch 2.11 and 2.12 have no such method
    for holder in (state, *_fsdp_groups(module)):
        holder._training_state = type(holder._training_state).IDLE
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False


def check_seen(params: Iterable[Tensor], model: nn.Module | None) -> None:
    """Refuse parameters that a forward of ``model`` would not look at, even after `reshard`."""
    if model is None or not is_distributed():
        return
    seen = {id(param) for param in model.parameters()}
    for param in params:
        shape = tuple(param.shape)
        if is_dtensor(param) and id(param) not in seen:
            raise ValueError(
                f"a sharded parameter of shape {shape} is not among those of model "
                f"({type(model).__name__}), whose forward would not see it move: model must "
                "contain the FSDP2 root; after an exception, call its reset_iter_state()"
            )
        if not is_dtensor(param) and param.numel() > 0 and not param.untyped_storage().size():
            raise ValueError(
                f"a parameter of shape {shape} was taken while its FSDP2 module was unsharded: "
                "call reshard() on every FSDPModule, then model.parameters() again"
            )
