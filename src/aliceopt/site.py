"""One parameter: what Alice remembers of it, and what one step finds out about it.

The state of a parameter, in ``optimizer.state``:

===================== ==================================================================
``step``              updates so far, k (0-dim, on the CPU)
``topography_weight`` total weight of the topography averages, w (0-dim, on the CPU)
``unmeasured``        updates since the last that measured (0-dim, on the CPU)
``last_used``         the optimizer's step, from 1, that updated it last (0-dim, on the CPU)
``probe_center``      nu
``grad_avg``          g, uncorrected
``grad_sq``           s, uncorrected
``glass_density``     rho, uncorrected; only with ``glass=True``
``hess``              h, uncorrected, of the group's kind; not with ``hessian="none"``
``position``          mu in float32; only for bf16 and fp16 parameters
===================== ==================================================================

Tensors are float32, or float64 for float64 parameters, and laid out and sharded like the parameter.
While a parameter looks ahead, ``probe_center`` may hold mu, the two having changed places.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .options import probe_radius, rates
from .sharding import block_of, is_dtensor, local
from .signs import block_signs, sign_key
from .topography import Averages, Rates

__all__ = [
    "COUNTERS",
    "REQUIRED",
    "Draw",
    "Site",
    "Sites",
    "averages",
    "distinct",
    "fit_",
    "signs_of",
    "state_dtype",
]

COUNTERS = ("step", "topography_weight", "unmeasured", "last_used")
"""What a state keeps on the CPU."""

REQUIRED = (*COUNTERS[:2], "probe_center", "grad_avg", "grad_sq")
"""What a checkpoint's state must have; other counters start from zero where they are missing."""


class Draw(NamedTuple):
    """Which random directions: the optimizer's seed and its number of steps so far."""

    seed: int
    step: int


@dataclass(eq=False, slots=True)
class Site:
    """A parameter, its group and state, and one step's findings.

    ``index`` is the parameter's place in the optimizer, ``skipped`` counts coordinates that updates
    left alone (0-dim int64, on the parameter's device). ``radius`` is zero where the parameter
    stays at the probe center; ``plus`` and ``minus`` are the gradients of the two sides, and
    ``unscaled`` the center's, if a loss scale left less of it in ``.grad`` than float32 holds.
    ``rates`` are the numbers of the last update, and ``fitted_for`` the curvature terms that the
    state is known to have.
    """

    param: nn.Parameter
    index: int
    group: dict[str, Any]
    state: dict[str, Any]
    skipped: Tensor
    sharded: bool
    radius: float = 0.0
    plus: Tensor | None = None
    minus: Tensor | None = None
    unscaled: Tensor | None = None
    rates: Rates | None = None
    fitted_for: tuple[bool, str] | None = None

    @classmethod
    def of(cls, param: nn.Parameter, index: int, group: dict[str, Any]) -> Site:
        """A site for a parameter, with no state yet."""
        counter = torch.zeros((), dtype=torch.int64, device=local(param).device)
        return cls(param, index, group, {}, counter, is_dtensor(param))

    @property
    def gradient(self) -> Tensor:
        """The gradient at the center, as this process holds it."""
        if self.unscaled is not None:
            return self.unscaled
        assert self.param.grad is not None
        return local(self.param.grad) if self.sharded else self.param.grad

    @property
    def low_precision(self) -> bool:
        """Whether the parameter is held in fewer bits than its state."""
        return self.param.dtype != state_dtype(self.param)


def state_dtype(param: Tensor) -> torch.dtype:
    """float64 for float64 parameters, float32 for all others."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def _everything(
    groups: Sequence[dict[str, Any]], states: Mapping[Tensor, dict[str, Any]]
) -> list[Any]:
    """Whatever somebody might have replaced or put elsewhere."""
    params = chain.from_iterable((group, *group["params"]) for group in groups)
    held = chain.from_iterable(map(dict.values, states.values()))
    return [*params, *states, *states.values(), *held]


def _has_terms(site: Site) -> bool:
    """Whether the state has what it was fitted for; somebody may have taken it out."""
    glass, hessian = site.fitted_for or (False, "none")
    return (not glass or "glass_density" in site.state) and (
        hessian == "none" or "hess" in site.state
    )


class _Chosen(NamedTuple):
    """Who was updated last: with which terms, and each one's counters and group."""

    sites: list[Site]
    terms: dict[int, tuple[bool, str]]
    columns: np.ndarray | slice
    groups: list[int]


_NOBODY = _Chosen([], {}, slice(0), [])


