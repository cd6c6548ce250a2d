"""Theorem 1: units of convolutional, normalised and shared layers by autograd, and their jumps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aliceopt.theory.relu_glass import ReluGlass, from_module
from theory_cases import WIDE, randomized, randoms, squared_error


def flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def autograd_rows(preacts: list[Tensor], model: nn.Module) -> Tensor:
    """``dy/dtheta`` of every unit, one backward pass each."""
    params = list(model.parameters())
    rows = [
        flat(torch.autograd.grad(y, params, retain_graph=True, materialize_grads=True))
        for preact in preacts
        for y in preact.flatten()
    ]
    return torch.stack(rows)


# --- convolutions, batch norm, sharing ---------------------------------------------------------


class ConvNet(nn.Module):
    """Convolution, batch norm, ReLU module, convolution, functional leaky ReLU, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2, 2, 2, stride=2)
        self.out = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv1(x)))
        x = F.leaky_relu(self.conv2(x), 0.1)
        return self.out(x.mean((2, 3)))


def conv_units(model: ConvNet, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pre-activations, their gradients and ``dL/dz`` times the jump, from a written-out forward."""
    m = copy.deepcopy(model)
    y1 = m.norm(m.conv1(x))
    z1 = y1.clamp(min=0)
    y2 = m.conv2(z1)
    z2 = torch.where(y2 > 0, y2, 0.1 * y2)
    loss = squared_error(m.out(z2.mean((2, 3))), target)
    slope1, slope2 = torch.autograd.grad(loss, (z1, z2), retain_graph=True)
    return flat((y1, y2)).detach(), autograd_rows([y1, y2], m), flat((slope1, 0.9 * slope2))


@pytest.mark.parametrize("training", [True, False])
def test_units_of_a_convolutional_network(training: bool):
    """One unit per example, channel and pixel; batch statistics are part of the Jacobian."""
    model = randomized(ConvNet()).train(training)
    x, target = randoms(15, 3, 1, 4, 4), randoms(16, 3, 3)
    glass = from_module(model, squared_error, (x, target), WIDE)
    y, gamma, slope = conv_units(model, x, target)
    assert glass.total_units == 3 * 2 * 4 * 4 + 3 * 2 * 2 * 2
    torch.testing.assert_close(glass.preacts, y)
    torch.testing.assert_close(glass.preact_grads, gamma)
    torch.testing.assert_close(glass.loss_grads, slope)


@pytest.mark.parametrize("training", [True, False])
def test_model_is_left_as_it_was(training: bool):
    """Parameters, gradients, running statistics, mode and global random state are untouched."""
    model = randomized(ConvNet()).train(training)
    model.conv1.weight.grad = torch.ones_like(model.conv1.weight)
    model.out.bias.requires_grad_(False)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    identities = [id(p) for p in model.parameters()] + [id(b) for b in model.buffers()]
    x, target = randoms(15, 3, 1, 4, 4), randoms(16, 3, 3)
    copies = x.clone(), target.clone()
    from_module(model, squared_error, (x, target), 0.5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert identities == [id(p) for p in model.parameters()] + [id(b) for b in model.buffers()]
    assert all(m.training is training for m in model.modules())
    assert torch.equal(model.conv1.weight.grad, torch.ones_like(model.conv1.weight))
    assert model.conv2.weight.grad is None
    assert [p.requires_grad for p in model.parameters()] == [True] * 7 + [False]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, copies[0])
    assert torch.equal(target, copies[1])


class SharedLayer(nn.Module):
    """One linear layer under two names, one ReLU called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)
        self.again = self.layer
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.again(self.relu(self.layer(x))))


class TiedWeight(nn.Module):
    """Two linear layers that hold one parameter between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)
        self.again = nn.Linear(3, 3, bias=False)
        self.again.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.again(F.relu(self.layer(x))))


@pytest.mark.parametrize("kind", [SharedLayer, TiedWeight])
def test_shared_parts_count_every_use(kind: type[nn.Module]):
    """Two calls are two sets of units; a weight used twice sums both uses in its Jacobian."""
    model = randomized(kind(), seed=2)
    x, target = randoms(17, 2, 3), randoms(18, 2, 3)
    separate = copy.deepcopy(model)
    y1 = x @ separate.layer.weight.T
    y2 = y1.clamp(min=0) @ separate.layer.weight.T
    glass = from_module(model, squared_error, (x, target), WIDE)
    assert glass.total_units == 12
    assert glass.slices == {"layer.weight": slice(0, 9)}
    torch.testing.assert_close(glass.preacts, flat((y1, y2)).detach())
    torch.testing.assert_close(glass.preact_grads, autograd_rows([y1, y2], separate))


@pytest.mark.parametrize("kind", [SharedLayer, TiedWeight])
def test_model_with_shared_parts_is_left_as_it_was(kind: type[nn.Module]):
    """The parameter is the same object afterwards, under both names, and can be trained on."""
    model = randomized(kind(), seed=2)
    parameter = model.layer.weight
    from_module(model, squared_error, (randoms(17, 2, 3), randoms(18, 2, 3)), WIDE)
    assert model.layer.weight is parameter
    assert model.again.weight is parameter


# --- the jump itself ---------------------------------------------------------------------------


def gradient(model: nn.Module, theta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Loss gradient at these parameter values, by plain autograd on a copy."""
    m = copy.deepcopy(model)
    nn.utils.vector_to_parameters(theta, m.parameters())
    return flat(torch.autograd.grad(squared_error(m(batch[0]), batch[1]), tuple(m.parameters())))


def glass_at(model: nn.Module, theta: Tensor, batch: tuple[Tensor, Tensor]) -> ReluGlass:
    m = copy.deepcopy(model)
    nn.utils.vector_to_parameters(theta, m.parameters())
    return from_module(m, squared_error, batch, WIDE)


def on_the_kink(model: nn.Module, theta: Tensor, unit: int, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Parameters at which this unit's pre-activation is zero, by Newton steps along gamma."""
    for _ in range(8):
        glass = glass_at(model, theta, batch)
        gamma = glass.preact_grads[unit]
        theta = theta - glass.preacts[unit] * gamma / gamma.square().sum()
    return theta


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.3)], ids=["relu", "leaky"])
@pytest.mark.parametrize("unit", [1, 7, 9, 13])
def test_gradient_jumps_by_the_loss_gradient_times_gamma(activation: nn.Module, unit: int):
    """A unit pushed across its kink along gamma changes the gradient by ``dL/dz gamma``.

    To first order: exactly one of the units of both layers flips, and what is left over is
    proportional to the distance moved.
    """
    model = randomized(
        nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 3), activation, nn.Linear(3, 2))
    )
    batch = (randoms(21, 2, 3), randoms(22, 2, 2))
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    theta = on_the_kink(model, start, unit, batch)
    leftovers = []
    for distance in (1e-4, 1e-6):
        glass = glass_at(model, theta, batch)
        gamma = glass.preact_grads[unit]
        push = distance * gamma / gamma.norm()
        sides = [glass_at(model, theta + s * push, batch).preacts > 0 for s in (-1, 1)]
        flipped = (sides[0] != sides[1]).nonzero().flatten().tolist()
        assert flipped == [unit]
        assert sides[1][unit]
        jump = gradient(model, theta + push, batch) - gradient(model, theta - push, batch)
        expected = glass.loss_grads[unit] * gamma
        assert expected.norm() > 1e-3
        leftovers.append(((jump - expected).norm() / expected.norm()).item())
    assert leftovers[0] < 0.1
    assert leftovers[1] == pytest.approx(leftovers[0] / 100, rel=0.1, abs=1e-9)
