"""A measurement of the power law leaves nothing behind, and depends on nothing unsaid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aliceopt.landscape import (
    bound_check,
    choose_radii,
    diagonals,
    ladder,
    power_law,
)
from landscape_cases import Interrupted, everything, network
from paper import paper_alice

# ---- what is replayed and put back -------------------------------------------------------------


def test_dropout_draws_the_same_masks_everywhere() -> None:
    """With fresh masks the variation would not shrink with the radius at all."""
    model, closure = network(nn.GELU, dropout=0.5)
    found = power_law(model, closure, 2e-4)
    assert found.total.exponent == pytest.approx(2, abs=0.01)
    for module in model:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert power_law(model, closure, 2e-4).total.exponent == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nothing_is_left_behind(dtype: torch.dtype, second: bool) -> None:
    """Parameters, gradients, buffers and random state: the same objects, the same bits."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    closure()
    before, objects = everything(model), [p.grad for p in model.parameters()]
    power_law(model, closure, 1e-2, second=second)
    assert all(map(torch.equal, before, everything(model)))
    assert all(p.grad is g for p, g in zip(model.parameters(), objects, strict=True))


@pytest.mark.parametrize("call", [0, 1, 4])
def test_nothing_is_left_behind_by_a_closure_that_raises(call: int) -> None:
    """At the center, at the first displacement, and in the middle."""
    model, closure = network(dropout=0.2, norm=True)
    closure()
    before, failing = everything(model), Interrupted(closure, call)
    with pytest.raises(KeyboardInterrupt):
        power_law(model, failing, 1e-2)
    assert all(map(torch.equal, before, everything(model)))


def test_gradients_of_other_parameters_are_not_touched() -> None:
    """A frozen part of the model keeps the gradient somebody else gave it."""
    model, closure = network()
    closure()
    model.get_submodule("output").requires_grad_(False)
    before = everything(model)
    assert set(power_law(model, closure, 1e-3).blocks) == {"hidden"}
    assert all(map(torch.equal, before, everything(model)))


def test_alice_trains_on_as_if_nobody_had_looked() -> None:
    """A measurement between two steps is at mu, and changes not a bit of the trajectory."""
    results = []
    for looking in (False, True):
        model, closure = network(dropout=0.2, norm=True, dtype=torch.float32)
        torch.manual_seed(0)
        optimizer = paper_alice(model.parameters(), model=model, quick_steps=1)
        for step in range(6):
            optimizer.step(closure)
            if looking:
                mu = [p.detach().clone() for p in model.parameters()]
                power_law(model, closure, 1e-3, directions=2, step=step)
                assert all(map(torch.equal, mu, model.parameters()))
        results.append(everything(model))
    assert all(map(torch.equal, *results))


def test_unguarded_buffers_are_told_of() -> None:
    """Parameters alone do not say whose buffers to put back."""
    model, closure = network(norm=True)
    with pytest.warns(UserWarning, match="BatchNorm1d, and only parameters were given"):
        power_law(model.named_parameters(), closure, 1e-3)
    with pytest.warns(UserWarning, match="BatchNorm1d, and these are not in the model: pass the"):
        power_law(model.output, closure, 1e-3)


@pytest.mark.parametrize("instrument", [power_law, ladder, diagonals, bound_check])
def test_gradients_in_memory_that_the_closure_fills_again_are_put_back(
    instrument: Callable[..., object],
) -> None:
    """As DistributedDataParallel's buckets are: the tensors are the same, and what they hold."""
    model, inner = network()
    params = list(model.parameters())
    bucket = torch.full((sum(p.numel() for p in params),), 3.0, dtype=torch.float64)
    views = [
        part.view_as(p)
        for part, p in zip(bucket.split([p.numel() for p in params]), params, strict=True)
    ]

    def closure() -> Tensor:
        for p in params:
            p.grad = None
        loss = inner()
        for p, view in zip(params, views, strict=True):
            assert p.grad is not None
            p.grad = view.copy_(p.grad)
        return loss.detach()

    for p, view in zip(params, views, strict=True):
        p.grad = view
    instrument(model, closure, 1e-3)
    assert all(p.grad is view for p, view in zip(params, views, strict=True))
    assert (bucket == 3.0).all()


def test_a_closure_without_backward_is_told_of() -> None:
    """By every instrument, rather than zeros and NaN."""
    model, closure = network()

    def forward() -> Tensor:
        return closure.loss()

    for call in (
        lambda: power_law(model, forward, 1e-3),
        lambda: ladder(model, forward, 1e-3),
        lambda: choose_radii(model, forward),
        lambda: diagonals(model, forward, 1e-3),
        lambda: bound_check(model, forward, 1e-3),
    ):
        with pytest.raises(ValueError, match="the closure left no gradients"):
            call()


# ---- directions, blocks, center ----------------------------------------------------------------


def test_directions_depend_on_seed_and_step_alone() -> None:
    """The same numbers again, whatever torch's random state; others for another seed or step."""
    model, closure = network()
    first = power_law(model, closure, 1e-3, seed=5, step=7)
    torch.rand(3)
    assert power_law(model, closure, 1e-3, seed=5, step=7) == first
    assert power_law(model, closure, 1e-3, seed=6, step=7).total != first.total
    assert power_law(model, closure, 1e-3, seed=5, step=8).total != first.total


def test_blocks_by_name_and_by_depth() -> None:
    """A mapping may overlap and leave out; a depth splits all names."""
    model, closure = network()
    by_name = power_law(
        model, closure, 1e-3, blocks={"w": ["hidden.weight"], "all": dict(model.named_parameters())}
    )
    assert list(by_name.blocks) == ["w", "all"]
    assert by_name.blocks["all"] == by_name.total
    by_depth = power_law(model, closure, 1e-3, blocks=2)
    assert list(by_depth.blocks) == [name for name, _ in model.named_parameters()]
    assert by_depth.blocks["hidden.weight"] == by_name.blocks["w"]


def test_tied_weights_count_once_under_either_name() -> None:
    """One tensor with two names is displaced once."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight

    def closure() -> None:
        model(torch.eye(4)).square().sum().backward()

    found = power_law(model, closure, 1e-3, blocks={"a": ["0.weight"], "b": ["1.weight"]})
    assert found.blocks["a"] == found.blocks["b"] == found.total


def test_names_are_those_inside_wrappers() -> None:
    """torch.compile and DDP put their own name before a model's."""
    model, closure = network()
    holder = nn.Module()
    holder.module = model
    assert power_law(holder, closure, 1e-3) == power_law(model, closure, 1e-3)


def test_a_given_center_is_where_it_measures() -> None:
    """x^4 has variation (12 x^2)^2 radius^2, four times at twice x, by two factors."""
    x = nn.Parameter(torch.full((50,), 1.0, dtype=torch.float64))

    def closure() -> None:
        x.pow(4).sum().backward()

    here = power_law({"x": x}.items(), closure, 1e-4).total
    there = power_law({"x": x}.items(), closure, 1e-4, center={"x": 2 * x}).total
    assert there.variation / here.variation == pytest.approx(16, rel=1e-3)
    assert bool((x == 1).all())