class Sites(Sequence[Site]):
    """A site for every parameter, the same from step to step, and all counters in one place.

    The counters in a state are views of one tensor, so that a step reads and advances them all at
    once. Whoever replaces one in a state is found out by `bind`; whoever only gives it other memory
    finds it right again after `publish`.
    """

    def __init__(self) -> None:
        self._sites: list[Site] = []
        self._groups: list[dict[str, Any]] = []
        self._numbers = np.zeros((len(COUNTERS), 0))
        self._views: list[Sequence[Tensor]] = []
        self._chosen = _NOBODY
        self._bound: list[Any] = [None]  # unlike anything there may be, to begin with
        self._clean = False

    def __getitem__(self, i: Any) -> Any:
        return self._sites[i]

    def __len__(self) -> int:
        return len(self._sites)

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites)

    def is_bound(
        self, groups: Sequence[dict[str, Any]], states: Mapping[Tensor, dict[str, Any]]
    ) -> bool:
        """Whether the optimizer's parameters, groups and states are those of the last `bind`."""
        now = _everything(groups, states)
        return len(now) == len(self._bound) and all(map(operator.is_, now, self._bound))

    def bind(
        self, groups: Sequence[dict[str, Any]], states: Mapping[Tensor, dict[str, Any]]
    ) -> None:
        """Follow the optimizer's parameters, groups and states."""
        self._chosen = _NOBODY
        self._groups = list(groups)
        params = [(param, group) for group in groups for param in group["params"]]
        if [id(param) for param, _ in params] != [id(site.param) for site in self]:
            self._rebuild(params)
        for site, (param, group) in zip(self, params, strict=True):
            site.group, state = group, states.get(param)
            emptied = site.rates is not None and not state
            if emptied or (state is not site.state and state):
                site.state, site.rates, site.fitted_for = state or {}, None, None
            if site.state:
                self._adopt(site)
                if not _has_terms(site):
                    site.fitted_for = None
        self._bound = _everything(groups, states)

    def _rebuild(self, params: Sequence[tuple[nn.Parameter, dict[str, Any]]]) -> None:
        """Sites anew; a parameter that had one keeps it."""
        known = {id(site.param): site for site in self}
        counters = torch.zeros(len(COUNTERS), len(params), dtype=torch.float64, device="cpu")
        self._numbers = counters.numpy()
        self._views = [counters[:, i].unbind() for i in range(len(params))]
        self._sites = []
        for i, (param, group) in enumerate(params):
            site = known.get(id(param)) or Site.of(param, i, group)
            site.index = i
            self._sites.append(site)

    def _adopt(self, site: Site) -> None:
        """Have the counters of a state here, with the values they have."""
        for view, name in zip(self._views[site.index], COUNTERS, strict=True):
            if site.state.get(name) is not view:
                view.copy_(site.state.get(name, torch.zeros((), device="cpu")))
                site.state[name] = view

    def publish(self) -> None:
        """Have the counters in the states right, also where somebody gave them other memory."""
        for site in self._sites:
            for row, name in enumerate(COUNTERS if site.state else ()):
                site.state[name].fill_(self._numbers[row, site.index])

    def begin(self, radii: Mapping[int, float]) -> None:
        """Forget the last step's findings; ``radii``, by the group's id, if this one measures."""
        if self._clean and not radii:
            return  # nobody has found anything
        for site in self._sites:
            site.radius = radii[id(site.group)] if radii else 0.0
            site.plus = site.minus = site.unscaled = None
        self._clean = not radii

    def touch(self) -> None:
        """Say that findings were written into sites."""
        self._clean = False

    def rates(self, updating: Sequence[Site], *, measuring: bool) -> list[Rates]:
        """The numbers of these sites' next updates, whose states are made to fit.

        Sites that share group, count and weight share one `Rates`.
        """
        groups = {id(group): group for group in self._groups}
        terms = {name: (group["glass"], group["hessian"]) for name, group in groups.items()}
        if updating != self._chosen.sites or terms != self._chosen.terms:
            self._choose(updating, terms)
        counters = self._numbers[:2, self._chosen.columns]
        if updating and len(groups) == 1 and (counters == counters[:, :1]).all():  # mostly
            count, weight = counters[:, 0].tolist()
            measuring = measuring and updating[0].radius > 0
            one = rates(self._groups[0], int(count) + 1, weight, measuring=measuring)
            return [one] * len(updating)
        measures = [measuring and site.radius > 0 for site in updating]
        keys = list(zip(self._chosen.groups, *counters.tolist(), measures, strict=True))
        known = {
            key: rates(groups[key[0]], int(key[1]) + 1, key[2], measuring=key[3])
            for key in set(keys)
        }
        return [known[key] for key in keys]

    def _choose(self, updating: Sequence[Site], terms: dict[int, tuple[bool, str]]) -> None:
        """Have states that fit these terms, and remember who is updated: mostly it is everybody."""
        names = [id(site.group) for site in updating]
        for site, name in zip(updating, names, strict=True):
            if site.fitted_for != terms[name]:
                fit_(site)
                self._adopt(site)
                site.fitted_for = terms[name]
        every = updating == self._sites
        columns = slice(None) if every else np.asarray([site.index for site in updating], np.int64)
        self._chosen = _Chosen(list(updating), terms, columns, names)

    def count_(
        self,
        updated: Sequence[Site],
        numbers: Sequence[Rates],
        states: MutableMapping[Tensor, dict[str, Any]],
        step: int,
    ) -> int | None:
        """Record in sites and ``states`` that these updates were made, whose `rates` came last.

        Returns None, unless some had waited too long to be measured (if they were not, this update
        included): then the steps until the first of them is likely to be used again, 0 if that is
        anybody's guess.
        """
        for site, rate in zip(updated, numbers, strict=True):
            if site.rates is None:  # its first update, or the first of a state that was replaced
                states[site.param] = site.state
                self._bound = [None]
            site.rates = rate
        steps, weights, unmeasured, last_used = self._numbers
        columns, made = self._chosen.columns, distinct(numbers)
        limits = {id(group): _longest_wait(group) for group in self._groups}
        gap = self._gap(step, limits, measured=any(rate.measuring for rate in made))
        steps[columns] += 1
        # What a measuring update makes of the weight, its `Rates` have worked out already.
        weights[columns] = [rate.topo_weight for rate in made]
        unmeasured[columns] += 1
        unmeasured[columns] *= [not rate.measuring for rate in made]
        last_used[columns] = step
        return gap

    def _gap(self, step: int, limits: Mapping[int, float], *, measured: bool) -> int | None:
        """Of those chosen who have waited too long, the fewest steps since the last use."""
        steps, weights, unmeasured, last_used = self._numbers[:, self._chosen.columns]
        longest = min(limits.values())
        if longest == math.inf or (unmeasured.max(initial=0) < longest and weights.all()):
            return None  # mostly
        never = (weights == 0) & ((steps > 0) | (not measured))
        waits = np.where(never, math.inf, unmeasured + (not measured))
        late = waits > [limits[i] for i in (self._chosen.groups if len(limits) > 1 else limits)]
        if not late.any():
            return None
        return int(np.where(last_used > 0, step - last_used, 0)[late].min())


