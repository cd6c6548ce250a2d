"""The table that both kernel sources read: a column for every parameter, a row for every quantity.

Addresses, sizes and this step's numbers stand in one array of 64-bit words, so that a pass over any
number of tensors is one launch and one transfer. In memory a column is contiguous: what a kernel
needs to know of one parameter stands together. `Row` is the only place where the order of rows is
written down: the Triton source takes it from here, and the C++ source is compiled with it.

A launch works through chunks of many tensors. Chunk ``i`` is elements ``chunk_index[i] * block``
and following of the parameter in column ``chunk_tensor[i]``, in memory order.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["DIMS", "Goal", "Kind", "Launch", "Row"]

DIMS = 5
"""Runs of memory, at most, that a parameter may consist of."""


class Row(IntEnum):
    """Rows of the table: addresses, then whole numbers, then the bits of float64 numbers."""

    PARAM = 0  # the parameter, in its own dtype
    MU = 1  # where mu is while the parameter is away, in state precision, as all that follow
    NU = 2  # where nu is then
    CENTER = 3  # the state's nu, and where an update puts the new one
    MASTER = 4  # a low-precision parameter's mu
    GRAD = 5  # the gradients at nu, nu + radius t and nu - radius t, in dtypes of their own
    PLUS = 6
    MINUS = 7
    GRAD_AVG = 8
    GRAD_SQ = 9
    GLASS = 10
    HESS = 11
    AT_PLUS = 12  # memory for the two probe points, in captured steps
    AT_MINUS = 13
    SKIPPED = 14  # int64: coordinates that updates left alone
    AWAY = 15  # int32, one a chunk of a move: whether mu has been taken aside
    NUMEL = 16
    INDEX = 17  # the parameter's place in the optimizer
    FIRST = 18  # global index of its first element here
    SEED = 19
    STEP = 20
    SIZES = 21  # of the runs of memory, slowest first, and their strides in the global tensor
    STRIDES = 26
    RADIUS = 31
    LR = 32
    LR_MIN = 33
    EPS = 34
    STEP_FRACTION = 35
    LOOKAHEAD = 36
    DECAY = 37
    BETA1 = 38  # each beta with its complement, which must not be rounded from it
    NEW1 = 39
    BETA2 = 40
    NEW2 = 41
    BETA_TOPO = 42
    NEW_TOPO = 43
    GRAD_WEIGHT = 44
    SQ_WEIGHT = 45
    TOPO_WEIGHT = 46
    ROWS = 47


class Goal(IntEnum):
    """Where a move takes the parameters; BOTH writes the two sides to memory of their own."""

    CENTER = 0
    PLUS = 1
    MINUS = 2
    REST = 3
    BOTH = 4


class Kind(NamedTuple):
    """What all parameters of a launch have in common; ``side`` is None but in measuring updates.

    ``even``: their sizes are multiples of 4.
    """

    param: torch.dtype
    even: bool
    grad: torch.dtype | None = None
    side: torch.dtype | None = None
    limit: str = ""
    hessian: str = "none"
    glass: bool = False
    measuring: bool = False
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """What a kernel is told: the table where it runs, which chunks of it, and of what kind.

    ``runs`` of memory is what its parameters consist of at most, 0 if all lie in row-major order.
    ``memory`` is for the kernels: it lasts as long as the chunks are the same.
    """

    kind: Kind
    runs: int
    chunk_tensor: Tensor
    chunk_index: Tensor
    count: int
    block: int
    memory: dict[Hashable, Any]
    table: Tensor
    aligned: bool
