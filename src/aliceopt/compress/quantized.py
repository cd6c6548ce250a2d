"""Rounded weights handed to torchao, which holds them as whole numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .rounding import Rounding, rounded
from .weights import Weight, weights_of

__all__ = ["quantize"]


@torch.no_grad()
def quantize(model: nn.Module, rounding: Rounding) -> tuple[str, ...]:
    """Put what `bits` chose into a model, in place; returns the weights that are torchao's now.

    Those of linear layers become torchao's tensors of up to 8 bits, the kind that its
    ``IntxWeightOnlyConfig`` makes, on the grid and with the scales of ``rounding``; they are used
    as they are, saved, and exported by torch.export, and take 8 bits a weight in memory whatever
    their number of bits. Convolutions, and more than 8 bits, which torchao has no such tensors for,
    stay floating-point numbers on the grid. If anything is wrong, nothing is changed.
    """
    kind = _kind()
    weights = weights_of(model, rounding.bits)
    for name, weight in weights.items():
        if weight.mask is not None:
            raise ValueError(f"{name!r} has a mask: make it final before it is rounded")
    made = {name: _made(weight, rounding, kind) for name, weight in weights.items()}
    for name, weight in weights.items():
        weight.layer.weight = nn.Parameter(made[name], requires_grad=False)
    return tuple(name for name, value in made.items() if isinstance(value, kind))


def _kind() -> Any:
    try:
        from torchao.quantization import IntxUnpackedToInt8Tensor
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "rounded weights are handed to torchao, which is not installed: "
            'pip install "aliceopt[compress]"',
            name=error.name,
        ) from error
    return IntxUnpackedToInt8Tensor


def _made(weight: Weight, rounding: Rounding, kind: Any) -> Tensor:
    bits, scale = rounding.bits[weight.name], rounding.scales[weight.name]
    values = weight.values()
    if not isinstance(weight.layer, nn.Linear) or bits > 8 or values.dtype == torch.float64:
        return rounded(values.float(), bits, scale.to(values.device)).to(values.dtype)
    step = scale.to(values.device, values.dtype)[:, None]  # as it is multiplied with
    step = step.clamp(min=torch.finfo(values.dtype).tiny)
    most = 2 ** (bits - 1) - 1
    made: Tensor = kind(
        qdata=(values.float() / step.float()).round().clamp(-most, most).to(torch.int8),
        scale=step,
        zero_point=torch.zeros_like(step, dtype=torch.int8),
        target_dtype=getattr(torch, f"int{bits}"),
        block_size=(1, values.shape[1]),
        dtype=values.dtype,
        activation_quantization=None,
    )
    return made
