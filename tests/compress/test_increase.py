"""Predicted increases against closed forms, and bits against every way to spend them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from aliceopt.compress import (
    Sensitivity,
    bits,
    measured_increase,
    predicted_increase,
    removal,
    rounded,
    sensitivity,
)
from compress_cases import Bowl, backward_of, everything_of, net_closure, small_net, some_batches

H = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)
START = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
SLOPE = torch.tensor([-0.3, 0.1, 0.0], dtype=torch.float64)


def test_on_a_diagonal_bowl_prediction_and_measurement_agree():
    bowl = Bowl(H.diag(), SLOPE, START)
    found = sensitivity(
        bowl, backward_of(bowl.loss), [1.0], 0.01, terms=("signed", "gradient", "glass")
    )
    moves = removal(bowl, {"layer.weight": torch.tensor([[True, False, False]])})
    assert moves["layer.weight"].tolist() == [[0.0, 2.0, -1.0]]
    whole, layers = predicted_increase(found, moves)
    grad = H * START + SLOPE
    assert whole.first == pytest.approx(float(2 * grad[1] - grad[2]))
    assert whole.hessian == pytest.approx(0.5 * (0.5 * 4 + 1.0))
    assert whole.glass == pytest.approx(0, abs=1e-9)
    assert layers["layer.weight"] == whole
    risen = measured_increase(bowl, moves, bowl.loss, [1.0])
    assert whole.total == pytest.approx(risen)


def test_the_glass_of_several_layers_adds_in_squares():
    """Theorem 4, jointly: ``sqrt(2/3pi sum rho |d|^3)``; layers alone by their own roots."""
    rho = {"a": torch.tensor([[3.0]]), "b": torch.tensor([[4.0]])}
    found = Sensitivity((0.1,), ("glass",), 0, 1, 3, {("glass", 0.1): rho})
    moves = {"a": torch.tensor([[-1.0]]), "b": torch.tensor([[2.0]])}
    whole, layers = predicted_increase(found, moves)
    factor = math.sqrt(2 / (3 * math.pi))
    assert layers["a"].glass == pytest.approx(factor * math.sqrt(3))
    assert layers["b"].glass == pytest.approx(factor * math.sqrt(32))
    assert whole.glass == pytest.approx(factor * math.sqrt(35))
    assert (whole.first, whole.hessian) == (None, None)
    assert whole.total == whole.glass


def test_what_cannot_be_predicted_is_told_and_not_zero():
    net = small_net().eval()
    moves = removal(net, {"0.weight": torch.zeros(4, 1, 3, 3)})
    found = sensitivity(net, net_closure(net), some_batches(1), 0.01)
    with pytest.raises(ValueError, match="nothing to predict from: measure gradient, signed or"):
        predicted_increase(found, moves)
    with pytest.raises(ValueError, match="got 'singed'"):
        predicted_increase(found, moves, hessian="singed")
    with pytest.raises(ValueError, match="'elsewhere' was not measured"):
        predicted_increase(found, {"elsewhere": torch.ones(1)}, hessian="rms")


def test_autocast_outside_and_training_mode_change_nothing():
    """Casts of weights are not kept from one place to the other; buffers and draws are the same."""
    torch.manual_seed(0)  # of the dropout
    net = small_net()
    moves = removal(net, {"5.weight": torch.zeros(3, 64)})
    before, batches = everything_of(net), some_batches(2)

    def loss_of(batch):
        return nn.functional.cross_entropy(net(batch[0]).float(), batch[1])

    plain = measured_increase(net, moves, loss_of, batches)
    with torch.autocast("cpu", torch.bfloat16):
        inside = measured_increase(net, moves, loss_of, batches)
    assert inside == pytest.approx(plain, abs=0.02)
    assert abs(plain) > 0.05
    nothing = {"5.weight": torch.zeros(3, 64)}
    assert measured_increase(net, nothing, loss_of, batches) == 0
    assert all(map(torch.equal, everything_of(net), before))


def test_measuring_an_increase_changes_nothing_even_if_it_fails():
    net = small_net().eval()
    moves = removal(net, {"0.weight": torch.zeros(4, 1, 3, 3)})
    before, calls = everything_of(net), []

    def loss_of(batch):
        calls.append(batch)
        if len(calls) == 4:
            raise RuntimeError("no more")
        return nn.functional.cross_entropy(net(batch[0]), batch[1])

    rise = measured_increase(net, moves, loss_of, some_batches(1))
    assert rise != 0
    with pytest.raises(RuntimeError, match="no more"):
        measured_increase(net, moves, loss_of, some_batches(2))
    assert all(map(torch.equal, everything_of(net), before))
    with pytest.raises(ValueError, match="there are no batches"):
        measured_increase(net, moves, loss_of, [])
    losses = iter([1.0, 2.0, torch.nan])
    with pytest.raises(ValueError, match="batch 2: the loss is nan, with nothing moved"):
        measured_increase(net, moves, lambda batch: next(losses), some_batches(2))
    assert all(map(torch.equal, everything_of(net), before))


def three_layers() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(3)])


def of_curvature(*values: float) -> Sensitivity:
    means = {f"{i}.weight": torch.full((8, 8), value**2) for i, value in enumerate(values)}
    return Sensitivity((0.01,), ("rms",), 0, 1, 2, {("rms", 0.01): means})


@pytest.mark.parametrize("curvatures", [(1.0, 1.0, 1.0), (100.0, 1.0, 0.01), (4.0, 0.0, 1.0)])
def test_no_other_way_to_spend_as_many_bits_is_cheaper(curvatures):
    """Against all combinations of 2 to 6 bits with the same average, up to rounding luck of 1%."""
    net = three_layers()
    found = bits(net, of_curvature(*curvatures), 4.0, least=2, most=6)
    assert found.average == 4

    def cost(spent):
        total = 0.0
        for layer, b, h in zip(net, spent, curvatures, strict=True):
            w = layer.weight.detach()
            grid = bits(nn.Sequential(layer), of_curvature(1.0), b, least=b, most=b).scales
            total += 0.5 * h * (rounded(w, b, grid["0.weight"]) - w).square().sum().item()
        return total

    ways = [way for way in itertools.product(range(2, 7), repeat=3) if sum(way) == 12]
    mine = tuple(found.bits.values())
    assert cost(mine) <= 1.01 * min(map(cost, ways))


def test_a_layer_that_matters_more_gets_more_bits_and_dead_ones_least():
    found = bits(three_layers(), of_curvature(100.0, 1.0, 0.0), 4.0)
    first, second, third = found.bits.values()
    assert first > second > third == 2


def test_rounding_is_to_a_symmetric_grid_and_eight_bits_are_close():
    weight = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    scale = weight.abs().amax(1) / 127
    near = rounded(weight, 8, scale)
    assert ((near - weight).abs() <= scale[:, None] / 2 + 1e-6).all()
    levels = rounded(weight, 2, weight.abs().amax(1)) / weight.abs().amax(1)[:, None]
    assert set(levels.unique().tolist()) <= {-1.0, 0.0, 1.0}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"average": 9.0}, "average must be a number from 2 to 8, got 9.0"),
        ({"least": 1}, "2 <= least <= most <= 16, got 1 and 8"),
        ({"least": 6, "most": 4}, "got 6 and 4"),
        ({"term": "glass"}, "curvatures are rms, abs, signed, free; got 'glass'"),
    ],
)
def test_bad_input_gets_one_sentence(asked, told):
    net = small_net().eval()
    found = sensitivity(net, net_closure(net), some_batches(1), 0.01)
    before = everything_of(net)
    with pytest.raises(ValueError, match=told):
        bits(net, found, **asked)
    assert all(map(torch.equal, everything_of(net), before))
