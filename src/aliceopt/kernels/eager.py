"""The update of one parameter in plain torch operations: what every other form is checked by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..step import bounded_step, moved
from ..topography import Averages, Gradients, Rates, updated

__all__ = ["Target", "update_"]


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
    ok = _all_finite(grads)
    averages = updated(target.averages, grads, rates)
    step = bounded_step(averages, rates)
    position, probe_center = moved(target.position, step, rates)
    _assign_(target.position, position, ok)
    _assign_(target.probe_center, probe_center, ok)
    for old, new in zip(target.averages, averages, strict=True):
        if old is not None and new is not None and new is not old:
            _assign_(old, new, ok)
    return ok.logical_not().sum()


def _all_finite(grads: Gradients) -> Tensor:
    ok = torch.isfinite(grads.center)
    for side in (grads.plus, grads.minus):
        if side is not None:
            ok = ok & torch.isfinite(side)
    return ok


def _assign_(old: Tensor, new: Tensor, where: Tensor) -> None:
    old.copy_(torch.where(where, new, old))
