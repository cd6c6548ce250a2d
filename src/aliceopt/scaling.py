"""Factors on gradients: the clip by global norm, and the loss scale of mixed precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .kernels import Backend
from .layout import local
from .site import Site

__all__ = ["clip_factors", "poison_center_", "unscale_"]


def clip_factors(
    divided: Sequence[tuple[Backend, Sequence[Site]]], limit: float | None
) -> dict[torch.device, Tensor]:
    """``min(1, limit / norm)`` on every device, for the global norm of all ``.grad``.

    The norm is over finite entries. One factor for all three gradients of a step: clipping them
    separately would fake curvature. Empty with no limit.
    """
    if limit is None or not divided:
        return {}
    squares = {sites[0].device: backend.square_sum(sites) for backend, sites in divided}
    home = next(iter(squares))
    total = torch.stack([square.to(home) for square in squares.values()]).sum()
    factor = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    return {device: factor.to(device) for device in squares}


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
