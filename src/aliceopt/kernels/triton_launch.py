"""Launching the Triton source, and getting tables to the device without waiting for it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from ..options import HESSIANS, LIMITS
from . import triton_kernels as source
from .table import Goal, Launch

__all__ = ["TritonKernels", "copy_"]

_DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_WARPS = 4


class TritonKernels:
    """The kernels of `triton_kernels`, on CUDA or in Triton's interpreter."""

    name = "triton"
    # Elements a program works on. An update has up to 16 streams, and one vector a thread of each
    # keeps its registers few enough; a move has 2.
    move_block = 1024
    update_block = 512

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether parameters may have this dtype."""
        return dtype in _DTYPES

    def send(self, array: np.ndarray, device: torch.device) -> Tensor:
        """A copy on the device; nothing waits for it."""
        host = torch.from_numpy(array)
        if device.type != "cuda":
            return host
        return host.pin_memory().to(device, non_blocking=True)

    def move(self, launch: Launch, goal: Goal, *, depart: bool, swap: bool) -> None:
        """Send parameters to a probe point or back."""
        param, state = _dtypes(launch)
        with _on(launch.table.device):
            source.move_kernel[(launch.count,)](
                launch.table,
                launch.chunk_tensor,
                launch.chunk_index,
                GOAL=int(goal),
                DEPART=depart,
                SWAP=swap,
                P=_DTYPES[param],
                S=_DTYPES[state],
                LOW=param != state,
                PERMUTED=launch.permuted,
                ALIGNED=launch.aligned,
                EVEN=launch.kind.even,
                BLOCK=launch.block,
                num_warps=_WARPS,
            )

    def update(self, launch: Launch, clip: Tensor | None) -> None:
        """Averages, step, position and probe center of every element."""
        kind, (param, state) = launch.kind, _dtypes(launch)
        assert kind.grad is not None
        with _on(launch.table.device):
            source.update_kernel[(launch.count,)](
                launch.table,
                launch.chunk_tensor,
                launch.chunk_index,
                launch.table if clip is None else clip,
                LIMIT=LIMITS.index(kind.limit),
                HESSIAN=HESSIANS.index(kind.hessian),
                USE_GLASS=kind.glass,
                MEASURING=kind.measuring,
                MAXIMIZE=kind.maximize,
                CLIP=clip is not None,
                LARGEST=torch.finfo(state).max,
                P=_DTYPES[param],
                G=_DTYPES[kind.grad],
                SIDE=_DTYPES[kind.side or kind.grad],
                S=_DTYPES[state],
                LOW=param != state,
                PERMUTED=launch.permuted,
                ALIGNED=launch.aligned,
                EVEN=launch.kind.even,
                BLOCK=launch.block,
                MOVE_BLOCK=self.move_block,
                num_warps=_WARPS,
            )

    def square_sum(self, launch: Launch) -> Tensor:
        """Sum of squares of the finite gradient entries."""
        (_, state), device = _dtypes(launch), launch.table.device
        assert launch.kind.grad is not None
        partial = torch.empty(launch.count, dtype=state, device=device)
        with _on(device):
            source.square_sum_kernel[(launch.count,)](
                launch.table,
                launch.chunk_tensor,
                launch.chunk_index,
                partial,
                G=_DTYPES[launch.kind.grad],
                S=_DTYPES[state],
                ALIGNED=launch.aligned,
                EVEN=launch.kind.even,
                BLOCK=launch.block,
                num_warps=_WARPS,
            )
        return partial.sum(dtype=torch.float64)


def _dtypes(launch: Launch) -> tuple[torch.dtype, torch.dtype]:
    """Of the parameters and of their state."""
    param = launch.kind.param
    return param, torch.float64 if param == torch.float64 else torch.float32


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Where launches must be made from: the current device may be another."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def copy_(target: Tensor, array: np.ndarray) -> None:
    """Copy an array into a tensor of its size, on whatever device, without waiting for it."""
    host = torch.from_numpy(array)
    if target.device.type == "cuda":
        host = host.pin_memory()  # torch gives out such memory again once the copy is over
    target.copy_(host, non_blocking=True)
