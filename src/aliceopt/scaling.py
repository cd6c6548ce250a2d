"""Factors on gradients: the clip by global norm, and the loss scale of mixed precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .kernels import Backend
from .sharding import local
from .site import Site

if TYPE_CHECKING:
    from .probe import Probe

__all__ = ["check_scaler", "clip_factors", "poison_center_", "refuse_scaled", "unscale_"]


def clip_factors(
    divided: Sequence[tuple[Backend, Sequence[Site]]], limit: float | Tensor
) -> dict[torch.device, Tensor]:
    """``min(1, limit / norm)`` on every device, for the global norm of all ``.grad``.

    The norm is over finite entries. One factor for all three gradients of a step: clipping them
    separately would fake curvature.
    """
    squares = {
        local(sites[0].param).device: backend.square_sum(sites)
        for backend, sites in divided
        if sites
    }
    if not squares:
        return {}
    home = next(iter(squares))
    total = torch.stack([square.to(home) for square in squares.values()]).sum()
    bound = limit.reshape(()).to(total) if isinstance(limit, Tensor) else limit
    factor = (bound / (total.sqrt() + 1e-6)).clamp(max=1.0)
    return {device: factor.to(device) for device in squares}


def poison_center_(sites: Iterable[Site]) -> None:
    """Make a GradScaler, which looks at ``.grad`` only, see an overflow on either side."""
    for site in sites:
        grad = site.param.grad
        for side in (site.plus, site.minus):
            if grad is not None and side is not None:
                mine = local(grad)
                mine.copy_(torch.where(torch.isfinite(side).all(), mine, float("nan")))


def unscale_(sites: Iterable[Site], scale: Tensor) -> None:
    """Divide every center gradient by the loss scale.

    The quotient of a half-precision gradient is kept in float32, since it may be too small for
    ``.grad``.
    """
    for site in sites:
        if site.param.grad is not None:
            mine = local(site.param.grad)
            factor = scale.to(mine.device)
            if site.low_precision:
                site.unscaled = mine.to(torch.float32) / factor
            mine.div_(factor)


def refuse_scaled(optimizer: Optimizer, message: str) -> NoReturn:
    """Raise, after taking back what GradScaler.step set and will not get to remove."""
    for name in ("found_inf", "grad_scale"):
        optimizer.__dict__.pop(name, None)
    raise RuntimeError(message)


def check_scaler(optimizer: Optimizer, probe: Probe | None, *, scaled: bool) -> None:
    """All gradients of a step must have met the same GradScaler, or none."""
    if scaled and probe is not None and probe.measuring and probe.scaler is None:
        refuse_scaled(
            optimizer,
            "the loop ran without its scaler, so the probes' gradients are still scaled: "
            "use optimizer.evaluations(scaler=scaler)",
        )
    if not scaled and probe is not None and probe.scaler is not None:
        raise RuntimeError(
            "the loop ran with a GradScaler, so .grad is still scaled: call "
            "scaler.step(optimizer) instead of optimizer.step()"
        )
