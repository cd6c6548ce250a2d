"""Factors on gradients: the clip by global norm, and the loss scale of mixed precision."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .layout import local, sum_over_shards
from .site import Site, state_dtype

__all__ = ["clip_factors", "poison_center_", "unscale_"]


def clip_factors(params: Iterable[Tensor], limit: float | None) -> dict[torch.device, Tensor]:
    """``min(1, limit / norm)`` on every device, for the global norm of all ``.grad``.

    The norm is over finite entries. One factor for all three gradients of a step: clipping them
    separately would fake curvature. Empty with no limit.
    """
    params = [p for p in params if p.grad is not None]
    if limit is None or not params:
        return {}
    home = local(params[0]).device
    total = torch.zeros((), dtype=torch.float64 if home.type == "cpu" else None, device=home)
    for p in params:
        assert p.grad is not None
        g = local(p.grad).to(state_dtype(p))
        square = torch.where(torch.isfinite(g), g, 0.0).square().sum()
        total = total + sum_over_shards(square, p).to(total)
    factor = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    return {device: factor.to(device) for device in {local(p).device for p in params}}


def poison_center_(sites: Iterable[Site]) -> None:
    """Make a GradScaler, which looks at ``.grad`` only, see an overflow on either side."""
    for site in sites:
        grad = site.param.grad
        if grad is not None and site.plus is not None and site.minus is not None:
            finite = torch.isfinite(site.plus).all() & torch.isfinite(site.minus).all()
            mine = local(grad)
            mine.copy_(torch.where(finite, mine, float("nan")))


def unscale_(params: Iterable[Tensor], scale: Tensor | None) -> None:
    """Divide every ``.grad`` by the loss scale; None means that was done already."""
    for param in params:
        if scale is not None and param.grad is not None:
            local(param.grad).div_(scale.to(local(param.grad).device))
