"""How much memory the instruments have, in copies of the parameters; Adam has two, its moments."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
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

WIDTH, DEPTH = 24, 6
MOVE = {f"{k}.weight": torch.ones(WIDTH, WIDTH) for k in range(DEPTH)}
BOUNDS: dict[str, Any] = {"radius": 0.01, "probes": 2, "directions": 1}
CUTS = [Cut("gradient", points=3), Cut(MOVE, points=3), Cut(["gradient", "random"], points=3)]


class Alive(TorchDispatchMode):
    """Knows the tensors of a parameter's size or more that operations gave, while they are held.

    ``most`` are bytes of their memory after any operation, but for those while it is not ``on``.
    """

    def __init__(self, own: list[Tensor]) -> None:
        super().__init__()
        self.own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self.known: list[weakref.ref[Tensor]] = []
        self.most, self.on = 0, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        leaves = (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
        large = [weakref.ref(leaf) for leaf in leaves if leaf.numel() >= WIDTH**2]
        self.known += large
        if self.on and large:
            self.most = max(self.most, self.bytes())
        return given

    def bytes(self) -> int:
        """Of all that is there now, each memory once, without what was there before."""
        there = [tensor for known in self.known if (tensor := known()) is not None]
        self.known = [weakref.ref(tensor) for tensor in there]
        memories = (tensor.untyped_storage() for tensor in there)
        sizes = {memory.data_ptr(): memory.nbytes() for memory in memories}
        return sum(size for place, size in sizes.items() if place not in self.own)


@pytest.fixture
def uncollected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every parameter in a pack of its own, and no garbage is collected."""
    monkeypatch.setattr(packs, "LARGE", 0)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("look", "copies", "alone"),
    [
        (partial(ladder, radii=0.01, count=2, directions=1), 3, False),
        (lambda model, closure, batches: choose_radii(model, partial(closure, 0)), 2, False),
        (partial(diagonals, radius=0.01, coordinates=False, directions=2), 3, False),
        (partial(bound_check, moves={"given": MOVE}, **BOUNDS), 5, False),
        (partial(bound_check, moves={"given": MOVE}, **BOUNDS), 5, True),
        (partial(slices, directions="random", points=3, probes=2), 5, False),
        (partial(slices, directions=MOVE, points=3, probes=2), 5, False),
        (partial(slices, directions=["gradient", "random"], points=3, probes=2), 6, False),
        (partial(cut_together, cuts=CUTS, probes=2), 6, True),
    ],
)
def test_no_more_copies_than_are_needed(look: Callable[..., Any], copies: int, alone: bool) -> None:
    """Home, gradient and a side's; h and rho for predictions; the gradient of the first batch.

    So many while a gradient is taken, when activations are there. Between, the last gradient and
    up to 12 rows of a single parameter are there as well. A batch has nothing of the one before it,
    and afterwards there is nothing.
    """
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)))
    inputs = torch.randn(5, WIDTH)
    found = []

    def loss(batch: int) -> Tensor:
        found.append(alive.bytes())
        alive.on = False
        value = model(inputs).relu().square().mean()
        alive.on = not value.requires_grad
        return value

    def closure(batch: int) -> Tensor:
        value = loss(batch)
        value.backward()
        alive.on = True
        return value.detach()

    one = sum(param.nbytes for param in model.parameters())
    with Alive([*model.parameters(), *MOVE.values(), inputs]) as alive:
        look(model, closure, batches=range(2), **({"loss": loss} if alone else {}))
    assert max(found) / one == copies
    assert alive.most / one <= copies + 1 + 12 / DEPTH
    assert alive.bytes() == 0
