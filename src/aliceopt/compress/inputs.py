"""What the weights of a layer meet: its inputs, one row of features a position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..probe import BufferGuard
from .weights import Weight, weights_of

__all__ = ["NotFiniteError", "columns_of", "input_norms", "listening"]


class NotFiniteError(ValueError):
    """Of what passes through a model: its batches are to blame, or what pruning has left of it."""


def input_norms(
    model: nn.Module, forward: Callable[[Any], Any], batches: Iterable[Any]
) -> dict[str, Tensor]:
    """The norm of every input feature of every layer over some batches, shaped as its weight.

    For linear layers the feature, for convolutions the pixel of the input that a weight meets.
    Buffers are as before afterwards.
    """
    weights = weights_of(model)
    sums: dict[str, Tensor] = {}

    def hear(name: str, inputs: Tensor) -> None:
        square = inputs.double().square().sum(0)
        sums[name] = sums[name] + square if name in sums else square

    with listening(model, weights, hear), torch.no_grad():
        for batch in batches:
            forward(batch)
    check_called(weights, sums)
    for name, total in sums.items():
        if not total.isfinite().all():
            raise NotFiniteError(f"the inputs of {name!r} are not finite")
    shapes = {name: weight.parameter.shape for name, weight in weights.items()}
    return {
        name: sums[name].sqrt().float().view(1, *shape[1:]).expand(shape).contiguous()
        for name, shape in shapes.items()
    }


def check_called(weights: Iterable[str], heard: Iterable[str]) -> None:
    """Refuse a forward that left layers out."""
    there = set(heard)
    missed = [name for name in weights if name not in there]
    if missed:
        raise ValueError(f"{missed[0]!r} was never called: forward must run the whole model")


@contextmanager
def listening(
    model: nn.Module, weights: Mapping[str, Weight], hear: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Within, ``hear`` is told the name and the inputs, ``[n, features]``, of layers called.

    Outside of any autocast, so that what it adds up is as precise as it is written. Afterwards
    the model's buffers are as before, in training mode too.
    """

    def hook(name: str) -> Callable[..., None]:
        def call(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs = args[0].detach()
            with torch.autocast(inputs.device.type, enabled=False):
                hear(name, columns_of(layer, inputs))

        return call

    buffers = BufferGuard(model)
    handles = [w.layer.register_forward_pre_hook(hook(name)) for name, w in weights.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        buffers.restore()


def columns_of(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What a row of the weight is multiplied with, ``[n, features]``, in the order of the row."""
    if isinstance(layer, nn.Linear):
        return inputs.flatten(0, -2).float()
    plain = isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros" and layer.groups == 1
    if isinstance(layer, nn.Conv2d) and plain and not isinstance(layer.padding, str):
        columns = nn.functional.unfold(
            inputs.float(), layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        return columns.transpose(1, 2).flatten(0, 1)
    raise ValueError(f"inputs of a {type(layer).__name__} like this one are not known as a matrix")
