"""The device work in plain torch operations: what every other form is checked by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..layout import local, sum_over_shards
from ..site import Draw, Site, displaced, position_of, realised_radius, state_dtype
from ..step import bounded_step, moved
from ..topography import Averages, Gradients, Rates, updated
from .base import Job, Round

__all__ = [
    "EagerBackend",
    "Target",
    "all_finite",
    "gradients_of",
    "sum_dtype",
    "target_of",
    "update_",
]


class Target(NamedTuple):
    """What an update rewrites: mu, nu and the averages, all in state precision."""

    position: Tensor
    probe_center: Tensor
    averages: Averages


def update_(target: Target, grads: Gradients, rates: Rates) -> Tensor:
    """Topography and step in one go, in place; returns how many coordinates were left alone.

    A coordinate any of whose gradients is not finite keeps its position, probe center and
    averages as they were.
    """
    ok = all_finite(grads)
    averages = updated(target.averages, grads, rates)
    step = bounded_step(averages, rates)
    position, probe_center = moved(target.position, step, rates)
    _assign_(target.position, position, ok)
    _assign_(target.probe_center, probe_center, ok)
    for old, new in zip(target.averages, averages, strict=True):
        if old is not None and new is not None and new is not old:
            _assign_(old, new, ok)
    return ok.logical_not().sum()


def all_finite(grads: Gradients) -> Tensor:
    """Where all gradients of a coordinate are finite."""
    ok = torch.isfinite(grads.center)
    for side in (grads.plus, grads.minus):
        if side is not None:
            ok = ok & torch.isfinite(side)
    return ok


def _assign_(old: Tensor, new: Tensor, where: Tensor) -> None:
    old.copy_(torch.where(where, new, old))


def target_of(job: Job) -> Target:
    """The tensors of one job, local, without terms that are switched off."""
    site, state = job.site, job.site.state
    assert site.position is not None
    averages = Averages(
        grad_avg=local(state["grad_avg"]),
        grad_sq=local(state["grad_sq"]),
        glass_density=local(state["glass_density"]) if job.rates.glass else None,
        hess=local(state["hess"]) if job.rates.hessian != "none" else None,
    )
    return Target(site.position, local(state["probe_center"]), averages)


def gradients_of(job: Job, draw: Draw, clip: Tensor | None) -> Gradients:
    """One job's gradients: in state precision, clipped and, to maximize, negated.

    A side that got no gradient counts as zero.
    """
    site = job.site
    assert site.position is not None
    dtype, flip = site.position.dtype, site.group["maximize"]

    def prepared(grad: Tensor) -> Tensor:
        grad = grad.to(dtype)
        if clip is not None:
            grad = grad * clip.to(dtype)
        return -grad if flip else grad

    center = prepared(local(site.gradient))
    if not job.measuring:
        return Gradients(center)
    plus, minus = (
        torch.zeros_like(center) if side is None else prepared(side)
        for side in (site.plus, site.minus)
    )
    signs = site.signs(draw) if job.rates.hessian == "signed" else None
    return Gradients(center, plus, minus, realised_radius(site), signs)


def sum_dtype(sites: Sequence[Site]) -> torch.dtype:
    """What a sum over many parameters is kept in: float64, where the device has it."""
    has_float64 = local(sites[0].param).device.type in ("cpu", "cuda")
    return torch.float64 if has_float64 else torch.float32


class EagerBackend:
    """One parameter after the other, on any device."""

    name = "eager"

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Take positions aside and go to the first probe point."""
        for site in sites:
            site.position = position_of(site)
        self.move(sites, round_name, draw)

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to a probe point."""
        for site in sites:
            if round_name == "center" or site.radius == 0:
                there = site.center
            else:
                there = displaced(site, site.signs(draw))[0 if round_name == "plus" else 1]
            local(site.param).copy_(there)

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions."""
        for site in sites:
            if site.position is not None:
                local(site.param).copy_(site.position)

    def square_sum(self, sites: Sequence[Site]) -> Tensor:
        """Sum of squares of all finite entries of ``.grad``, over all shards."""
        total = torch.zeros((), dtype=sum_dtype(sites), device=local(sites[0].param).device)
        for site in sites:
            if site.param.grad is not None:
                g = local(site.gradient).to(state_dtype(site.param))
                square = torch.where(torch.isfinite(g), g, 0.0).square().sum()
                total += sum_over_shards(square, site.param).to(total.dtype)
        return total

    def update(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of every job."""
        for job in jobs:
            target = target_of(job)
            job.site.skipped += update_(target, gradients_of(job, draw, clip), job.rates)
            local(job.site.param).copy_(target.position)
            if "position" in job.site.state:
                local(job.site.state["position"]).copy_(target.position)
