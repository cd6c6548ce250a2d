"""Filling the `table`: which sites have columns, where everything is now, and what to launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..layout import is_dense, memory_order
from ..sharding import local
from ..site import Draw, Site, distinct, state_dtype
from ..topography import Rates
from .table import DIMS, Kind, Launch, Row

if TYPE_CHECKING:
    from .base import Kernels

__all__ = ["Plan", "write_numbers"]

_STATE = {
    "probe_center": Row.CENTER,
    "position": Row.MASTER,
    "grad_avg": Row.GRAD_AVG,
    "grad_sq": Row.GRAD_SQ,
    "glass_density": Row.GLASS,
    "hess": Row.HESS,
}
"""A state's tensors; the first two are what moves need."""

_NEEDED = ("probe_center", "grad_avg", "grad_sq")
"""What no update can do without."""

WORTH_A_LAUNCH = 1 << 25
"""Elements from which on those of even size get a launch of their own, which is the faster one."""

HOME, SWAPPED, ASIDE, MASTER = range(4)
"""Where mu is; see `Plan`."""

Send = Callable[[np.ndarray, torch.device], Tensor]
"""Makes an array available on a device."""

_Chunks = tuple[Kind, int, Tensor, Tensor, int, int, dict[Hashable, Any]]
"""The first fields of a `Launch`, which last."""

