"""How many operations the instruments need: on a device each small one costs the host's time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from aliceopt.landscape import bound_check, choose_radii, diagonals, ladder, power_law, slices

DEPTH = 24  # layers, of two parameters each
FIXED, EACH = 100, 4  # operations a gradient, and a gradient and parameter


class Counting(TorchDispatchMode):
    """Counts operations while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.on = 0, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += self.on
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "look",
    [
        partial(choose_radii, blocks="0"),
        partial(ladder, radii=0.01, count=4, blocks="0"),
        partial(power_law, radius=0.01, second=True, blocks="0"),
        partial(diagonals, radius=0.01, coordinates=False, blocks="0"),
        partial(bound_check, radius=0.01, probes=2),
        partial(slices, directions="random", points=9),
        partial(slices, directions=["gradient", "random"], points=5),
    ],
)
def test_few_operations_beside_forward_and_backward(look: Callable[..., Any]) -> None:
    """A gradient is joined, a place cut up, and sums are taken: nothing else of each parameter.

    There is one block, since blocks are read one after the other, on the CPU.
    """
    layers = [module for _ in range(DEPTH) for module in (nn.Linear(5, 5), nn.ReLU())]
    model, inputs = nn.Sequential(*layers), torch.randn(7, 5)
    gradients = 0

    def closure() -> torch.Tensor:
        nonlocal gradients
        gradients += 1
        counting.on = False
        loss = model(inputs).square().mean()
        loss.backward()
        counting.on = True
        return loss.detach()

    with Counting() as counting:
        look(model, closure)
    assert counting.count / gradients < FIXED + EACH * 2 * DEPTH
