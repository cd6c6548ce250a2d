"""The CPU kernels: C++ that is compiled at first use, and how it is called."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..compiling import BuildError, built, cache_folder
from ..options import HESSIANS, LIMITS
from .table import DIMS, Goal, Launch, Row

__all__ = ["MOVE_BLOCK", "UPDATE_BLOCK", "BuildError", "CpuKernels", "library"]

MOVE_BLOCK = UPDATE_BLOCK = 1 << 14
"""Elements of a chunk, what a thread takes at a time: one flag for both passes over it."""

_WORD = ctypes.c_int64
_FILES = ("cpu_elements.hpp", "cpu.cpp")
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def source() -> str:
    """The text that is compiled: enums of all that is numbered in Python, then the files."""
    enums = {
        "row": {row.name: row.value for row in Row},
        "goal": {goal.name: goal.value for goal in Goal},
        "limit": {name.upper(): code for code, name in enumerate(LIMITS)},
        "hessian": {name.upper(): code for code, name in enumerate(HESSIANS)},
        "dtype": {str(d).removeprefix("torch.").upper(): code for code, d in enumerate(_DTYPES)},
    }
    lines = [_enum(space, members) for space, members in enums.items()]
    lines.append(f"constexpr int DIMS = {DIMS};")
    for name in _FILES:
        lines += [f'#line 1 "{name}"', Path(__file__).with_name(name).read_text()]
    return "\n".join(lines)


def _enum(space: str, members: Mapping[str, int]) -> str:
    listed = ", ".join(f"{name} = {value}" for name, value in members.items())
    return f"namespace {space} {{ enum {{ {listed} }}; }}"


@functools.cache
def library() -> ctypes.CDLL:
    """The kernels, loaded; compiled before that where they are not in the cache yet."""
    kernels = built(source(), cache_folder())
    words = ctypes.POINTER(_WORD)
    kernels.move.argtypes = kernels.update.argtypes = [words, words]
    kernels.square_sum.argtypes = [words, ctypes.c_void_p, ctypes.c_int64]
    for function in (kernels.move, kernels.update, kernels.square_sum):
        function.restype = None
    return kernels


class CpuKernels:
    """Moves and updates of any number of CPU tensors, in one call each."""

    name = "compiled"
    move_block = MOVE_BLOCK
    update_block = UPDATE_BLOCK

    def __init__(self) -> None:
        self._library = library()
        known = map(self._library.knows_dtype, range(len(_DTYPES)))
        self._dtypes = {dtype for dtype, is_known in zip(_DTYPES, known, strict=True) if is_known}

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether parameters and gradients may have this dtype."""
        return dtype in self._dtypes

    def send(self, array: np.ndarray, device: torch.device) -> Tensor:
        """The array itself: the kernels read the host's memory."""
        return torch.from_numpy(array)

    def move(self, launch: Launch, goal: Goal, *, depart: bool, swap: bool) -> None:
        """Send parameters to a `Goal`; departing, take their positions aside or ``swap`` them."""
        self._library.move(_common(launch), (_WORD * 3)(goal, depart, swap))

    def update(self, launch: Launch, clip: Tensor | None) -> None:
        """Averages, step, position and probe center; gradients count ``clip`` times."""
        kind = launch.kind
        options = (_WORD * 8)(
            0 if clip is None else clip.data_ptr(),
            LIMITS.index(kind.limit),
            HESSIANS.index(kind.hessian),
            kind.glass,
            kind.measuring,
            kind.maximize,
            *(_DTYPES.index(d or kind.param) for d in (kind.grad, kind.side)),
        )
        self._library.update(_common(launch), options)

    def square_sum(self, launch: Launch) -> Tensor:
        """Sum of squares of all finite entries of the gradients, in float64."""
        partial = torch.empty(launch.count, dtype=torch.float64, device="cpu")
        grad = _DTYPES.index(launch.kind.grad or launch.kind.param)
        self._library.square_sum(_common(launch), partial.data_ptr(), grad)
        return partial.sum()


def _common(launch: Launch) -> ctypes.Array[ctypes.c_int64]:
    """The first structure of `cpu.cpp`."""
    return (_WORD * 8)(
        launch.table.data_ptr(),
        launch.chunk_tensor.data_ptr(),
        launch.chunk_index.data_ptr(),
        launch.count,
        launch.block,
        _DTYPES.index(launch.kind.param),
        launch.runs > 0,
        torch.get_num_threads(),
    )
