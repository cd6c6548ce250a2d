"""The device work in a few launches of `Kernels`, whatever the number of tensors.

Every call goes the same way: find the plan, read addresses, fill the table, send it, launch. What
can fail or be interrupted comes first; the kernels themselves mark what they have taken aside, so
that going back is right whether or not a launch was reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..layout import conformed
from ..ownership import Keeper
from ..sharding import local
from ..site import Draw, Site, distinct
from ..topography import Rates
from .base import Backend, Kernels, Round
from .eager import EagerBackend, position_of, sum_dtype
from .plan import ASIDE, HOME, MASTER, SWAPPED, Plan
from .table import Goal, Row

__all__ = ["Backends", "MultiTensorBackend"]

_GOALS = {"center": Goal.CENTER, "plus": Goal.PLUS, "minus": Goal.MINUS}


class Backends:
    """One backend per device in use, made when first asked for."""

    def __init__(self, implementation: str):
        self.implementation = implementation
        self.keeper = Keeper()
        self._made: dict[torch.device, Backend] = {}
        self._given: dict[torch.device, Backend] = {}
        self._first: torch.device | None = None
        self._last: tuple[list[Site], list[tuple[Backend, list[Site]]]] = [], []

    def split(self, sites: list[Site]) -> list[tuple[Backend, list[Site]]]:
        """The sites of each device with the backend that serves it."""
        if sites == self._last[0] and (not sites or sites[0].param.device == self._first):
            return self._last[1]
        from .choice import make

        by_device: dict[torch.device, list[Site]] = {}
        for site in sites:
            by_device.setdefault(local(site.param).device, []).append(site)
        for device, there in by_device.items():
            if device not in self._made:
                count = sum(local(site.param).numel() for site in there)
                self._made[device] = make(self.implementation, device, count)
        found = [(self._made[device], there) for device, there in by_device.items()]
        self._last = list(sites), found
        self._first = sites[0].param.device if sites else None
        return found

    def serve(self, backend: Backend, device: torch.device | str = "cpu") -> None:
        """Have this backend serve a device, whatever was chosen for it."""
        self._made[torch.device(device)] = self._given[torch.device(device)] = backend
        self._last = [], []

    def forget(self) -> None:
        """Drop what backends remember of tensors; something has replaced them."""
        self._made.clear()
        self._made.update(self._given)
        self._last = [], []
        self.keeper.forget()

    def describe(self) -> str:
        """What was picked, device by device, once there was something to pick for."""
        if not self._made:
            return self.implementation
        return ", ".join(f"{backend.name} on {device}" for device, backend in self._made.items())


class MultiTensorBackend:
    """All sites of a device in one table; those that kernels cannot take are served eagerly.

    Left to `EagerBackend` are parameters whose memory has gaps or more than five separate runs, and
    the first departure of a parameter that has no state yet.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.name = kernels.name
        self.kernels = kernels
        self.send = kernels.send
        self.eager = EagerBackend()
        self._plan: Plan | None = None
        self._resting = False
        self._room: dict[torch.dtype, Tensor] = {}

    def plan(self, sites: Sequence[Site], **what: bool) -> Plan:
        """The plan that has these sites, with addresses as they are now; ``what`` to `refresh`."""
        plan = self._plan
        if plan is None or not plan.has(sites) or not plan.refresh(**what):
            known: list[Site] = []
            if plan is not None:
                self.rest(plan.sites)  # the new one would not know that they are away
                known = plan.sites
            plan = self._plan = Plan(list(dict.fromkeys([*sites, *known])), self.kernels)
            plan.refresh()
        return plan

    # ---- moving -------------------------------------------------------------------------------

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Keep every position and go to the first probe point."""
        self._finish_rest()
        plan = self.plan(sites, states=False)
        columns = plan.columns(sites)
        if not plan.all_usable:
            usable = plan.usable[columns]
            self.eager.depart(list(compress(sites, ~usable)), round_name, draw)
            sites, columns = list(compress(sites, usable)), columns[usable]
        radii = [site.radius for site in sites]
        modes = plan.away[columns]
        if any(radii):
            modes[(modes == SWAPPED) & (np.asarray(radii) > 0)] = ASIDE
            self._take_room(plan, columns[modes == ASIDE])
        if any(radii) or plan.displaced:
            plan.write_numbers(sites, columns, draw)
        plan.modes[columns] = modes
        self._move(plan, columns, _GOALS[round_name], depart=True)

    def _take_room(self, plan: Plan, columns: np.ndarray) -> None:
        """Memory for the positions of these columns; on a CPU it is kept from step to step.

        Fresh memory is handed out page by page there, which costs more than writing to it.
        """
        if plan.device.type != "cpu":
            self._room.clear()
        for dtype, mine, starts, size in plan.packed(columns):
            room = self._room.get(dtype)
            if room is None or room.numel() < size:
                room = self._room[dtype] = torch.empty(size, dtype=dtype, device=plan.device)
            plan.aside[mine] = room.data_ptr() + starts

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to another probe point; who is not displaced stays at the center."""
        before, plan = self._plan, self.plan(sites, layouts=False, states=False)
        if plan is not before:  # which has brought everybody home
            self.depart(sites, round_name, draw)
            return
        if self.eager.aside:
            mine = [site for site in sites if site in self.eager.aside and site.radius > 0]
            self.eager.move(mine, round_name, draw)
        # The table has their radii and directions since they left.
        columns, radii = plan.columns(sites), plan.host.view(np.float64)[Row.RADIUS]
        displaced = (plan.modes[columns] != HOME) & (radii[columns] > 0)
        there = columns if displaced.all() else columns[displaced]
        self._move(plan, there, _GOALS[round_name])

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions; those that are there stay."""
        self.eager.rest(sites)
        plan = self._plan
        if plan is None:
            return
        columns = plan.columns([site for site in sites if site in plan.column])
        columns = columns[plan.modes[columns] != HOME]
        if len(columns) and not plan.refresh(states=False):
            self._carry_home(plan)
            return
        self._resting = True  # from here on the modes may be wrong, and only going again is right
        self._move(plan, columns, Goal.REST)
        plan.modes[columns] = HOME
        self._resting = False

    def _carry_home(self, plan: Plan) -> None:
        """Bring all back by torch's own operations, wherever parameters and states lie by now."""
        for c in np.flatnonzero(plan.modes != HOME).tolist():
            here, dtype = local(plan.sites[c].param), plan.dtypes[c]
            if plan.modes[c] == SWAPPED:
                nu = plan.held(c, Row.CENTER)
                mu = nu.clone()
                nu.copy_(here)
            elif plan.modes[c] == MASTER:
                mu = plan.held(c, Row.MASTER)
            else:
                start = (int(plan.aside[c]) - self._room[dtype].data_ptr()) // dtype.itemsize
                mu = self._room[dtype].as_strided(plan.shapes[c], plan.strides[c], start)
            here.copy_(mu)
            plan.modes[c] = HOME
        self._plan = None  # its marks are of the old layout

    def _finish_rest(self) -> None:
        """Take up a return that was interrupted."""
        if self._resting and self._plan is not None:
            self.rest(self._plan.sites)

    def _move(self, plan: Plan, columns: np.ndarray, goal: Goal, *, depart: bool = False) -> None:
        plan.stand()
        for swap, there in plan.swapped(columns):
            for launch in plan.launches(there, self.kernels.move_block, self.send):
                self.kernels.move(launch, goal, depart=depart, swap=swap)
        increment_version(plan.params(columns))

    # ---- updating -----------------------------------------------------------------------------

    def square_sum(self, sites: Sequence[Site]) -> Tensor:
        """Sum of squares of all finite entries of ``.grad``, over all shards."""
        plan = self.plan(sites)
        total = torch.zeros((), dtype=sum_dtype(sites), device=plan.device)
        columns = plan.columns(sites)
        mine = plan.usable[columns] & [not site.sharded for site in sites]
        if not mine.all():
            total += self.eager.square_sum(list(compress(sites, ~mine)))
        columns = columns[mine]
        grads = _fill_gradients(plan, columns, Row.GRAD, _gradients(list(compress(sites, mine))))
        dtypes, block = [grad.dtype for grad in grads], self.kernels.update_block
        for launch in plan.launches(columns, block, self.send, (dtypes,)):
            total += self.kernels.square_sum(launch)
        return total

    def update(
        self, sites: Sequence[Site], rates: Sequence[Rates], draw: Draw, clip: Tensor | None
    ) -> None:
        """Averages, position and probe center of every site."""
        self._finish_rest()
        # Those that are away had their layouts looked up when they left.
        plan = self.plan(sites, layouts=not self._all_away(sites))
        columns = plan.columns(sites)
        others: list[tuple[Site, Rates]] = []
        if not plan.all_usable:
            usable = plan.usable[columns]
            others = list(compress(zip(sites, rates, strict=True), ~usable))
            self.rest([site for site, _ in others if site not in self.eager.aside])
            sites, rates = list(compress(sites, usable)), list(compress(rates, usable))
            columns = columns[usable]
        self._prepare(plan, sites, columns)
        grads = _fill_gradients(plan, columns, Row.GRAD, _gradients(sites))
        sides, held = _fill_sides(plan, columns, sites, rates)
        plan.write_numbers(sites, columns, draw, rates)
        plan.stand()
        dtypes = [grad.dtype for grad in grads], sides
        block, options = self.kernels.update_block, _options(rates)
        launches = plan.launches(columns, block, self.send, dtypes, options)
        if others:  # only now: whatever else can fail has not
            self.eager.update([s for s, _ in others], [r for _, r in others], draw, clip)
        for launch in launches:
            self.kernels.update(launch, clip)
        del held
        plan.modes[columns] = HOME
        increment_version(plan.params(columns))
        if plan.device.type != "cpu":
            self._room.clear()

    def _all_away(self, sites: Sequence[Site]) -> bool:
        plan = self._plan
        return plan is not None and plan.has(sites) and bool(plan.modes[plan.columns(sites)].all())

    def _prepare(self, plan: Plan, sites: Sequence[Site], columns: np.ndarray) -> None:
        """Those that were taken out eagerly go home, and master copies follow edited parameters."""
        if self.eager.aside:
            self.eager.rest(sites)
        edited = plan.low[columns] & (plan.modes[columns] == HOME) if plan.any_low else ()
        for site in compress(sites, edited):
            local(site.state["position"]).copy_(position_of(site))


