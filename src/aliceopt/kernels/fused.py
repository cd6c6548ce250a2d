"""The device work in a few Triton launches, whatever the number of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..layout import is_dtensor, local
from ..site import Draw, Site, state_dtype
from . import triton_kernels as kernels
from . import triton_parts as parts
from .base import Job, Round
from .eager import EagerBackend, sum_dtype
from .pointing import go_home, is_swappable, point
from .recording import Moment, Rows, Sender
from .sides import Sides
from .tables import LaunchKind, Table, is_even, is_supported, laid_out, numbers_of, side_dtype

__all__ = ["TritonBackend"]

_DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_WARPS = 4
_MOST_TABLES = 64


class _Route(NamedTuple):
    """How a list of sites travels: pointed, copied by the kernels, or copied eagerly."""

    pointed: list[Site]
    copied: list[Table]
    others: list[Site]


class TritonBackend:
    """Multi-tensor kernels for every site they can take; the rest is done eagerly.

    Left to `EagerBackend` are parameters whose memory has gaps or more than five separate runs,
    and the first departure of a parameter that has no state yet. With ``sides``, which captured
    steps have, parameters point at their probe points where they can.
    """

    name = "triton"

    def __init__(self, sender: Sender | None = None, sides: Sides | None = None) -> None:
        self._sender = sender or Sender()
        self._sides = sides
        self._eager = EagerBackend()
        self._tables: dict[tuple[Any, ...], Table] = {}
        self._able: dict[int, tuple[Site, bool]] = {}
        self._pointed: dict[int, bool] = {}
        self._routes: dict[tuple[int, ...], _Route] = {}
        self._aside: dict[int, int] = {}
        self._buffers: list[Tensor] = []

    # ---- moving -------------------------------------------------------------------------------

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Take positions aside and go to the first probe point."""
        self._aside.clear()
        self._buffers.clear()
        route = self._route(sites)
        if route.others:
            self._eager.depart(route.others, round_name, draw)
        for site in route.pointed:
            site.home = site.param.data
        self._point(route.pointed, round_name)
        for table in route.copied:
            self._take_aside(table)
            self._launch_move(table, round_name, draw, depart=True)

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to a probe point."""
        route = self._route(sites)
        if route.others:
            self._eager.move(route.others, round_name, draw)
        self._point(route.pointed, round_name)
        for table in route.copied:
            self._launch_move(table, round_name, draw)

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions."""
        route = self._route(sites)
        if route.others:
            self._eager.rest(route.others)
        go_home(route.pointed)
        for table in route.copied:
            self._launch_move(table, "rest", Draw(0, 0))

    def _route(self, sites: Sequence[Site]) -> _Route:
        names = tuple(map(id, sites))
        known = self._routes.get(names)
        if known is not None and any(table.is_outdated() for table in known.copied):
            self._forget()
        elif known is not None:
            for table in known.copied:
                table.refresh()
            return known
        others = [s for s in sites if s.position is not None or not self._can_move(s)]
        left_out = set(map(id, others))
        pointed: list[Site] = []
        groups: dict[tuple[Any, ...], list[Site]] = {}
        for site in sites:
            if not site.numel or id(site) in left_out:
                continue
            if self._pointed[id(site)]:
                pointed.append(site)
            else:
                groups.setdefault(("move", site.param.dtype, is_even(site)), []).append(site)
        tables = [self._table(key, there) for key, there in groups.items()]
        route = _Route(pointed, tables, others)
        if not others:
            self._routes[names] = route  # once all have state, they keep going this way
        return route

    def _point(self, sites: Sequence[Site], round_name: Round) -> None:
        if self._sides is not None:
            point(sites, [self._sides.place(site, round_name) for site in sites])

    def _forget(self) -> None:
        self._tables.clear()
        self._routes.clear()
        self._able.clear()

    def _can(self, site: Site) -> bool:
        known = self._able.get(id(site))
        if known is None:
            known = self._able[id(site)] = (site, is_supported(site))
            self._pointed[id(site)] = self._sides is not None and is_swappable(site)
        return known[1]

    def _can_move(self, site: Site) -> bool:
        return self._can(site) and (site.ready or self._pointed[id(site)])

    def _table(self, key: tuple[Any, ...], sites: list[Site]) -> Table:
        full_key = (*key, *map(id, sites))
        table = self._tables.get(full_key)
        if table is not None and table.is_outdated():
            self._forget()
            table = None
        if table is None:
            if len(self._tables) >= _MOST_TABLES and type(self._sender) is Sender:
                self._forget()  # other parameters got gradients every time
            table = Table(sites, self._sender, moving=key[0] in ("move", "sides"))
            self._tables[full_key] = table
        table.refresh()
        return table

    def _take_aside(self, table: Table) -> None:
        dtype = state_dtype(table.params[0])
        buffer = torch.empty(table.aside_size, dtype=dtype, device=table.device)
        self._buffers.append(buffer)
        addresses = buffer.data_ptr() + table.aside_offsets * dtype.itemsize
        self._aside.update(zip(map(id, table.sites), addresses.tolist(), strict=True))

    def _launch_move(self, table: Table, goal: str, draw: Draw, *, depart: bool = False) -> None:
        table.host[parts.POSITION.value] = [self._aside[id(site)] for site in table.sites]
        table.host[parts.CONFIG.value] = table.group_column
        rows = Rows([[site] for site in table.one_per_group], numbers_of)
        param, state = table.params[0].dtype, state_dtype(table.params[0])
        device_table = table.on_device()
        with table.on():
            kernels.move_kernel[(table.num_chunks,)](
                device_table,
                table.chunk_tensor,
                table.chunk_index,
                self._sender.numbers(rows, Moment(draw, {}), table.device),
                len(table.sites),
                GOAL=parts.GOALS[goal],
                DEPART=depart,
                P=_DTYPES[param],
                S=_DTYPES[state],
                LOW=param != state,
                PERMUTED=table.permuted,
                ALIGNED=table.aligned,
                EVEN=table.even,
                BLOCK=table.block,
                num_warps=_WARPS,
            )

    def write_sides(self, sites: Sequence[Site], draw: Draw) -> None:
        """Write both probe points of sites that have places for them."""
        groups: dict[tuple[Any, ...], list[Site]] = {}
        for site in sites:
            groups.setdefault(("sides", site.param.dtype, is_even(site)), []).append(site)
        for key, there in groups.items():
            self._launch_sides(self._table(key, there), draw)

    def _launch_sides(self, table: Table, draw: Draw) -> None:
        self._fill_places(table)
        table.host[parts.CONFIG.value] = table.group_column
        rows = Rows([[site] for site in table.one_per_group], numbers_of)
        device_table = table.on_device()
        with table.on():
            kernels.sides_kernel[(table.num_chunks,)](
                device_table,
                table.chunk_tensor,
                table.chunk_index,
                self._sender.numbers(rows, Moment(draw, {}), table.device),
                len(table.sites),
                S=_DTYPES[table.params[0].dtype],
                PERMUTED=table.permuted,
                ALIGNED=table.aligned,
                EVEN=table.even,
                BLOCK=table.block,
                num_warps=_WARPS,
            )

    def _fill_places(self, table: Table) -> None:
        assert self._sides is not None
        centers = [self._sides.center(site) for site in table.sites]
        table.host[parts.CENTER.value] = [nu.data_ptr() for nu in centers]
        for row, side in ((parts.AT_PLUS.value, "plus"), (parts.AT_MINUS.value, "minus")):
            places = [self._sides.place(site, side) for site in table.sites]
            table.host[row] = [place.data_ptr() for place in places]

    def square_sum(self, sites: Sequence[Site]) -> Tensor:
        """Sum of squares of all finite entries of ``.grad``, over all shards."""
        plain: list[Site] = []
        others: list[Site] = []
        groups: dict[tuple[Any, ...], list[Site]] = {}
        for site in sites:
            mine = self._can(site) and not is_dtensor(site.param)
            (plain if mine else others).append(site)
        total = torch.zeros((), dtype=sum_dtype(sites), device=local(sites[0].param).device)
        if others:
            total += self._eager.square_sum(others)
        for site in plain:
            if site.param.grad is not None and site.numel:
                key = ("square", site.param.dtype, site.gradient.dtype, is_even(site))
                groups.setdefault(key, []).append(site)
        for key, there in groups.items():
            total += self._square_sum(self._table(key, there))
        return total

    def _square_sum(self, table: Table) -> Tensor:
        made = [
            laid_out(site.gradient, param, strides)
            for site, param, strides in zip(table.sites, table.params, table.strides, strict=True)
        ]
        table.host[parts.GRAD.value] = [grad.data_ptr() for grad in made]
        state = state_dtype(table.params[0])
        device_table = table.on_device()
        partial = torch.empty(table.num_chunks, dtype=state, device=table.device)
        with table.on():
            kernels.square_sum_kernel[(table.num_chunks,)](
                device_table,
                table.chunk_tensor,
                table.chunk_index,
                partial,
                len(table.sites),
                G=_DTYPES[made[0].dtype],
                S=_DTYPES[state],
                ALIGNED=table.aligned,
                EVEN=table.even,
                BLOCK=table.block,
                num_warps=_WARPS,
            )
        return partial.sum(dtype=torch.float64)

    # ---- updating -----------------------------------------------------------------------------

    def update(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of every job."""
        groups: dict[LaunchKind, list[Job]] = {}
        kinds: dict[tuple[Any, ...], LaunchKind] = {}
        others = []
        for job in jobs:
            site = job.site
            if not self._can(site):
                others.append(job)
            elif site.numel:
                # As telling as the kind within one step, and cheaper to make.
                grad, side = site.gradient, site.plus if site.plus is not None else site.minus
                dtypes = (site.param.dtype, grad.dtype, None if side is None else side.dtype)
                short = (id(job.rates), dtypes, site.home is None, site.numel % 4)
                kind = kinds.get(short)
                if kind is None:
                    ahead = self._sides is not None and site in self._sides
                    kind = kinds[short] = LaunchKind.of(job, ahead)
                groups.setdefault(kind, []).append(job)
        if others:
            self._eager.update(others, draw, clip)
        for kind, there in groups.items():
            table = self._table(kind, [job.site for job in there])
            keep = self._fill_gradients(table, there)
            if kind.ahead:
                self._fill_places(table)
            moment = Moment(draw, {job.site: job.rates for job in there})
            self._launch_update(table, kind, moment, clip)
            if kind.pointed:
                go_home(table.sites)
            del keep

    def _fill_gradients(self, table: Table, jobs: list[Job]) -> list[Tensor]:
        """Addresses of gradients, positions and counters; the tensors behind them are returned."""
        centers = [
            laid_out(job.site.gradient, param, strides)
            for job, param, strides in zip(jobs, table.params, table.strides, strict=True)
        ]
        kept = list(centers)
        table.host[parts.GRAD.value] = [grad.data_ptr() for grad in centers]
        if jobs[0].measuring:
            for row, side in ((parts.PLUS.value, "plus"), (parts.MINUS.value, "minus")):
                dtype = side_dtype(jobs[0].site)
                grads = [
                    laid_out(getattr(job.site, side), param, strides, dtype)
                    for job, param, strides in zip(jobs, table.params, table.strides, strict=True)
                ]
                table.host[row] = [grad.data_ptr() for grad in grads]
                kept += grads
        table.host[parts.SKIPPED.value] = [site.skipped.data_ptr() for site in table.sites]
        positions = [self._position_pointer(site) for site in table.sites]
        table.host[parts.POSITION.value] = positions
        if table.sites[0].home is not None:
            table.host[parts.PARAM.value] = positions
        return kept

    def _position_pointer(self, site: Site) -> int:
        """Where mu stands during the update."""
        if site.home is not None:
            return site.home.data_ptr()
        if site.position is not None:
            return site.position.data_ptr()
        return self._aside[id(site)]

    def _launch_update(
        self, table: Table, kind: LaunchKind, moment: Moment, clip: Tensor | None
    ) -> None:
        state = state_dtype(table.params[0])
        rows, table.host[parts.CONFIG.value] = Rows.by_rates(table.sites, moment.rates, numbers_of)
        device_table = table.on_device()
        with table.on():
            kernels.update_kernel[(table.num_chunks,)](
                device_table,
                table.chunk_tensor,
                table.chunk_index,
                self._sender.numbers(rows, moment, table.device),
                device_table if clip is None else clip,
                len(table.sites),
                LIMIT=parts.LIMITS[kind.limit],
                HESSIAN=parts.HESSIANS[kind.hessian],
                USE_GLASS=kind.glass,
                MEASURING=kind.measuring,
                MAXIMIZE=kind.maximize,
                CLIP=clip is not None,
                AHEAD=kind.ahead,
                P=_DTYPES[kind.param],
                G=_DTYPES[kind.grad],
                SIDE=_DTYPES[kind.side],
                S=_DTYPES[state],
                LOW=kind.param != state,
                PERMUTED=table.permuted,
                ALIGNED=table.aligned,
                EVEN=table.even,
                BLOCK=table.block,
                num_warps=_WARPS,
            )
