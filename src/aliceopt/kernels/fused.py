"""The device work in a few Triton launches, whatever the number of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from ..layout import is_dtensor, local
from ..site import Draw, Site, state_dtype
from ..topography import Rates
from . import triton_kernels as tk
from .base import Job, Round
from .eager import EagerBackend, sum_dtype
from .recording import Build, Moment, Sender
from .tables import BLOCK, Table, conformed, is_dense, memory_order

__all__ = ["TritonBackend"]

_DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_WARPS = 4


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
        for table in tables:
            self._take_aside(table)
            self._launch_move(table, round_name, draw, depart=True)

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to a probe point."""
        tables, others = self._route(sites)
        if others:
            self._eager.move(others, round_name, draw)
        for table in tables:
            self._launch_move(table, round_name, draw)

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions."""
        tables, others = self._route(sites)
        if others:
            self._eager.rest(others)
        for table in tables:
            self._launch_move(table, "rest", Draw(0, 0))

    def _route(self, sites: Sequence[Site]) -> tuple[list[Table], list[Site]]:
        """Tables, by dtype, of those the kernels move, and the sites to be moved eagerly."""
        others = [s for s in sites if s.position is not None or not s.state or not self._can(s)]
        left_out = set(map(id, others))
        groups: dict[Any, list[Site]] = {}
        for site in sites:
            if site.numel and id(site) not in left_out:
                groups.setdefault(site.param.dtype, []).append(site)
        tables = [self._table(("move", dtype), there) for dtype, there in groups.items()]
        return tables, others

    def _can(self, site: Site) -> bool:
        known = self._able.get(id(site))
        if known is None:
            known = self._able[id(site)] = (site, _is_supported(site))
        return known[1]

    def _table(self, key: tuple[Any, ...], sites: list[Site]) -> Table:
        full_key = (*key, *map(id, sites))
        table = self._tables.get(full_key)
        if table is None:
            table = self._tables[full_key] = Table(sites, self._sender)
        table.refresh()
        return table

    def _take_aside(self, table: Table) -> None:
        dtype = state_dtype(table.params[0])
        buffer = torch.empty(table.aside_size, dtype=dtype, device=table.device)
        self._buffers.append(buffer)
        addresses = buffer.data_ptr() + table.aside_offsets * dtype.itemsize
        self._aside.update(zip(map(id, table.sites), addresses.tolist(), strict=True))

    def _launch_move(self, table: Table, goal: str, draw: Draw, *, depart: bool = False) -> None:
        table.host[tk.POSITION.value] = [self._aside[id(site)] for site in table.sites]
        build = self._fill_configs(table, {})
        param, state = table.params[0].dtype, state_dtype(table.params[0])
        device_table = table.on_device()
        tk.move_kernel[(table.num_chunks,)](
            device_table,
            table.chunk_tensor,
            table.chunk_index,
            self._sender.numbers(build, Moment(draw, {}), table.device),
            len(table.sites),
            GOAL=tk.GOALS[goal],
            DEPART=depart,
            P=_DTYPES[param],
            S=_DTYPES[state],
            LOW=param != state,
            PERMUTED=table.permuted,
            ALIGNED=table.aligned,
            BLOCK=BLOCK,
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
                key = ("square", site.param.dtype, site.param.grad.dtype)
                groups.setdefault(key, []).append(site)
        for key, there in groups.items():
            total += self._square_sum(self._table(key, there))
        return total

    def _square_sum(self, table: Table) -> Tensor:
        made = [
            _laid_out(site.param.grad, param, strides)
            for site, param, strides in zip(table.sites, table.params, table.strides, strict=True)
        ]
        table.host[tk.GRAD.value] = [grad.data_ptr() for grad in made]
        state = state_dtype(table.params[0])
        device_table = table.on_device()
        partial = torch.empty(table.num_chunks, dtype=state, device=table.device)
        tk.square_sum_kernel[(table.num_chunks,)](
            device_table,
            table.chunk_tensor,
            table.chunk_index,
            partial,
            len(table.sites),
            G=_DTYPES[made[0].dtype],
            S=_DTYPES[state],
            ALIGNED=table.aligned,
            BLOCK=BLOCK,
            num_warps=_WARPS,
        )
        return partial.sum(dtype=torch.float64)

    # ---- updating -----------------------------------------------------------------------------

    def update(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of every job."""
        groups: dict[tuple[Any, ...], list[Job]] = {}
        known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        others = []
        for job in jobs:
            if not self._can(job.site):
                others.append(job)
            elif job.site.numel:
                short = _short_key(job)
                key = known.get(short)
                if key is None:
                    key = known[short] = _update_key(job)
                groups.setdefault(key, []).append(job)
        if others:
            self._eager.update(others, draw, clip)
        for key, there in groups.items():
            table = self._table(key, [job.site for job in there])
            keep = self._fill_gradients(table, there)
            moment = Moment(draw, {job.site: job.rates for job in there})
            self._launch_update(table, key, moment, clip)
            del keep

    def _fill_gradients(self, table: Table, jobs: list[Job]) -> list[Tensor]:
        """Addresses of gradients, positions and counters; the tensors behind them are returned."""
        centers = [
            _laid_out(job.site.param.grad, param, strides)
            for job, param, strides in zip(jobs, table.params, table.strides, strict=True)
        ]
        kept = list(centers)
        table.host[tk.GRAD.value] = [grad.data_ptr() for grad in centers]
        if jobs[0].measuring:
            for row, side in ((tk.PLUS.value, "plus"), (tk.MINUS.value, "minus")):
                grads = [
                    _laid_out(getattr(job.site, side), param, strides)
                    for job, param, strides in zip(jobs, table.params, table.strides, strict=True)
                ]
                table.host[row] = [grad.data_ptr() for grad in grads]
                kept += grads
        table.host[tk.SKIPPED.value] = [site.skipped.data_ptr() for site in table.sites]
        table.host[tk.POSITION.value] = [
            self._aside[id(site)] if site.position is None else site.position.data_ptr()
            for site in table.sites
        ]
        return kept

    @staticmethod
    def _fill_configs(table: Table, rates: Mapping[Site, Rates]) -> Build:
        """Each site's row of numbers, one for all of a group that share rates, and their maker.

        The maker asks one site a row, so that it can be asked again at a later step.
        """
        rows: dict[tuple[int, int], int] = {}
        first: list[Site] = []
        column = []
        for site in table.sites:
            key = (id(site.group), id(rates.get(site)))
            if key not in rows:
                rows[key] = len(first)
                first.append(site)
            column.append(rows[key])
        table.host[tk.CONFIG.value] = column
        return lambda moment: _numbers(moment, first)

    def _launch_update(
        self, table: Table, key: tuple[Any, ...], moment: Moment, clip: Tensor | None
    ) -> None:
        param, grad, side, limit, hessian, glass, measuring, maximize = key[1:]
        state = state_dtype(table.params[0])
        build = self._fill_configs(table, moment.rates)
        device_table = table.on_device()
        tk.update_kernel[(table.num_chunks,)](
            device_table,
            table.chunk_tensor,
            table.chunk_index,
            self._sender.numbers(build, moment, table.device),
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
            BLOCK=BLOCK,
            num_warps=_WARPS,
        )


