"""How many copies of the parameters there are while a gradient is taken, where activations lie."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aliceopt.landscape import (
    Cut,
    bound_check,
    choose_radii,
    cut_together,
    diagonals,
    ladder,
    packs,
    slices,
)

SHAPE = (37, 41)  # of the parameter that is counted; nothing else has as many elements
MOVE = {"0.weight": torch.ones(SHAPE)}


class Alive(TorchDispatchMode):
    """Knows the tensors of that size that operations gave, as long as somebody holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        leaves = (leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))
        self.known += [weakref.ref(leaf) for leaf in leaves if leaf.numel() == math.prod(SHAPE)]
        return given

    def memories(self) -> set[int]:
        """Where they lie."""
        there = [tensor for known in self.known if (tensor := known()) is not None]
        return {tensor.untyped_storage().data_ptr() for tensor in there}


@pytest.mark.parametrize(
    ("look", "copies"),
    [
        (partial(ladder, radii=0.01, count=2), 3),
        (lambda model, closure, batches: choose_radii(model, partial(closure, 0)), 2),
        (partial(diagonals, radius=0.01, coordinates=False), 3),
        (partial(bound_check, radius=0.01, moves={"given": MOVE}), 5),
        (partial(slices, directions="random", points=3), 5),
        (partial(slices, directions=MOVE, points=3), 5),
        (partial(slices, directions=["gradient", "random"], points=3), 6),
        (partial(cut_together, cuts=[Cut("gradient", points=3), Cut("random", points=3)]), 6),
    ],
)
def test_no_more_copies_than_are_needed(
    look: Callable[..., Any], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home, gradient and a side's; h and rho for predictions; the gradient of another batch.

    Of a parameter by itself, which lies in a row of as many numbers. One batch has no memory of
    the one before it, and afterwards there is nothing, although no garbage is collected.
    """
    monkeypatch.setattr(packs, "LARGE", 0)
    model = nn.Sequential(nn.Linear(SHAPE[1], SHAPE[0], bias=False), nn.Linear(SHAPE[0], 1))
    inputs, weights = torch.randn(5, SHAPE[1]), (model[0].weight, MOVE["0.weight"])
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    found = []

    def closure(batch: int) -> torch.Tensor:
        found.append(len(alive.memories() - own))
        loss = model(inputs).relu().square().mean()
        loss.backward()
        return loss.detach()

    gc.collect()
    gc.disable()
    try:
        with Alive() as alive:
            look(model, closure, batches=range(3))
        assert max(found) == copies
        assert not alive.memories() - own
    finally:
        gc.enable()
