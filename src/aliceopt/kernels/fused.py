"""The device work in a few Triton launches, whatever the number of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from ..layout import is_dtensor, local
from ..site import Draw, Site, state_dtype
from . import triton_kernels as tk
from .base import Job, Round
from .eager import EagerBackend, sum_dtype
from .pointing import go_home, is_swappable, point
from .recording import Moment, Rehearsal, Rows, Sender
from .tables import Table, is_supported, laid_out, side_dtype

__all__ = ["TritonBackend"]

_DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_WARPS = 4
_MOST_TABLES = 64


class TritonBackend:
    """Multi-tensor kernels for every site they can take; the rest is done eagerly.

    Left to `EagerBackend` are parameters whose memory has gaps or more than five separate runs,
    and the first departure of a parameter that has no state yet.
    """

    name = "triton"

    def __init__(self, sender: Sender | None = None) -> None:
        self._sender = sender or Sender()
        self._eager = EagerBackend()
        self._tables: dict[tuple[Any, ...], Table] = {}
        self._able: dict[int, tuple[Site, bool]] = {}
        self._swaps: dict[int, bool] = {}
        self._routes: dict[tuple[int, ...], list[tuple[bool, Table]]] = {}
        self._aside: dict[int, int] = {}
        self._buffers: list[Tensor] = []

    # ---- moving -------------------------------------------------------------------------------

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Take positions aside and go to the first probe point."""
        self._aside.clear()
        self._buffers.clear()
        tables, others = self._route(sites)
        if others:
            self._eager.depart(others, round_name, draw)
        for swapping, table in tables:
            if swapping:
                self._send_away(table, round_name, draw)
            else:
                self._take_aside(table)
                self._launch_move(table, round_name, draw, depart=True)

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to a probe point."""
        tables, others = self._route(sites)
        if others:
            self._eager.move(others, round_name, draw)
        for swapping, table in tables:
            if swapping and round_name == "center":
                point(table.sites, [site.state["probe_center"] for site in table.sites])
            else:
                self._launch_move(table, round_name, draw)

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions."""
        tables, others = self._route(sites)
        if others:
            self._eager.rest(others)
        for swapping, table in tables:
            if swapping:
                go_home(table.sites)
            else:
                self._launch_move(table, "rest", Draw(0, 0))

    def _route(self, sites: Sequence[Site]) -> tuple[list[tuple[bool, Table]], list[Site]]:
        """Tables of those the kernels move, and the sites to be moved eagerly."""
        names = tuple(map(id, sites))
        known = self._routes.get(names)
        if known is not None and any(table.is_outdated() for _, table in known):
            self._forget()
        elif known is not None:
            for _, table in known:
                table.refresh()
            return known, []
        others = [s for s in sites if s.position is not None or not s.ready or not self._can(s)]
        left_out = set(map(id, others))
        groups: dict[tuple[Any, ...], list[Site]] = {}
        for site in sites:
            if site.numel and id(site) not in left_out:
                key = ("move", self._swaps[id(site)], site.param.dtype, site.numel % 4 == 0)
                groups.setdefault(key, []).append(site)
        tables = [(bool(key[1]), self._table(key, there)) for key, there in groups.items()]
        if not others:
            self._routes[names] = tables  # once all have state, they keep going this way
        return tables, others

    def _send_away(self, table: Table, round_name: Round, draw: Draw) -> None:
        """Point parameters at their probe centers, or at a scratch copy displaced from them."""
        for site in table.sites:
            site.home = site.param.data
        if round_name == "center":
            point(table.sites, [site.state["probe_center"] for site in table.sites])
            return
        dtype = state_dtype(table.params[0])
        buffer = torch.empty(table.aside_size, dtype=dtype, device=table.device)
        if isinstance(self._sender, Rehearsal):
            buffer.zero_()  # nothing will be written to it, and it will be read
        self._buffers.append(buffer)
        places = zip(table.params, table.strides, table.aside_offsets.tolist(), strict=True)
        point(
            table.sites,
            [buffer.as_strided(param.shape, strides, start) for param, strides, start in places],
        )
        table.refresh()
        self._launch_move(table, round_name, draw)

    def _forget(self) -> None:
        self._tables.clear()
        self._routes.clear()
        self._able.clear()

    def _can(self, site: Site) -> bool:
        known = self._able.get(id(site))
        if known is None:
            known = self._able[id(site)] = (site, is_supported(site))
            captured = type(self._sender) is not Sender
            self._swaps[id(site)] = captured and is_swappable(site)
        return known[1]

    def _table(self, key: tuple[Any, ...], sites: list[Site]) -> Table:
        full_key = (*key, *map(id, sites))
        table = self._tables.get(full_key)
        if table is not None and table.is_outdated():
            self._forget()
            table = None
        if table is None:
            if len(self._tables) >= _MOST_TABLES and type(self._sender) is Sender:
                self._forget()  # other parameters got gradients every time
            table = Table(sites, self._sender, moving=key[0] == "move")
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
        if table.sites[0].home is None:
            table.host[tk.POSITION.value] = [self._aside[id(site)] for site in table.sites]
        table.host[tk.CONFIG.value] = table.group_column
        rows = Rows([[site] for site in table.one_per_group], _numbers)
        param, state = table.params[0].dtype, state_dtype(table.params[0])
        device_table = table.on_device()
        with table.on():
            tk.move_kernel[(table.num_chunks,)](
                device_table,
                table.chunk_tensor,
                table.chunk_index,
                self._sender.numbers(rows, Moment(draw, {}), table.device),
                len(table.sites),
                GOAL=tk.GOALS[goal],
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
                even = site.numel % 4 == 0
                key = ("square", site.param.dtype, site.gradient.dtype, even)
                groups.setdefault(key, []).append(site)
        for key, there in groups.items():
            total += self._square_sum(self._table(key, there))
        return total

    def _square_sum(self, table: Table) -> Tensor:
        made = [
            laid_out(site.gradient, param, strides)
            for site, param, strides in zip(table.sites, table.params, table.strides, strict=True)
        ]
        table.host[tk.GRAD.value] = [grad.data_ptr() for grad in made]
        state = state_dtype(table.params[0])
        device_table = table.on_device()
        partial = torch.empty(table.num_chunks, dtype=state, device=table.device)
        with table.on():
            tk.square_sum_kernel[(table.num_chunks,)](
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
        groups: dict[tuple[Any, ...], list[Job]] = {}
        keys: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        others = []
        for job in jobs:
            site = job.site
            if not self._can(site):
                others.append(job)
            elif site.numel:
                # As telling as `_update_key` within one step, and cheaper to make.
                grad, side = site.gradient, site.plus if site.plus is not None else site.minus
                dtypes = (site.param.dtype, grad.dtype, None if side is None else side.dtype)
                short = (id(job.rates), dtypes, site.home is None, site.numel % 4)
                key = keys.get(short)
                if key is None:
                    key = keys[short] = _update_key(job)
                groups.setdefault(key, []).append(job)
        if others:
            self._eager.update(others, draw, clip)
        for key, there in groups.items():
            table = self._table(key, [job.site for job in there])
            keep = self._fill_gradients(table, there)
            moment = Moment(draw, {job.site: job.rates for job in there})
            self._launch_update(table, key, moment, clip)
            if there[0].site.home is not None:
                go_home(table.sites)
            del keep

    def _fill_gradients(self, table: Table, jobs: list[Job]) -> list[Tensor]:
        """Addresses of gradients, positions and counters; the tensors behind them are returned."""
        centers = [
            laid_out(job.site.gradient, param, strides)
            for job, param, strides in zip(jobs, table.params, table.strides, strict=True)
        ]
        kept = list(centers)
        table.host[tk.GRAD.value] = [grad.data_ptr() for grad in centers]
        if jobs[0].measuring:
            for row, side in ((tk.PLUS.value, "plus"), (tk.MINUS.value, "minus")):
                dtype = side_dtype(jobs[0].site)
                grads = [
                    laid_out(getattr(job.site, side), param, strides, dtype)
                    for job, param, strides in zip(jobs, table.params, table.strides, strict=True)
                ]
                table.host[row] = [grad.data_ptr() for grad in grads]
                kept += grads
        table.host[tk.SKIPPED.value] = [site.skipped.data_ptr() for site in table.sites]
        positions = [self._position_pointer(site) for site in table.sites]
        table.host[tk.POSITION.value] = positions
        if table.sites[0].home is not None:
            table.host[tk.PARAM.value] = positions
        return kept

    def _position_pointer(self, site: Site) -> int:
        """Where mu stands during the update."""
        if site.home is not None:
            return site.home.data_ptr()
        if site.position is not None:
            return site.position.data_ptr()
        return self._aside[id(site)]

    def _launch_update(
        self, table: Table, key: tuple[Any, ...], moment: Moment, clip: Tensor | None
    ) -> None:
        param, grad, side, limit, hessian, glass, measuring, maximize = key[1:9]
        state = state_dtype(table.params[0])
        rows, table.host[tk.CONFIG.value] = Rows.by_rates(table.sites, moment.rates, _numbers)
        device_table = table.on_device()
        with table.on():
            tk.update_kernel[(table.num_chunks,)](
                device_table,
                table.chunk_tensor,
                table.chunk_index,
                self._sender.numbers(rows, moment, table.device),
                device_table if clip is None else clip,
                len(table.sites),
                LIMIT=tk.LIMITS[limit],
                HESSIAN=tk.HESSIANS[hessian],
                USE_GLASS=glass,
                MEASURING=measuring,
                MAXIMIZE=maximize,
                CLIP=clip is not None,
                P=_DTYPES[param],
                G=_DTYPES[grad],
                SIDE=_DTYPES[side],
                S=_DTYPES[state],
                LOW=param != state,
                PERMUTED=table.permuted,
                ALIGNED=table.aligned,
                EVEN=table.even,
                BLOCK=table.block,
                num_warps=_WARPS,
            )


def _update_key(job: Job) -> tuple[Any, ...]:
    """What an update kernel is compiled for."""
    site, r = job.site, job.rates
    grad = site.gradient.dtype
    maximize = site.group["maximize"]
    terms = (r.limit, r.hessian, r.glass, job.measuring, maximize)
    layout = (site.home is None, site.numel % 4 == 0)
    return ("update", site.param.dtype, grad, side_dtype(site), *terms, *layout)


def _numbers(moment: Moment, sites: Sequence[Site]) -> np.ndarray:
    """Seed, step and each site's numbers as int64 bit patterns."""
    rows = np.zeros((len(sites), int(tk.CONFIG_WIDTH.value)))
    for row, site in zip(rows, sites, strict=True):
        row[0] = site.radius
        r = moment.rates.get(site)
        if r is not None:
            row[1:] = (
                r.lr,
                min(r.lr_min, r.lr),
                r.eps,
                r.step_fraction,
                r.lookahead,
                r.lr * r.weight_decay,
                r.beta1,
                r.beta2,
                r.beta_topo,
                r.grad_weight,
                r.sq_weight,
                r.topo_weight,
            )
    header = np.asarray(moment.draw, dtype=np.int64)
    return np.concatenate([header, rows.reshape(-1).view(np.int64)])