def _is_supported(site: Site) -> bool:
    here = local(site.param)
    laid_out_alike = all(
        local(value).stride() == here.stride()
        for value in site.state.values()
        if isinstance(value, Tensor) and value.dim() == here.dim() and value.dim() > 0
    )
    return is_dense(here) and laid_out_alike and len(memory_order(site)[1]) <= tk.DIMS


def _laid_out(grad: Tensor | None, param: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A gradient in its parameter's memory layout; zeros for one that is missing."""
    if grad is None:
        return torch.zeros_like(param)
    if type(grad) is Tensor and grad.stride() == strides:
        return grad
    return conformed(local(grad), param)


def _short_key(job: Job) -> tuple[Any, ...]:
    """As telling as `_update_key` within one step, and cheaper to make."""
    site = job.site
    side = site.plus if site.plus is not None else site.minus
    side_dtype = None if side is None else side.dtype
    assert site.param.grad is not None
    return (id(job.rates), job.measuring, site.param.dtype, site.param.grad.dtype, side_dtype)


def _update_key(job: Job) -> tuple[Any, ...]:
    """What an update kernel is compiled for."""
    site, r = job.site, job.rates
    assert site.param.grad is not None
    grad = site.param.grad.dtype
    side = site.plus if site.plus is not None else site.minus
    # A missing side is made of zeros, in the parameter's dtype.
    side_dtype = site.param.dtype if side is None else side.dtype
    maximize = site.group["maximize"]
    terms = (r.limit, r.hessian, r.glass, job.measuring, maximize)
    return ("update", site.param.dtype, grad, side_dtype, *terms)


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
