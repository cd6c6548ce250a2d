"""The probe points ``nu + lambda t`` and ``nu - lambda t``, and what low precision makes of them.

Pure functions of tensors and numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["displaced", "realised_radius"]


def realised_radius(
    center: Tensor, dtype: torch.dtype, radius: float, *, fall_back: bool = True
) -> float | Tensor:
    """How far a probe of a parameter of ``dtype`` really goes from the center, by coordinate.

    Low precision rounds. Were the two sides rounded separately, a quadratic would look like glass
    wherever they came out unequal. So the radius is rounded once, on the side away from zero: the
    grid there is the coarser one, and what fits on it fits on the other side too, as long as the
    probe does not cross zero; if it does, the sides differ by less than a rounding of the radius.
    Where it rounds to zero nothing is displaced, and ``fall_back`` gives the nominal radius.
    """
    if dtype == center.dtype:
        return radius
    size = center.to(dtype).to(center.dtype).abs()
    realised = (size + radius).to(dtype).to(size.dtype) - size
    return torch.where(realised > 0, realised, radius) if fall_back else realised


def displaced(
    center: Tensor,
    dtype: torch.dtype,
    radius: float,
    signs: Tensor,
    *,
    side: int,
    out: Tensor | None = None,
) -> Tensor:
    """Where a parameter of ``dtype`` stands at a probe: ``nu + side d t``; the side is 1 or -1.

    ``d`` is the probe radius or, in bf16 and fp16, the `realised_radius`; ``nu`` is then rounded.
    ``out`` is where the result goes.
    """
    if dtype == center.dtype:
        return torch.add(center, signs, alpha=side * radius, out=out)
    away = realised_radius(center, dtype, radius, fall_back=False) * signs
    return torch.add(center.to(dtype).to(center.dtype), away, alpha=side, out=out)
