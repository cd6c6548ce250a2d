"""Layers one after the other, each judged by the outputs it gives for the inputs it gets.

A row w of a layer with inputs x should go on giving the same outputs; the squared error over the
inputs is ``(w - w') H (w - w')`` with ``H = sum x x'``, the same for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..sharding import is_dtensor
from .inputs import check_called, listening
from .pruning import undone_if_it_fails
from .weights import Weight

__all__ = ["check_damping", "damped", "layer_by_layer"]


def layer_by_layer(
    weights: Mapping[str, Weight],
    forward: Callable[[Any], Any],
    batches: Sequence[Any],
    change: Callable[[Weight, Tensor], None],
) -> tuple[str, ...]:
    """Give every layer and its H to ``change``, in the order in which they are called.

    Each sees the inputs that those before it give by then: as many passes over the batches as
    there are layers, and one. If it fails, weights and masks are as before.
    """
    for name, weight in weights.items():
        if is_dtensor(weight.parameter):
            raise ValueError(f"{name!r} is sharded: prune the whole model in one process")
    order = _call_order(weights, forward, batches)
    home = {name: weight.parameter.clone() for name, weight in weights.items()}
    with undone_if_it_fails(weights):
        try:
            for name in order:
                change(weights[name], _gram(weights[name], forward, batches))
        except BaseException:
            for name, weight in weights.items():
                weight.parameter.copy_(home[name])
            raise
    return order


def _call_order(
    weights: Mapping[str, Weight], forward: Callable[[Any], Any], batches: Sequence[Any]
) -> tuple[str, ...]:
    if not batches:
        raise ValueError("there are no batches: nothing was changed")
    order: dict[str, None] = {}
    with listening(weights, lambda name, inputs: order.setdefault(name)):
        forward(batches[0])
    check_called(weights, order)
    return tuple(order)


def _gram(weight: Weight, forward: Callable[[Any], Any], batches: Sequence[Any]) -> Tensor:
    """H of one layer, with inputs as they are now."""
    grams: list[Tensor] = []

    def hear(name: str, inputs: Tensor) -> None:
        gram = (inputs.T @ inputs).double()
        grams[:] = [gram + grams[0]] if grams else [gram]

    with listening({weight.name: weight}, hear):
        for batch in batches:
            forward(batch)
    if not grams[0].isfinite().all():
        raise ValueError(f"the inputs of {weight.name!r} are not finite")
    return grams[0]


def check_damping(damping: float) -> None:
    """Refuse what would leave H singular."""
    if not isinstance(damping, int | float) or not 0 < damping < math.inf:
        raise ValueError(f"damping must be a number in (0, inf), got {damping!r}")


def damped(gram: Tensor, damping: float) -> Tensor:
    """H with a share of its mean diagonal added to it, and ones for features never met."""
    h = gram.double() + (gram.diagonal() == 0).double().diag()
    h.diagonal().add_(damping * h.diagonal().mean())
    return h
