"""The table that both kernel sources read: a column for every parameter, a row for every quantity.

Addresses, sizes and this step's numbers stand in one array of 64-bit words, so that a pass over any
number of tensors is one launch and one transfer. In memory a column is contiguous: what a kernel
needs to know of one parameter stands together. `Row` is the only place where the order of rows is
written down: the Triton source takes it from here, and the C++ source is compiled with it.

A launch works through chunks of many tensors. Chunk ``i`` is elements ``chunk_index[i] * block``
and following of the parameter in column ``chunk_tensor[i]``, in memory order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..sharding import block_of, local
from ..site import Draw, Site
from ..topography import Rates

if TYPE_CHECKING:
    from .base import Kernels

__all__ = [
    "DIMS",
    "Goal",
    "Kind",
    "Launch",
    "Plan",
    "Row",
    "conformed",
    "is_dense",
    "write_numbers",
]

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


_STATE = {
    "probe_center": Row.CENTER,
    "grad_avg": Row.GRAD_AVG,
    "grad_sq": Row.GRAD_SQ,
    "glass_density": Row.GLASS,
    "hess": Row.HESS,
    "position": Row.MASTER,
}

WORTH_A_LAUNCH = 1 << 25
"""Elements from which on those of even size get a launch of their own, which is the faster one."""

HOME, SWAPPED, ASIDE, MASTER = range(4)
"""Where mu is; see `Plan`."""

Send = Callable[[np.ndarray, torch.device], Tensor]
"""Makes an array available on a device."""


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
    """What a kernel is told: the table where it runs, which chunks of it, and of what kind."""

    kind: Kind
    permuted: bool
    chunk_tensor: Tensor
    chunk_index: Tensor
    count: int
    block: int
    table: Tensor
    aligned: bool


_Chunks = tuple[Kind, bool, Tensor, Tensor, int, int]
"""The first fields of a `Launch`, which last."""


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def conformed(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in the memory layout of ``like``: itself where it has that already."""
    same = tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous())
    return tensor if same else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def _memory_order(site: Site) -> tuple[int, list[int], list[int]]:
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


