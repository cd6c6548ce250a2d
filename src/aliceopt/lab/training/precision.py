"""How precisely a run computes, by one of three names; steps, probes and evaluations alike.

Weights, gradients and the optimizer's state are float32 under every name. What changes is the
arithmetic of the network: ``float32``; ``tf32``, whose products on CUDA round their factors to 10
bits; ``bf16``, autocast to bfloat16 around network and loss, with images and kernels laid out
channels last, which is what bfloat16 convolutions are fast on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.lab.data.splits import Split

_WORDS = {
    "float32": "float32",
    "tf32": "tf32: float32 with TF32 products on CUDA",
    "bf16": "bf16: bfloat16 autocast, weights and optimizer in float32",
}


def in_words(precision: str) -> str:
    """What a name means, for the foot of a table.

    >>> in_words("bf16")
    'bf16: bfloat16 autocast, weights and optimizer in float32'
    """
    return _WORDS.get(precision, precision)


def set_products(precision: str) -> None:
    """Allow TF32 in products of float32 matrices and in cuDNN, or forbid it: for this process."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


@contextlib.contextmanager
def exact_products(precision: str) -> Iterator[None]:
    """Within, products are those of float32, and afterwards those of ``precision`` again."""
    set_products("float32")
    try:
        yield
    finally:
        set_products(precision)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What stands around network and loss: autocast for bf16, else nothing."""
    if precision != "bf16":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def lay_out_(model: nn.Module, precision: str) -> bool:
    """In bf16, put the kernels of 2-D convolutions channels last; values and shapes stay.

    Whether it did so: then its batches should come from `ChannelsLast`.
    """
    wanted = precision == "bf16" and any(isinstance(m, nn.Conv2d) for m in model.modules())
    if wanted:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return wanted


class ChannelsLast:
    """A split whose image batches [B, C, H, W] lie in memory as [B, H, W, C]; values are the same.

    What is no tensor of four dimensions is handed on as it is.
    """

    def __init__(self, split: Split):
        self._split = split
        self.batch_size = split.batch_size

    def __len__(self) -> int:
        """Full batches in an epoch."""
        return len(self._split)

    def to(self, device: torch.device | str) -> ChannelsLast:
        """The same split, its batches on ``device``."""
        return ChannelsLast(self._split.to(device))

    def batch(self, seed: int, epoch: int, index: int) -> tuple[Any, Any]:
        """Inputs and targets of batch ``index``, shuffled and augmented by (seed, epoch)."""
        inputs, targets = self._split.batch(seed, epoch, index)
        return _channels_last(inputs), targets

    def in_order(self) -> Iterator[tuple[Any, Any]]:
        """Every example once, without augmentation; the last batch may be smaller."""
        for inputs, targets in self._split.in_order():
            yield _channels_last(inputs), targets


def _channels_last(inputs: Any) -> Any:
    if isinstance(inputs, Tensor) and inputs.dim() == 4:
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs
