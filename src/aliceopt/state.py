"""What Alice remembers of one parameter, and the numbers one update derives from it.

===================== ==================================================================
``step``              updates so far, k (0-dim, on the CPU)
``topography_weight`` total weight of the topography averages, w (0-dim, on the CPU)
``probe_center``      nu
``grad_avg``          g, uncorrected
``grad_sq``           s, uncorrected
``glass_density``     rho, uncorrected; only with ``glass=True``
``hess``              h, uncorrected, of the group's kind; not with ``hessian="none"``
``position``          mu in float32; only for bf16 and fp16 parameters
===================== ==================================================================

Tensors are float32, or float64 for float64 parameters, and laid out and sharded like the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .kernels import Job
from .layout import local
from .options import number, step_fraction
from .site import Site, state_dtype
from .topography import Averages, Rates

__all__ = ["COUNTERS", "averages", "count_", "fit_", "jobs_of", "rates"]

State = dict[str, Any]

COUNTERS = ("step", "topography_weight")
"""What a state keeps on the CPU."""


def _fits(site: Site) -> bool:
    state, group = site.state, site.group
    return (
        site.ready
        and (not group["glass"] or "glass_density" in state)
        and (group["hessian"] == "none" or "hess" in state)
    )


def fit_(site: Site) -> None:
    """Give the state everything the group's options call for.

    A term that was never measured starts the topography afresh, because both terms share one
    weight.
    """
    state, param, group = site.state, site.param, site.group
    if _fits(site):
        return
    dtype = state_dtype(param)
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float64)
        state["topography_weight"] = torch.zeros((), dtype=torch.float64)
        state["probe_center"] = torch.zeros_like(param.detach(), dtype=dtype)
        assert site.position is not None
        local(state["probe_center"]).copy_(site.position)
        state["grad_avg"] = torch.zeros_like(param.detach(), dtype=dtype)
        state["grad_sq"] = torch.zeros_like(param.detach(), dtype=dtype)
    if site.low_precision and "position" not in state:
        state["position"] = torch.zeros_like(param.detach(), dtype=dtype)
    wanted = {"glass_density": group["glass"], "hess": group["hessian"] != "none"}
    if any(on and name not in state for name, on in wanted.items()):
        state["topography_weight"].zero_()
        for name, on in wanted.items():
            if on:
                state[name] = torch.zeros_like(param.detach(), dtype=dtype)


def _restart_(state: State) -> None:
    """Forget the topography: its averages share one weight, and are of the kinds asked for then."""
    state["topography_weight"].zero_()
    for name in ("glass_density", "hess"):
        if name in state:
            local(state[name]).zero_()


def averages(state: State, group: dict[str, Any]) -> Averages:
    """The running averages as local tensors, without terms switched off or not yet measured."""
    return Averages(
        grad_avg=local(state["grad_avg"]),
        grad_sq=local(state["grad_sq"]),
        glass_density=_local_or_none(state.get("glass_density") if group["glass"] else None),
        hess=_local_or_none(state.get("hess") if group["hessian"] != "none" else None),
    )


def _local_or_none(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else local(tensor)


def topography_beta(group: dict[str, Any]) -> float:
    """The averaging factor of a full step, from the factor of one step.

    The memory of the topography, in steps, does not depend on how often it is measured.
    """
    return float(group["betas"][1] ** (group["quick_steps"] + 1))


def rates(group: dict[str, Any], count: int, weight: float, *, measuring: bool) -> Rates:
    """The numbers of update ``count`` (from 1), given the topography's weight before it."""
    beta1, beta2 = group["betas"]
    beta_topo = topography_beta(group)
    return Rates(
        beta1=beta1,
        beta2=beta2,
        beta_topo=beta_topo,
        grad_weight=1 - beta1**count,
        sq_weight=1 - beta2**count,
        topo_weight=beta_topo * weight + (1 - beta_topo) if measuring else weight,
        lr=number(group["lr"]),
        lr_min=number(group["lr_min"]),
        eps=group["eps"],
        step_fraction=step_fraction(group),
        lookahead=group["lookahead"],
        weight_decay=group["weight_decay"],
        limit=group["limit"],
        hessian=group["hessian"],
        glass=group["glass"],
    )


def jobs_of(sites: Sequence[Site], *, full: bool) -> list[Job]:
    """An update for every site with a gradient at the center, whose state is made to fit.

    Sites that share group, count and weight share one `Rates`.
    """
    updating = [site for site in sites if site.param.grad is not None]
    terms = {id(site.group): (site.group["glass"], site.group["hessian"]) for site in updating}
    for site in updating:
        if site.fitted_for != terms[id(site.group)]:
            if site.fitted_for is not None:
                _restart_(site.state)
            fit_(site)
            site.fitted_for = terms[id(site.group)]
    known: dict[tuple[int, float, float, bool], Rates] = {}
    jobs = []
    for site, count, weight in zip(updating, *_counters(updating), strict=True):
        measuring = full and site.radius > 0
        key = (id(site.group), count, weight, measuring)
        if key not in known:
            known[key] = rates(site.group, int(count) + 1, weight, measuring=measuring)
        jobs.append(Job(site, known[key], measuring))
    return jobs


def _counters(sites: Sequence[Site]) -> tuple[list[float], list[float]]:
    """Every site's step count and topography weight, read in one go."""
    if not sites:
        return [], []
    columns = (torch.stack([site.state[name] for site in sites]).tolist() for name in COUNTERS)
    counts, weights = columns
    return counts, weights


def count_(jobs: Sequence[Job]) -> None:
    """Record in the sites and states that these updates were made."""
    for job in jobs:
        job.site.rates = job.rates
    if jobs:
        torch._foreach_add_([job.site.state["step"] for job in jobs], 1.0)
    measured = [job for job in jobs if job.measuring]
    if measured:
        weights = [job.site.state["topography_weight"] for job in measured]
        betas = [job.rates.beta_topo for job in measured]
        torch._foreach_mul_(weights, betas)
        torch._foreach_add_(weights, [1 - beta for beta in betas])
