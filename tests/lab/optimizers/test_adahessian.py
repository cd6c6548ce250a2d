"""AdaHessian: the steps of its package, exact where the Hessian is diagonal, and no graph kept."""

import copy

import pytest
import torch
from torch import nn

from aliceopt.lab.optimizers.adahessian import AdaHessian
from aliceopt.lab.optimizers.methods import make_method
from method_cases import assert_same, batches, by_hand, drive, network


@pytest.mark.filterwarnings("ignore:.*create_graph=True.*")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_samples": 3},
        {"update_period": 2},
        {"weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-4, "hessian_power": 0.5},
    ],
)
def test_steps_are_those_of_its_package(options):
    """In float64, with the same signs: losses and weights after eight steps."""
    theirs = pytest.importorskip("pytorch_optimizer").AdaHessian
    data = [(x.double(), y) for x, y in batches(8)]
    mine, model = network().double(), network().double()
    torch.manual_seed(9)
    losses, _ = drive(make_method("adahessian", mine, {"lr": 0.1, **options}, seed=0), data)
    torch.manual_seed(9)
    optimizer = theirs(model.parameters(), lr=0.1, **options)
    wanted = by_hand(optimizer, model, data, create_graph=True)
    optimizer.zero_grad(set_to_none=True)
    assert losses == pytest.approx(wanted, rel=1e-9)
    for p, q in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-10)


def test_on_a_diagonal_quadratic_the_first_step_is_newtons():
    """Signs times H signs is the diagonal itself, whatever the signs: w <- w - lr g / |h|."""
    curvature = torch.tensor([4.0, 0.5, 2.0])
    w = nn.Parameter(torch.tensor([1.0, -3.0, 2.0]))
    optimizer = AdaHessian([w], lr=0.25)
    assert optimizer.backward((curvature * w.square()).sum() / 2) == 3
    optimizer.step()
    torch.testing.assert_close(w.detach(), 0.75 * torch.tensor([1.0, -3.0, 2.0]))


def test_what_no_loss_or_no_curvature_reaches():
    """A parameter without a gradient stays, with no state; one that the loss is linear in moves."""
    used, linear, unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = AdaHessian([used, linear, unused], lr=0.1, eps=1.0)
    optimizer.backward(used.square().sum() + linear.sum())
    optimizer.step()
    assert torch.equal(unused, torch.ones(2))
    assert unused not in optimizer.state
    torch.testing.assert_close(linear.detach(), torch.full((2,), 0.9))  # g / (0 + eps)
    torch.testing.assert_close(used.detach(), torch.full((2,), 1 - 0.2 / 3))  # g / (h + eps)
    alone = AdaHessian([linear], lr=0.1, eps=1.0)
    alone.backward(linear.sum())  # whose gradient has no graph at all
    alone.step()
    torch.testing.assert_close(linear.detach(), torch.full((2,), 0.8))


def test_a_gradient_of_another_loss_is_not_taken_again():
    """A parameter that this loss does not reach stays, whatever gradient it still has."""
    used, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = AdaHessian([used, idle], lr=0.1)
    optimizer.backward((used + idle).square().sum())
    optimizer.step()
    before = idle.clone()
    optimizer.backward(used.square().sum())
    optimizer.step()
    assert torch.equal(idle, before)


@pytest.mark.parametrize("period", [1, 2, 3])
def test_it_goes_on_from_its_state(period):
    """Also between two measurements of the diagonal; signs are drawn with torch's generator."""
    data, options = batches(6), {"lr": 0.1, "update_period": period}
    whole, first = (make_method("adahessian", network(), options, seed=0) for _ in range(2))
    torch.manual_seed(3)
    drive(whole, data)
    torch.manual_seed(3)
    drive(first, data[:4])
    second = make_method("adahessian", copy.deepcopy(first.model), options, seed=0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    drive(second, data[4:])
    assert_same(whole.model, second.model)


def test_no_graph_is_left_behind():
    """A gradient that holds its own graph would keep every step in memory."""
    model = network()
    method = make_method("adahessian", model, {"lr": 0.1}, seed=0)
    drive(method, batches(2))
    assert all(p.grad.grad_fn is None for p in model.parameters())
    assert not method.adahessian._diagonals


def test_bad_options_and_closures_are_refused():
    weights = [nn.Parameter(torch.ones(2))]
    for options, said in (
        ({"betas": (0.9, 1.0)}, r"betas must be in \[0, 1\), got \(0.9, 1.0\)"),
        ({"num_samples": 0}, "num_samples must be a whole number >= 1, got 0"),
        ({"update_period": 1.5}, "update_period must be a whole number >= 1, got 1.5"),
        ({"hessian_power": -1}, "hessian_power must be a number > 0, got -1"),
        ({"lr": -1.0}, "lr must be a number >= 0, got -1"),
        ({"eps": float("nan")}, "eps must be a number >= 0, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must be a number >= 0, got -0.1"),
    ):
        with pytest.raises(ValueError, match=said):
            AdaHessian(weights, **options)
    with pytest.raises(ValueError, match="takes no closure"):
        AdaHessian(weights).step(lambda: 0.0)
