"""The device work in a few Triton launches, whatever the number of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from ..layout import local
from ..site import Draw, Site, state_dtype
from . import triton_kernels as tk
from .base import Job, Round
from .eager import EagerBackend
from .tables import BLOCK, Table, conformed, is_dense, memory_order, send

__all__ = ["TritonBackend"]

_DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_WARPS = 4
_NUMBERS = (
    "lr",
    "lr_min",
    "eps",
    "step_fraction",
    "lookahead",
    "decay",
    "beta1",
    "beta2",
    "beta_topo",
    "grad_weight",
    "sq_weight",
    "topo_weight",
)


class TritonBackend:
    """Multi-tensor kernels for every site they can take; the rest is done eagerly.

    Left to `EagerBackend` are parameters whose memory has gaps or more than five separate runs,
    and the first departure of a parameter that has no state yet.
    """

    name = "triton"

    def __init__(self) -> None:
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
        ready, others = self._divide(sites)
        if others:
            self._eager.depart(others, round_name, draw)
        for table in self._batches(ready):
            self._take_aside(table)
            self._launch_move(table, round_name, draw, depart=True)

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to a probe point."""
        aside, others = self._divide(sites)
        if others:
            self._eager.move(others, round_name, draw)
        for table in self._batches(aside):
            self._launch_move(table, round_name, draw)

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions."""
        aside, others = self._divide(sites)
        if others:
            self._eager.rest(others)
        for table in self._batches(aside):
            self._launch_move(table, "rest", Draw(0, 0))

    def _divide(self, sites: Sequence[Site]) -> tuple[list[Site], list[Site]]:
        """Those the kernels move, and those that are moved eagerly."""
        mine, others = [], []
        for site in sites:
            fused = site.position is None and "probe_center" in site.state and self._can(site)
            (mine if fused else others).append(site)
        return mine, others

    def _can(self, site: Site) -> bool:
        known = self._able.get(id(site))
        if known is None:
            known = self._able[id(site)] = (site, _is_supported(site))
        return known[1]

    def _batches(self, sites: Iterable[Site]) -> list[Table]:
        """Tables of the sites of each dtype; empty tensors need no work."""
        groups: dict[Any, list[Site]] = {}
        for site in sites:
            if site.param.numel():
                groups.setdefault(site.param.dtype, []).append(site)
        return [self._table(("move", dtype), there) for dtype, there in groups.items()]

    def _table(self, key: tuple[Any, ...], sites: list[Site]) -> Table:
        full_key = (*key, *map(id, sites))
        table = self._tables.get(full_key)
        if table is None:
            table = self._tables[full_key] = Table(sites)
        table.fill_state()
        return table

    def _take_aside(self, table: Table) -> None:
        dtype = state_dtype(table.params[0])
        buffer = torch.empty(table.aside_size, dtype=dtype, device=table.device)
        self._buffers.append(buffer)
        addresses = buffer.data_ptr() + table.aside_offsets * dtype.itemsize
        self._aside.update(zip(map(id, table.sites), addresses.tolist(), strict=True))

    def _launch_move(self, table: Table, goal: str, draw: Draw, *, depart: bool = False) -> None:
        table.host[tk.POSITION.value] = [self._aside[id(site)] for site in table.sites]
        radii = list(dict.fromkeys(site.radius for site in table.sites))
        table.host[tk.CONFIG.value] = [radii.index(site.radius) for site in table.sites]
        numbers = _numbers(draw, [{"radius": radius} for radius in radii])
        param, state = table.params[0].dtype, state_dtype(table.params[0])
        device_table = table.on_device()
        tk.move_kernel[(table.num_chunks,)](
            device_table,
            table.chunk_tensor,
            table.chunk_index,
            self._send("move", numbers, table.device),
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

    def _send(self, slot: str, numbers: np.ndarray, device: torch.device) -> Tensor:
        return send(numbers, device)

    # ---- updating -----------------------------------------------------------------------------

    def update(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of every job."""
        groups: dict[tuple[Any, ...], list[Job]] = {}
        others = []
        for job in jobs:
            if not self._can(job.site):
                others.append(job)
            elif job.site.param.numel():
                groups.setdefault(_update_key(job), []).append(job)
        if others:
            self._eager.update(others, draw, clip)
        for key, there in groups.items():
            table = self._table(key, [job.site for job in there])
            keep = self._fill_gradients(table, there)
            configs = self._fill_configs(table, there)
            self._launch_update(table, key, _numbers(draw, configs), clip)
            del keep

    def _fill_gradients(self, table: Table, jobs: list[Job]) -> list[Tensor]:
        """Addresses of gradients, positions and counters; the tensors made for it are returned."""
        columns: dict[int, list[int]] = {tk.GRAD.value: [], tk.PLUS.value: [], tk.MINUS.value: []}
        made: list[Tensor] = []
        for job, param in zip(jobs, table.params, strict=True):
            site = job.site
            assert site.param.grad is not None
            center = conformed(local(site.param.grad), param)
            made.append(center)
            columns[tk.GRAD.value].append(center.data_ptr())
            for row, side in ((tk.PLUS.value, site.plus), (tk.MINUS.value, site.minus)):
                if not job.measuring:
                    columns[row].append(0)
                    continue
                side = torch.zeros_like(center) if side is None else conformed(side, param)
                made.append(side)
                columns[row].append(side.data_ptr())
        for row, column in columns.items():
            table.host[row] = column
        table.host[tk.SKIPPED.value] = [site.skipped.data_ptr() for site in table.sites]
        table.host[tk.POSITION.value] = [
            self._aside[id(site)] if site.position is None else site.position.data_ptr()
            for site in table.sites
        ]
        return made

    @staticmethod
    def _fill_configs(table: Table, jobs: list[Job]) -> list[dict[str, float]]:
        """One row of numbers for each distinct (rates, radius), and each job's row."""
        rows: dict[tuple[int, float], int] = {}
        configs: list[dict[str, float]] = []
        column = []
        for job in jobs:
            key = (id(job.rates), job.site.radius)
            if key not in rows:
                rows[key] = len(configs)
                r = job.rates
                configs.append(
                    {name: getattr(r, name) for name in _NUMBERS if name != "decay"}
                    | {
                        "radius": job.site.radius,
                        "lr_min": min(r.lr_min, r.lr),
                        "decay": r.lr * r.weight_decay,
                    }
                )
            column.append(rows[key])
        table.host[tk.CONFIG.value] = column
        return configs

    def _launch_update(
        self, table: Table, key: tuple[Any, ...], numbers: np.ndarray, clip: Tensor | None
    ) -> None:
        param, grad, side, limit, hessian, glass, measuring, measured, maximize = key[1:]
        state = state_dtype(table.params[0])
        device_table = table.on_device()
        tk.update_kernel[(table.num_chunks,)](
            device_table,
            table.chunk_tensor,
            table.chunk_index,
            self._send("update", numbers, table.device),
            device_table if clip is None else clip,
            len(table.sites),
            LIMIT=tk.LIMITS[limit],
            HESSIAN=tk.HESSIANS[hessian],
            USE_GLASS=glass,
            MEASURING=measuring,
            MEASURED=measured,
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


def _update_key(job: Job) -> tuple[Any, ...]:
    site, r = job.site, job.rates
    assert site.param.grad is not None
    side = site.plus if site.plus is not None else site.minus
    return (
        "update",
        site.param.dtype,
        site.param.grad.dtype,
        site.param.grad.dtype if side is None else side.dtype,
        r.limit,
        r.hessian,
        r.glass,
        job.measuring,
        r.measured,
        site.group["maximize"],
    )


def _numbers(draw: Draw, configs: Sequence[dict[str, float]]) -> np.ndarray:
    """Seed, step and the configurations' numbers as int64 bit patterns."""
    rows = [[config.get(name, 0.0) for name in ("radius", *_NUMBERS)] for config in configs]
    floats = np.asarray(rows, dtype=np.float64).reshape(-1)
    return np.concatenate([np.asarray(draw, dtype=np.int64), floats.view(np.int64)])