def distinct(rates: Sequence[Rates]) -> Sequence[Rates]:
    """These rates; once, where all are the same, as they mostly are."""
    return rates[:1] if rates and rates.count(rates[0]) == len(rates) else rates


def _longest_wait(group: dict[str, Any]) -> float:
    """How many updates in a row may go unmeasured; any number where nothing can be measured."""
    return group["quick_steps"] if probe_radius(group) > 0 else math.inf


def fit_(site: Site) -> None:
    """Give the state everything the group's options call for, or nothing if memory runs out.

    To be called where the parameter holds mu, or nu of a state that is there. A term that was never
    measured starts the topography afresh, because both terms share one weight; so do terms that
    were switched, since what they averaged may be of another kind.
    """
    state, param, group = site.state, site.param, site.group

    def like_param(*, copied: bool = False) -> Tensor:
        made = torch.zeros_like(param.detach(), dtype=state_dtype(param))
        if copied:
            local(made).copy_(local(param))
        return made

    made = {}
    if "probe_center" not in state:
        made["probe_center"] = like_param(copied=True)
        made.update({name: like_param() for name in ("grad_avg", "grad_sq")})
    if site.low_precision and "position" not in state:
        made["position"] = like_param(copied=True)
    wanted = {"glass_density": group["glass"], "hess": group["hessian"] != "none"}
    new = [name for name, on in wanted.items() if on and name not in state]
    made.update({name: like_param() for name in new})
    if state and (new or site.fitted_for is not None):
        for name in wanted.keys() & state.keys():
            local(state[name]).zero_()
        state["topography_weight"].zero_()
    state.update(made)


def averages(state: dict[str, Any], group: dict[str, Any]) -> Averages:
    """The running averages as local tensors, without terms switched off or not yet measured."""
    glass = state.get("glass_density") if group["glass"] else None
    hess = state.get("hess") if group["hessian"] != "none" else None
    return Averages(
        grad_avg=local(state["grad_avg"]),
        grad_sq=local(state["grad_sq"]),
        glass_density=None if glass is None else local(glass),
        hess=None if hess is None else local(hess),
    )


def signs_of(site: Site, draw: Draw) -> Tensor:
    """A parameter's Rademacher directions, regenerated."""
    block = block_of(site.param)
    return block_signs(
        sign_key(draw.seed, draw.step, site.index),
        block.global_shape,
        offsets=block.offsets,
        shape=block.shape,
        dtype=state_dtype(site.param),
        device=local(site.param).device,
    )
