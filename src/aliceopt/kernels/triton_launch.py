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

__all__ = ["TritonKernels"]

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
        constants = {"GOAL": int(goal), "DEPART": depart, "SWAP": swap}
        self._launch(source.move_kernel, launch, (), constants)

    def update(self, launch: Launch, clip: Tensor | None) -> None:
        """Averages, step, position and probe center of every element."""
        factor = launch.table if clip is None else clip
        constants = {"CLIP": clip is not None, "MOVE_BLOCK": self.move_block}
        self._launch(source.update_kernel, launch, (factor,), constants)

    def square_sum(self, launch: Launch) -> Tensor:
        """Sum of squares of the finite gradient entries."""
        partial = torch.empty(launch.count, dtype=torch.float64, device=launch.table.device)
        self._launch(source.square_sum_kernel, launch, (partial,), {})
        return partial.sum()

    def _launch(
        self, kernel: Any, launch: Launch, more: tuple[Tensor, ...], constants: dict[str, Any]
    ) -> None:
        """Launch a kernel on the table, the chunks and ``more``.

        Triton looks every argument over at each launch, which takes longer than the launch. What
        it made of the same ones is therefore remembered, where they are also aligned alike.
        """
        arguments = (launch.table, launch.chunk_tensor, launch.chunk_index, *more)
        alike = [(tensor.dtype, tensor.data_ptr() % 16) for tensor in (launch.table, *more)]
        key = (kernel, launch.aligned, *constants.values(), *alike)
        device = launch.table.device
        here: AbstractContextManager[Any] = nullcontext()
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            here = torch.cuda.device(device)  # launches go to the current one
        with here:
            if key in launch.memory:
                compiled, rest = launch.memory[key]
                compiled[launch.count, 1, 1](*arguments, *rest)
                return
            constants = {**_constants(launch), **constants}
            rest = [constants[name] for name in kernel.arg_names[len(arguments) :]]
            compiled = kernel[(launch.count,)](*arguments, *rest, num_warps=_WARPS)
            if compiled is not None:  # as it is in the interpreter
                launch.memory[key] = compiled, rest


def _constants(launch: Launch) -> dict[str, Any]:
    """What the kernels are compiled for, of all that they ask for."""
    kind = launch.kind
    state = torch.float64 if kind.param == torch.float64 else torch.float32
    grad = kind.grad or kind.param
    return {
        "LIMIT": LIMITS.index(kind.limit) if kind.limit else 0,
        "HESSIAN": HESSIANS.index(kind.hessian),
        "USE_GLASS": kind.glass,
        "MEASURING": kind.measuring,
        "MAXIMIZE": kind.maximize,
        "LARGEST": torch.finfo(state).max,
        "P": _DTYPES[kind.param],
        "G": _DTYPES[grad],
        "SIDE": _DTYPES[kind.side or grad],
        "S": _DTYPES[state],
        "LOW": kind.param != state,
        "RUNS": launch.runs,
        "ALIGNED": launch.aligned,
        "EVEN": kind.even,
        "BLOCK": launch.block,
    }