class Plan:
    """The table of a list of sites of one device, and everything about them that lasts.

    What may change from step to step is read anew by `refresh`. ``modes`` says where each
    parameter's mu is: in the parameter itself (HOME), where nu was, the two having changed places
    (SWAPPED), in memory of its own (ASIDE, at ``aside``), or in a low-precision parameter's master
    copy (MASTER). Whether a chunk has really gone there is for the kernels to say, in AWAY: a move
    may be interrupted before or after its launch.
    """

    def __init__(self, sites: Sequence[Site], kernels: Kernels):
        self.sites = list(sites)
        self.column = {site: i for i, site in enumerate(self.sites)}
        self._kernels = kernels
        params = [local(site.param) for site in self.sites]
        self.device = params[0].device
        self.shapes = [param.shape for param in params]
        self.strides = [param.stride() for param in params]
        self.dtypes = [param.dtype for param in params]
        self._sharded = any(site.sharded for site in self.sites)
        self.low = np.asarray([site.low_precision for site in self.sites])
        self._memory = np.zeros((len(self.sites), Row.ROWS), dtype=np.int64)
        self.host = self._memory.T
        self.host[Row.SKIPPED] = [site.skipped.data_ptr() for site in self.sites]
        self.host[Row.INDEX] = [site.index for site in self.sites]
        self.host[Row.NUMEL] = [param.numel() for param in params]
        self._dense, self._permuted = self._describe(params)
        chunks = -(-self.host[Row.NUMEL] // kernels.move_block)
        self._away = torch.zeros(int(chunks.sum()), dtype=torch.int32, device=self.device)
        self.host[Row.AWAY] = self._away.data_ptr() + 4 * (np.cumsum(chunks) - chunks)
        self.modes = np.full(len(self.sites), HOME)
        self.aside = np.zeros(len(self.sites), dtype=np.int64)
        self.usable = np.zeros(len(self.sites), dtype=bool)
        self._states: list[Any] = [None]  # unlike any that there may be, to begin with
        self._placed: list[Tensor] = []
        self._places = np.zeros(0, dtype=np.int64)
        self._chunks: dict[Hashable, list[_Chunks]] = {}
        self._addresses: list[int] = []
        self._state_addresses: list[int] = []
        self._sent: tuple[np.ndarray, Tensor] | None = None
        self._selected: tuple[Sequence[Site], np.ndarray] = (), np.zeros(0, dtype=np.int64)

    def _describe(self, params: Sequence[Tensor]) -> tuple[list[bool], list[bool]]:
        """Fill in each parameter's order in memory; who has few runs of it, and who several."""
        dense, permuted = [], []
        for i, (site, param) in enumerate(zip(self.sites, params, strict=True)):
            self.host[Row.FIRST, i], sizes, strides = _memory_order(site)
            dense.append(param.numel() > 0 and is_dense(param) and len(sizes) <= DIMS)
            permuted.append(len(sizes) > 1 or strides not in ([], [1]))
            if dense[-1]:
                pad = DIMS - len(sizes)
                self.host[Row.SIZES : Row.SIZES + DIMS, i] = [1] * pad + sizes
                self.host[Row.STRIDES : Row.STRIDES + DIMS, i] = [0] * pad + strides
        return dense, permuted

    def params(self, columns: Iterable[int] | None = None) -> list[Tensor]:
        """What this process holds of the parameters, of all or of those in these columns."""
        sites = self.sites if columns is None else [self.sites[c] for c in columns]
        if self._sharded:
            return [local(site.param) for site in sites]
        return [site.param for site in sites]

    def has(self, sites: Sequence[Site]) -> bool:
        """Whether these sites have columns here."""
        return sites == self.sites or all(map(self.column.__contains__, sites))

    def columns(self, sites: Sequence[Site]) -> np.ndarray:
        """Where these sites stand; not to be changed."""
        if sites != self._selected[0]:
            columns = np.asarray([self.column[site] for site in sites], dtype=np.int64)
            self._selected = list(sites), columns
        return self._selected[1]

    # ---- filling ------------------------------------------------------------------------------

    def refresh(self, *, states: bool = True) -> bool:
        """Where parameters and their ``states`` are now; False if a parameter's layout changed."""
        params = self.params()
        layout = list(map(Tensor.stride, params)), list(map(Tensor.size, params))
        addresses = list(map(Tensor.data_ptr, params))
        moved = addresses != self._addresses
        if layout != (self.strides, self.shapes):
            return False
        if moved and [param.dtype for param in params] != self.dtypes:
            return False
        if moved:
            self.host[Row.PARAM] = self._addresses = addresses
        if not states:
            return True
        now = list(chain.from_iterable([site.state.values() for site in self.sites]))
        if len(now) != len(self._states) or not all(map(operator.is_, now, self._states)):
            self._look_again()
            self._states = now
        there = map(local, self._placed) if self._sharded else self._placed
        addresses = list(map(Tensor.data_ptr, there))
        if addresses != self._state_addresses:
            self._memory.reshape(-1)[self._places] = self._state_addresses = addresses
        return True

    def _look_again(self) -> None:
        """Find out who has which tensors in its state, and whom the kernels can take."""
        held = [
            (i * Row.ROWS + row, site.state[name])
            for name, row in _STATE.items()
            for i, site in enumerate(self.sites)
            if name in site.state
        ]
        self._places = np.asarray([place for place, _ in held], dtype=np.int64)
        self._placed = [tensor for _, tensor in held]
        self.host[Row.CENTER] = 0
        self._state_addresses = []
        self.usable = np.asarray([self._is_usable(i) for i in range(len(self.sites))])

    def _is_usable(self, i: int) -> bool:
        """Dense, of a dtype the kernels know, with a state laid out alike."""
        state, dtype = self.sites[i].state, self.dtypes[i]
        if not self._dense[i] or "probe_center" not in state:
            return False
        if not self._kernels.supports(dtype) or (self.low[i] and "position" not in state):
            return False
        there = [local(state[name]) for name in _STATE if name in state]
        layout = (self.shapes[i], self.strides[i])
        return all((tensor.shape, tensor.stride()) == layout for tensor in there)

    def stand(self) -> None:
        """Where mu and nu are to be found, as ``modes`` say; nu is mu where there is no state."""
        param, center, master = self.host[[Row.PARAM, Row.CENTER, Row.MASTER]]
        center = np.where(center == 0, param, center)
        home = np.where(self.low, master, param)
        self.host[Row.MU] = np.choose(self.modes, (home, center, self.aside, master))
        self.host[Row.NU] = np.where(self.modes == SWAPPED, param, center)

    def launches(
        self, columns: np.ndarray, block: int, send: Send, *traits: Sequence[Any]
    ) -> list[Launch]:
        """One launch for each kind, over all chunks of these columns.

        ``traits`` are what makes the kinds, beside dtype and size: for each column a gradient's
        dtype, a side's, and options.
        """
        key = (block, columns.tobytes(), *map(tuple, traits))
        made = self._chunks.get(key)
        if made is None:
            if len(self._chunks) >= 64:
                self._chunks.clear()  # other parameters got gradients every time
            made = self._chunks[key] = self._cut(columns.tolist(), block, send, traits)
        if self.device.type == "cpu" or send != self._kernels.send:
            table = send(self._memory, self.device)
        elif self._sent is not None and np.array_equal(self._sent[0], self._memory):
            table = self._sent[1]  # a copy that still holds is not made again
        else:
            table = send(self._memory, self.device)
            self._sent = self._memory.copy(), table
        aligned = not (self.host[: Row.SKIPPED] & 15).any()
        return [Launch(*chunks, table, aligned) for chunks in made]

    def _cut(
        self, columns: Sequence[int], block: int, send: Send, traits: Sequence[Sequence[Any]]
    ) -> list[_Chunks]:
        """The chunks of each kind."""
        even = self.host[Row.NUMEL, columns] % 4 == 0
        if send == self._kernels.send and self.host[Row.NUMEL, columns].sum() < WORTH_A_LAUNCH:
            even &= even.all()  # one launch for all, if not the fastest; captured ones cost nothing
        members: dict[Kind, list[int]] = {}
        for i, c in enumerate(columns):
            grad, side, options = (*(trait[i] for trait in traits), None, None, ())[:3]
            kind = Kind(self.dtypes[c], bool(even[i]), grad, side, *(options or ()))
            members.setdefault(kind, []).append(c)
        made = []
        for kind, mine in members.items():
            counts = -(-self.host[Row.NUMEL, mine] // block)
            owner = np.repeat(np.asarray(mine, dtype=np.int32), counts)
            first = np.repeat(np.cumsum(counts) - counts, counts)
            index = (np.arange(len(owner)) - first).astype(np.int32)
            permuted = any(self._permuted[c] for c in mine)
            chunks = send(owner, self.device), send(index, self.device)
            made.append((kind, permuted, *chunks, len(owner), block))
        return made


def write_numbers(
    host: np.ndarray,
    columns: np.ndarray,
    radii: Sequence[float] | np.ndarray,
    draw: Draw,
    rates: Sequence[Rates] = (),
) -> None:
    """This step's numbers, in these columns; without ``rates`` those of a move."""
    host[Row.SEED], host[Row.STEP] = draw
    numbers = host.view(np.float64)
    numbers[Row.RADIUS, columns] = radii
    distinct = {id(rate): rate for rate in rates}
    names = np.asarray([id(rate) for rate in rates]) if len(distinct) > 1 else None
    for name, r in distinct.items():
        there = columns if names is None else columns[names == name]
        numbers[Row.LR : Row.ROWS, there] = np.asarray(
            [
                [r.lr, min(r.lr_min, r.lr), r.eps, r.step_fraction, r.lookahead],
                [r.lr * r.weight_decay, r.beta1, 1 - r.beta1, r.beta2, 1 - r.beta2],
                [r.beta_topo, 1 - r.beta_topo, r.grad_weight, r.sq_weight, r.topo_weight],
            ]
        ).reshape(-1, 1)
