"""What capturing a CUDA graph asks of everything around it: generators, garbage, gradients."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..probe import RandomState

__all__ = ["GraphRandom", "detached", "gradients_aside", "no_collection"]


class GraphRandom(RandomState):
    """Gives every evaluation of a step its own state of the default generator."""

    def __init__(self, generator: torch.Generator, states: Sequence[torch.Generator]):
        self._generator = generator
        self._states = iter(states)
        self.restore()

    def restore(self) -> None:
        """On to the next evaluation's state."""
        self._generator.graphsafe_set_state(next(self._states))


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now and not for a while.

    A graph that dies while another is captured takes the random generator's state along.
    """
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def gradients_aside(params: Iterable[nn.Parameter]) -> Iterator[None]:
    """Whatever happens inside, these parameters have their gradients back afterwards."""
    kept = [(param, param.grad) for param in params]
    for param, _ in kept:
        param.grad = None
    try:
        yield
    finally:
        for param, grad in kept:
            param.grad = grad


def detached(value: Any) -> Any:
    """All tensors without their autograd graph, whose nodes would go on belonging to a capture."""
    return tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, value)
