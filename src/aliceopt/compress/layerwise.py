"""Layers one after the other, each judged by the outputs it gives for the inputs it gets.

A row w of a layer with inputs x should go on giving the same outputs; the squared error over the
inputs is ``(w - w') H (w - w')`` with ``H = sum x x'``, the same for all rows.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..probe import RandomState
from ..sharding import is_dtensor
from .inputs import NotFiniteError, check_called, listening
from .pruning import undone_if_it_fails
from .weights import Weight

__all__ = ["check_damping", "damped", "layer_by_layer"]


def layer_by_layer(
    model: nn.Module,
    weights: Mapping[str, Weight],
    forward: Callable[[Any], Any],
    batches: Sequence[Any],
    change: Callable[[Weight, Tensor], None],
) -> tuple[str, ...]:
    """Give every layer and its H to ``change``, in the order in which they are called.

    Each sees the inputs that those before it give by then: as many passes over the batches as
    there are layers, each as far as that layer, and one over the first. Buffers and random state
    are as before afterwards, and if it fails, weights and masks too.
    """
    for name, weight in weights.items():
        if is_dtensor(weight.parameter):
            raise ValueError(f"{name!r} is sharded: prune the whole model in one process")
    home = {name: weight.parameter.clone() for name, weight in weights.items()}
    random = RandomState({weight.parameter.device for weight in weights.values()})
    with undone_if_it_fails(weights):
        try:
            order = _call_order(model, weights, forward, batches)
            for name, calls in order.items():
                change(weights[name], _gram(model, weights[name], forward, batches, calls))
        except BaseException:
            for name, weight in weights.items():
                weight.parameter.copy_(home[name])
            raise
        finally:
            random.restore()
    return tuple(order)


def _call_order(
    model: nn.Module,
    weights: Mapping[str, Weight],
    forward: Callable[[Any], Any],
    batches: Sequence[Any],
) -> Counter[str]:
    """How often layers are called, in the order of their first calls."""
    if not batches:
        raise ValueError("there are no batches: nothing was changed")
    order: Counter[str] = Counter()
    with listening(model, weights, lambda name, inputs: order.update([name])):
        forward(batches[0])
    check_called(weights, order)
    return order


class _HeardAll(Exception):
    """Ends a pass at the layer that it is made for."""


def _gram(
    model: nn.Module,
    weight: Weight,
    forward: Callable[[Any], Any],
    batches: Sequence[Any],
    calls: int,
) -> Tensor:
    """H of one layer, with inputs as they are now; ``calls`` a pass, what comes behind is left."""
    grams: list[Tensor] = []
    heard = 0

    def hear(name: str, inputs: Tensor) -> None:
        nonlocal heard
        gram = (inputs.T @ inputs).double()
        grams[:] = [gram + grams[0]] if grams else [gram]
        heard += 1
        if heard == calls:
            raise _HeardAll

    with listening(model, {weight.name: weight}, hear):
        for batch in batches:
            heard = 0
            with contextlib.suppress(_HeardAll):
                forward(batch)
    if not grams[0].isfinite().all():
        raise NotFiniteError(f"the inputs of {weight.name!r} are not finite")
    return grams[0]


def check_damping(damping: float) -> None:
    """Refuse what would leave H singular."""
    if not isinstance(damping, int | float) or not 0 < damping < math.inf:
        raise ValueError(f"damping must be a number in (0, inf), got {damping!r}")


def damped(gram: Tensor, damping: float) -> Tensor:
    """H with a share of its mean diagonal added to it; features never met get all of the mean.

    Times any number if H is, so that the scale of the inputs does not matter.
    """
    h, unmet = gram.double().clone(), gram.diagonal() == 0
    mean = h.diagonal().mean()
    mean = torch.where(mean > 0, mean, 1.0)  # 0 if nothing at all is met
    h.diagonal().add_(mean * (damping + unmet.double()))
    return h
