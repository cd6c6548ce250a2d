"""Losses without gradients: the same numbers to the bit, as many as said, nothing left behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from aliceopt.landscape import BoundCheck, Cut, Slice, bound_check, cut_together, slices
from landscape_cases import Interrupted, everything, generator, network

LOOKS: dict[str, Callable[..., Any]] = {
    "bounds": partial(bound_check, radius=0.02, probes=2, directions=2),
    "slice": partial(slices, directions="gradient", reach=0.05, points=5, probes=2),
    "plane": partial(slices, directions=["gradient", "random"], reach=0.05, points=3, probes=2),
}
TAKEN = {"bounds": (2 * 5, 2 * 6), "slice": (2 * 5, 2 * 4), "plane": (2 * 5, 2 * 8)}
looks = pytest.mark.parametrize("name", LOOKS)
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])


def without_along(found: BoundCheck | Slice) -> BoundCheck | Slice:
    """Of a rise, it is what takes a gradient at the end of the move."""
    if isinstance(found, Slice):
        return found
    return replace(found, rises=tuple(replace(rise, along=0.0) for rise in found.rises))


@looks
@dtypes
def test_a_loss_alone_says_the_same_to_the_bit(name: str, dtype: torch.dtype) -> None:
    """With dropout and BatchNorm, on two batches: a gradient less for every loss."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    gradients, losses = Interrupted(closure, None), Interrupted(closure.loss, None)
    both = LOOKS[name](model, [closure] * 2)
    found = LOOKS[name](model, [gradients] * 2, loss=[losses] * 2)
    assert (gradients.calls, losses.calls) == (found.gradients, found.losses) == TAKEN[name]
    assert (both.gradients, both.losses) == (sum(TAKEN[name]), 0)
    counted = replace(found, gradients=both.gradients, losses=0)
    assert repr(without_along(counted)) == repr(without_along(both))
    if isinstance(found, BoundCheck):
        assert all(math.isnan(rise.along) for rise in found.rises)
        assert found.as_dict()["rises"][0]["along"] is None


@looks
@pytest.mark.parametrize("call", [None, 0, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_nothing_is_left_behind(name: str, call: int | None, dtype: torch.dtype) -> None:
    """Parameters, gradients, buffers and random state; also if a loss fails on either batch."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    closure()
    before, losses = everything(model), Interrupted(closure.loss, call)
    look = partial(LOOKS[name], model, [closure] * 2, loss=[losses] * 2)
    if call is None:
        look()
    else:
        with pytest.raises(KeyboardInterrupt):
            look()
        assert losses.calls == call + 1
    assert all(map(torch.equal, before, everything(model)))
    assert torch.is_grad_enabled()


def test_slices_that_are_cut_together_are_those_cut_alone() -> None:
    """To the bit at one radius, on batches that are drawn once; the first has all gradients."""
    model, closure = network()
    g = generator(1)
    move = {
        name: torch.randn(param.shape, generator=g, dtype=param.dtype)
        for name, param in model.named_parameters()
    }
    cuts = [
        Cut("gradient", 0.05, 3),
        Cut("random", 0.1, 5),
        Cut(move, 0.2, 3, filters=True),
        Cut(["random", "gradient"], 0.05, 3),
    ]
    drawn: list[int] = []

    def batches():
        for batch in range(2):
            drawn.append(batch)
            yield batch

    def on(batch: int) -> Tensor:
        return closure()

    def loss(batch: int) -> Tensor:
        return (1 + batch) * closure.loss()

    asked: dict[str, Any] = {"loss": loss, "probes": 2, "seed": 3}
    together = cut_together(model, on, cuts, batches=batches(), **asked)
    assert drawn == [0, 1]
    assert [found.gradients for found in together] == [2 * 5, 0, 0, 0]
    assert [found.losses for found in together] == [2 * 2, 2 * 4, 2 * 2, 2 * 8]
    assert {found.radius for found in together} == {0.05 / 4}
    for cut, found in zip(cuts, together, strict=True):
        where = (cut.directions, cut.reach)
        more = {"points": cut.points, "filters": cut.filters, "radius": found.radius, **asked}
        alone = slices(model, on, *where, batches=range(2), **more)
        assert alone.gradients == 2 * 5
        assert repr(replace(alone, gradients=found.gradients)) == repr(found)


def test_a_loss_is_evaluated_without_gradients() -> None:
    """And is the one that is told: here of another function, at every point but the middle."""
    model, closure = network()
    seen: list[bool] = []

    def loss() -> Tensor:
        seen.append(torch.is_grad_enabled())
        return torch.tensor(7.0)

    found = slices(model, closure, "random", 0.1, points=3, loss=loss)
    assert seen == [False, False]
    here = closure.loss().item()
    assert found.change == pytest.approx([7 - here, 0, 7 - here])


@pytest.mark.parametrize("look", [LOOKS["bounds"], LOOKS["slice"]])
def test_bad_input_is_named(look: Callable[..., Any]) -> None:
    """Every refusal says what was wrong and with what value, and nothing has moved."""
    model, closure = network()
    before = everything(model)
    loss, one = closure.loss, {"batches": range(2)}
    for options, message in (
        ({"loss": 3}, "loss must be callable, or a sequence of callables, got 3"),
        ({"loss": [loss, loss]}, "every closure needs its loss, got 1 and 2 of them"),
        ({"loss": [loss], **one}, "with batches one loss is needed, got a list of 1"),
        ({"loss": lambda: None}, "loss must return the loss, a tensor with one number, got None"),
        ({"loss": closure}, "loss must not call backward"),
    ):
        with pytest.raises(ValueError, match=message):
            look(model, closure, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing to cut: no slices were asked for"):
        cut_together(model, closure, [])
    assert all(map(torch.equal, before, everything(model)))