def _fill_gradients(
    plan: Plan, columns: np.ndarray, row: Row, grads: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Addresses of gradients in their parameters' layouts; the caller must hold what is returned
    until the launch.
    """
    if list(map(Tensor.stride, grads)) != plan.strides_of(columns):
        params = plan.params(columns)
        grads = [conformed(grad, param) for grad, param in zip(grads, params, strict=True)]
    plan.write(row, columns, list(map(Tensor.data_ptr, grads)))
    return grads


def _gradients(sites: Sequence[Site]) -> list[Tensor]:
    """The gradients at the center; mostly they are just the parameters'."""
    if True in [site.unscaled is not None or site.sharded for site in sites]:
        return [site.gradient for site in sites]
    return [site.param.grad for site in sites]  # type: ignore[misc]


def _options(rates: Sequence[Rates]) -> Sequence[Any]:
    """What a kernel is compiled for: once if it is the same for all, otherwise a list of it."""
    if not rates:
        return ()
    options = [(r.limit, r.hessian, r.glass, r.measuring, r.maximize) for r in distinct(rates)]
    return options[0] if options.count(options[0]) == len(options) else options


def _fill_sides(
    plan: Plan, columns: np.ndarray, sites: Sequence[Site], rates: Sequence[Rates]
) -> tuple[Sequence[torch.dtype | None], list[Sequence[Tensor]]]:
    """The two sides' gradients of those that measure: their dtypes, and what is to be held.

    A missing one is made of zeros, in the other's dtype.
    """
    measures = [rate.measuring for rate in rates]
    if True not in measures:
        return [None] * len(sites), []
    mine = list(compress(sites, measures))
    plus, minus = [site.plus for site in mine], [site.minus for site in mine]
    for k, (a, b) in enumerate(zip(plus, minus, strict=True)):
        if a is None or b is None:
            known = a if a is not None else b if b is not None else local(mine[k].param)
            plus[k] = a = torch.zeros_like(known) if a is None else a
            minus[k] = b = torch.zeros_like(known) if b is None else b
        if a.dtype != b.dtype:
            minus[k] = b.to(a.dtype)
    there = columns if len(mine) == len(columns) else columns[measures]
    held = [
        _fill_gradients(plan, there, row, side)  # type: ignore[arg-type]
        for row, side in ((Row.PLUS, plus), (Row.MINUS, minus))
    ]
    dtypes = iter([side.dtype for side in held[0]])
    return [next(dtypes) if measuring else None for measuring in measures], held
