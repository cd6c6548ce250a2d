"""Slices: the loss at every point, the right predictions over it, and nothing left behind."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

from aliceopt.landscape import slices
from landscape_cases import Interrupted, everything, generator, network, quadratic


def loss_at(model: nn.Module, closure, moves: dict[str, Tensor]) -> float:
    """The loss with every parameter moved, by hand."""
    home = {name: param.detach().clone() for name, param in model.named_parameters()}
    with torch.no_grad():
        for name, param in model.named_parameters():
            param += moves[name]
    value = closure().item()
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(home[name])
    model.zero_grad()
    return value


def test_a_slice_to_other_weights_is_the_loss_on_the_way() -> None:
    """From this checkpoint to another: 0 is here, 1 is there, beyond on both sides."""
    model, closure = network()
    g = generator(5)
    move = {
        name: 0.1 * torch.randn(param.shape, generator=g, dtype=param.dtype)
        for name, param in model.named_parameters()
    }
    found = slices(model, closure, move, points=5, probes=2)
    assert found.positions == (-1.0, -0.5, 0.0, 0.5, 1.0)
    assert found.directions == ("given",)
    here = loss_at(model, closure, {n: 0 * u for n, u in move.items()})
    assert found.loss == pytest.approx(here)
    for position, change in zip(found.positions, found.change, strict=True):
        there = loss_at(model, closure, {n: position * u for n, u in move.items()})
        assert change == pytest.approx(there - here, abs=1e-12)
    size = torch.cat([u.flatten() for u in move.values()]).square().mean().sqrt().item()
    assert found.lengths == pytest.approx((size,))
    assert (found.gradients, found.losses) == ((1 + 4) + 4, 0)


def test_predictions_of_a_quadratic_are_its_slice() -> None:
    """A diagonal Hessian: quadratic and combined are the loss, the glass term is nothing."""
    curvature = torch.linspace(1, 3, 20, dtype=torch.float64)
    x = nn.Parameter(torch.linspace(-1, 1, 20, dtype=torch.float64))

    def closure() -> Tensor:
        loss = (curvature * x.square()).sum() / 2
        loss.backward()
        return loss

    for direction in ("random", "gradient"):
        found = slices([x], closure, direction, 0.2, points=7)
        assert found.predicted["quadratic"] == pytest.approx(found.change, abs=1e-9)
        assert found.predicted["combined"] == pytest.approx(found.change, abs=1e-6)
    gradient = curvature * x.detach()
    slope = -gradient / gradient.square().mean().sqrt()  # down, with root mean square 1
    expected = [
        (gradient * slope * p + curvature * (slope * p).square() / 2).sum().item()
        for p in found.positions
    ]
    assert found.change == pytest.approx(expected)


def test_a_plane_has_both_slices_in_it() -> None:
    """Its middle row and column are the slices along its directions; batches give an error."""
    model, closure = quadratic()
    asked = {"points": 3, "seed": 2}
    plane = slices(model, [closure] * 2, ["gradient", "random"], 0.05, **asked)
    first = slices(model, closure, "gradient", 0.05, **asked)
    assert [row[1] for row in plane.change] == pytest.approx(first.change)
    assert (len(plane.change), len(plane.change[0]), plane.batches) == (3, 3, 2)
    assert plane.error[0][0] == pytest.approx(0, abs=1e-12)
    assert math.isnan(first.error[0])
    assert json.loads(json.dumps(first.as_dict(), allow_nan=False))["error"][0] is None


def test_filters_of_a_direction_are_as_large_as_the_models() -> None:
    """Then a network with a hidden layer scaled up and the next scaled down has the same slice."""
    slopes = []
    for scale in (1.0, 8.0):
        model, closure = network()
        with torch.no_grad():
            model.hidden.weight *= scale  # type: ignore[operator]
            model.hidden.bias *= scale  # type: ignore[operator]
            model.output.weight /= scale  # type: ignore[operator]
        slopes.append(slices(model, closure, "random", 0.1, points=3, filters=True).change)
        plain = slices(model, closure, "random", 0.1, points=3).change
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-6)
    assert plain != pytest.approx(slopes[1], rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("call", [None, 3, 15])
def test_nothing_is_left_behind(dtype: torch.dtype, call: int | None) -> None:
    """Parameters, gradients, buffers and random state to the bit; also after a failure anywhere."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    closure()
    before, counted = everything(model), Interrupted(closure, call)
    asked = {"points": 3, "probes": 2}
    if call is None:
        found = slices(model, [counted] * 2, ["random", "gradient"], 0.05, **asked)
        assert counted.calls == found.gradients
    else:
        with pytest.raises(KeyboardInterrupt):
            slices(model, [counted] * 2, ["random", "gradient"], 0.05, **asked)
    assert all(map(torch.equal, before, everything(model)))


def test_bad_input_is_named() -> None:
    """Every refusal says what was wrong and with what value."""
    model, closure = network()
    for options, message in (
        ({"directions": "up"}, "a direction is 'random', 'gradient' or a displacement .* got 'up'"),
        ({"directions": []}, "one or two directions make a slice, got 0"),
        ({"directions": {"no": torch.ones(1)}}, "has 'no', which is no trainable parameter"),
        ({"directions": {"hidden.bias": torch.ones(3)}}, r"shape \(128,\), got \(3,\)"),
        ({"directions": {"hidden.bias": torch.zeros(128)}}, "given direction is zero everywhere"),
        ({"reach": 0}, r"reach must be a number in \(0, inf\), got 0"),
        ({"radius": -1.0}, r"radius must be a number in \(0, inf\), got -1.0"),
        ({"points": 4}, "points must be odd, so that one is in the middle, got 4"),
        ({"points": 1}, "points must be a whole number >= 3, got 1"),
        ({"probes": 0}, "probes must be a whole number >= 1, got 0"),
    ):
        given: dict[str, object] = {"directions": "random", **options}
        with pytest.raises(ValueError, match=message):
            slices(model, closure, **given)  # type: ignore[arg-type]