_Room = tuple[torch.dtype, np.ndarray, np.ndarray, int]
"""A dtype, columns, where each of them begins in bytes, and how many elements they need."""


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
        self._whole: list[Tensor] = [site.param for site in self.sites]
        self._sharded = any(site.sharded for site in self.sites)
        params = self.params()
        self.device = params[0].device
        self.shapes = [param.shape for param in params]
        self.strides = [param.stride() for param in params]
        self.sizes = [param.numel() for param in params]
        self.dtypes = [param.dtype for param in params]
        self.low = np.asarray([site.low_precision for site in self.sites])
        self.any_low = bool(self.low.any())
        self._memory = np.zeros((len(self.sites), Row.ROWS), dtype=np.int64)
        self.host = self._memory.T
        self.host[Row.SKIPPED] = [site.skipped.data_ptr() for site in self.sites]
        self.host[Row.INDEX] = [site.index for site in self.sites]
        self.host[Row.NUMEL] = self.sizes
        self._dense, self._runs = self._describe(params)
        chunks = -(-self.host[Row.NUMEL] // kernels.move_block)
        self._away = torch.zeros(int(chunks.sum()), dtype=torch.int32, device=self.device)
        self.host[Row.AWAY] = self._away.data_ptr() + 4 * (np.cumsum(chunks) - chunks)
        self.modes = np.full(len(self.sites), HOME)
        self.away = np.where(self.low, MASTER, SWAPPED)
        """Modes of those that go no further than the center."""
        self.displaced = False  # whether a radius in the table may be positive
        self._stood: tuple[bytes, bytes] | None = None
        self.aside = np.zeros(len(self.sites), dtype=np.int64)
        self.usable = np.zeros(len(self.sites), dtype=bool)
        self.all_usable = False
        self._states = [site.state for site in self.sites]
        self._entries = -1  # in these states, when they were last looked at
        self._placed: list[Tensor] = []
        self._movers = 0
        self._places = np.zeros(0, dtype=np.int64)
        self._chunks: dict[Hashable, list[_Chunks]] = {}
        self._addresses: list[int] = []
        self._state_addresses: list[int] = []
        self._packed: tuple[bytes, list[_Room]] = b"", []
        self._sent: tuple[Tensor, bool] | None = None
        self._all = np.arange(len(self.sites))
        self._selected: tuple[Sequence[Site], np.ndarray] = self.sites, self._all

    def _describe(self, params: Sequence[Tensor]) -> tuple[list[bool], list[int]]:
        """Fill in each parameter's order in memory; whom kernels can take, and in how many runs.

        None where it is row-major order. A kernel that has to tell runs apart divides by all sizes
        in 32 bits.
        """
        dense, runs = [], []
        for i, (site, param) in enumerate(zip(self.sites, params, strict=True)):
            self.host[Row.FIRST, i], sizes, strides = memory_order(site.param)
            dense.append(param.numel() > 0 and is_dense(param) and len(sizes) <= DIMS)
            runs.append(0 if strides in ([], [1]) else len(sizes))
            if dense[-1]:
                pad = DIMS - len(sizes)
                self.host[Row.SIZES : Row.SIZES + DIMS, i] = [1] * pad + sizes
                self.host[Row.STRIDES : Row.STRIDES + DIMS, i] = [0] * pad + strides
        if any(runs):
            longest = self.host[Row.SIZES : Row.SIZES + DIMS].max(axis=0).tolist()
            dense = [d and most < 1 << 31 for d, most in zip(dense, longest, strict=True)]
        return dense, runs

    def params(self, columns: np.ndarray | None = None) -> list[Tensor]:
        """What this process holds of the parameters, of all or of those in these columns."""
        whole = self._whole if columns is None else self._of(self._whole, columns)
        return list(map(local, whole)) if self._sharded else whole

    def strides_of(self, columns: np.ndarray) -> list[tuple[int, ...]]:
        """How the parameters in these columns are laid out."""
        return self._of(self.strides, columns)

    def _of(self, values: list[Any], columns: np.ndarray) -> list[Any]:
        """What these columns have of it; mostly they are all there are."""
        if columns is self._all:
            return values
        return [values[c] for c in columns.tolist()]

    def has(self, sites: Sequence[Site]) -> bool:
        """Whether these sites have columns here."""
        return sites == self.sites or all(map(self.column.__contains__, sites))

    def columns(self, sites: Sequence[Site]) -> np.ndarray:
        """Where these sites stand; not to be changed."""
        if sites != self._selected[0]:
            if sites == self.sites:
                return self._all
            columns = np.asarray([self.column[site] for site in sites], dtype=np.int64)
            self._selected = list(sites), columns
        return self._selected[1]

    # ---- filling ------------------------------------------------------------------------------

    def refresh(self, *, layouts: bool = True, states: bool = True) -> bool:
        """Where parameters and ``states`` are now, at least what moves need of these.

        False if a parameter's layout changed or, while any is away, a state: it may have got more
        entries, or other memory. Where an entry was replaced, the whole plan is, by the next
        `Sites.bind`. Without ``layouts``, in mid-step, parameters in their places are as they were.
        """
        params = self.params()
        addresses = list(map(Tensor.data_ptr, params))
        moved = addresses != self._addresses
        if (layouts or moved) and (
            list(map(Tensor.stride, params)) != self.strides
            or list(map(Tensor.numel, params)) != self.sizes
        ):
            return False
        if moved:
            if {param.device for param in params} != {self.device}:
                raise RuntimeError(
                    f"parameters have left {self.device} in mid-training: build a new optimizer "
                    "where they are, and load this one's state_dict"
                )
            kinds = [(param.dtype, param.shape) for param in params]
            if kinds != list(zip(self.dtypes, self.shapes, strict=True)):
                return False
            self._stood = self._sent = None
            self.host[Row.PARAM] = self._addresses = addresses
        there = self._found(None if states else self._movers)
        same = there == self._state_addresses[: len(there)]
        same = same and (not states or sum(map(len, self._states)) == self._entries)
        if same or self.modes.any():
            return same  # those that are away go home by what they left by
        self._look_again()  # what lies elsewhere may lie there otherwise
        return True

    def _found(self, count: int | None = None) -> list[int]:
        """Where the states' tensors are, or the first of them."""
        there = self._placed[:count]
        return list(map(Tensor.data_ptr, map(local, there) if self._sharded else there))

    def held(self, column: int, row: Row) -> Tensor:
        """What a state had there when it was last looked at; somebody may have replaced it."""
        return local(self._placed[self._places.tolist().index(column * Row.ROWS + row)])

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
        self._movers = sum(place % Row.ROWS in (Row.CENTER, Row.MASTER) for place, _ in held)
        self._stood = self._sent = None
        self.host[list(_STATE.values())] = 0
        self._memory.reshape(-1)[self._places] = found = self._found()
        self.usable = np.asarray([self._is_usable(i) for i in range(len(self.sites))])
        self.all_usable = bool(self.usable.all())
        # Last: what was interrupted before is done again.
        self._state_addresses, self._entries = found, sum(map(len, self._states))

    def _is_usable(self, i: int) -> bool:
        """Dense, of a dtype the kernels know, with a state laid out alike, in state precision."""
        site, dtype = self.sites[i], self.dtypes[i]
        state, state_is = site.state, (state_dtype(site.param), self.device)
        if not self._dense[i] or not all(name in state for name in _NEEDED):
            return False
        if not self._kernels.supports(dtype) or (self.low[i] and "position" not in state):
            return False
        there = [local(state[name]) for name in _STATE if name in state]
        layout = (self.shapes[i], self.strides[i])
        return all(
            (t.shape, t.stride()) == layout and (t.dtype, t.device) == state_is for t in there
        )

    def stand(self) -> None:
        """Where mu and nu are to be found, as ``modes`` say; nu is mu where there is no state."""
        now = self.modes.tobytes(), self.aside.tobytes()
        if now == self._stood:
            return  # mostly it is as it was in the last step
        self._stood = self._sent = None
        param, center, master = self.host[[Row.PARAM, Row.CENTER, Row.MASTER]]
        center = np.where(center == 0, param, center)
        home = np.where(self.low, master, param)
        self.host[Row.MU] = np.choose(self.modes, (home, center, self.aside, master))
        self.host[Row.NU] = np.where(self.modes == SWAPPED, param, center)
        self._stood = now

    def packed(self, columns: np.ndarray) -> list[_Room]:
        """How parameters would lie one after the other in memory, aligned, dtype by dtype."""
        key = columns.tobytes()
        if self._packed[0] != key:
            made = []
            for dtype in set(self._of(self.dtypes, columns)):
                mine = np.asarray([c for c in columns.tolist() if self.dtypes[c] == dtype])
                ends = np.cumsum(-(-self.host[Row.NUMEL, mine] // 16) * 16)
                starts = np.concatenate([[0], ends[:-1]]) * dtype.itemsize
                made.append((dtype, mine, starts, int(ends[-1])))
            self._packed = key, made
        return self._packed[1]

    def swapped(self, columns: np.ndarray) -> list[tuple[bool, np.ndarray]]:
        """The columns in two parts: False, and those where mu and nu have changed places, True."""
        swapped = self.modes[columns] == SWAPPED
        count = int(np.count_nonzero(swapped))
        if count in (0, len(columns)):
            return [(count > 0, columns)] if len(columns) else []
        return [(False, columns[~swapped]), (True, columns[swapped])]

    def launches(
        self,
        columns: np.ndarray,
        block: int,
        send: Send,
        dtypes: Sequence[Sequence[torch.dtype | None]] = (),
        options: Sequence[Any] = (),
    ) -> list[Launch]:
        """One launch for each kind, over all chunks of these columns.

        Kinds differ in the parameter's dtype and size; in ``dtypes``, for each column those of its
        gradient and of its sides; and in ``options``, the rest of `Kind`, a list of them if not all
        columns have the same.
        """
        key = (block, columns.tobytes(), *map(tuple, dtypes), tuple(options))
        made = self._chunks.get(key)
        if made is None:
            if len(self._chunks) >= 64:
                self._chunks.clear()  # other parameters got gradients every time
            made = self._chunks[key] = self._cut(columns.tolist(), block, send, dtypes, options)
        table, aligned = self._table(send)
        return [Launch(*chunks, table, aligned) for chunks in made]

    def _table(self, send: Send) -> tuple[Tensor, bool]:
        """The table where kernels run, and whether all addresses in it are multiples of 16.

        What was sent and still holds is not sent again.
        """
        usual = send == self._kernels.send
        if usual and self._sent is not None:
            return self._sent
        aligned = not (self._memory[:, : Row.SKIPPED] & 15).any()
        sent = send(self._memory, self.device), aligned
        if usual:
            self._sent = sent
        return sent

    def write(self, row: Row, columns: np.ndarray, addresses: Sequence[int]) -> None:
        """Put addresses into the table."""
        self._sent = None
        self.host[row, slice(None) if columns is self._all else columns] = addresses

    def write_numbers(
        self, sites: Sequence[Site], columns: np.ndarray, draw: Draw, rates: Sequence[Rates] = ()
    ) -> None:
        """Put this step's numbers of these sites into the table."""
        self._sent = None
        radii = [site.radius for site in sites]
        away, every = any(radii), columns is self._all
        there = slice(None) if every else columns
        write_numbers(self.host, there, radii if away else 0.0, draw, rates)
        self.displaced = away or (self.displaced and not every)

    def _cut(
        self,
        columns: Sequence[int],
        block: int,
        send: Send,
        dtypes: Sequence[Sequence[torch.dtype | None]],
        options: Sequence[Any],
    ) -> list[_Chunks]:
        """The chunks of each kind."""
        even = self.host[Row.NUMEL, columns] % 4 == 0
        if send == self._kernels.send and self.host[Row.NUMEL, columns].sum() < WORTH_A_LAUNCH:
            even &= even.all()  # one launch for all, if not the fastest; captured ones cost nothing
        members: dict[Kind, list[int]] = {}
        for i, c in enumerate(columns):
            grad, side = (*(of_column[i] for of_column in dtypes), None, None)[:2]
            mine = options[i] if isinstance(options, list) else options
            kind = Kind(self.dtypes[c], bool(even[i]), grad, side, *mine)
            members.setdefault(kind, []).append(c)
        made: list[_Chunks] = []
        for kind, alike in members.items():
            counts = -(-self.host[Row.NUMEL, alike] // block)
            owner = np.repeat(np.asarray(alike, dtype=np.int32), counts)
            first = np.repeat(np.cumsum(counts) - counts, counts)
            index = (np.arange(len(owner)) - first).astype(np.int32)
            runs = max(self._runs[c] for c in alike)
            chunks = send(owner, self.device), send(index, self.device)
            made.append((kind, runs, *chunks, len(owner), block, {}))
        return made


def write_numbers(
    host: np.ndarray,
    columns: np.ndarray | slice,
    radii: Sequence[float] | float,
    draw: Draw,
    rates: Sequence[Rates] = (),
) -> None:
    """This step's numbers, in these columns; without ``rates`` those of a move."""
    host[Row.SEED], host[Row.STEP] = draw
    numbers = host.view(np.float64)
    numbers[Row.RADIUS, columns] = radii
    names = np.asarray([id(rate) for rate in distinct(rates)])
    for r in {id(rate): rate for rate in distinct(rates)}.values():
        there = columns if len(names) == 1 else np.arange(host.shape[1])[columns][names == id(r)]
        numbers[Row.LR : Row.ROWS, there] = np.asarray(
            [
                [r.lr, min(r.lr_min, r.lr), r.eps, r.step_fraction, r.lookahead],
                [r.lr * r.weight_decay, r.beta1, 1 - r.beta1, r.beta2, 1 - r.beta2],
                [r.beta_topo, 1 - r.beta_topo, r.grad_weight, r.sq_weight, r.topo_weight],
            ]
        ).reshape(-1, 1)
