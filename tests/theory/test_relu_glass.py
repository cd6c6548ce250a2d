"""Theorem 1: ReLU glass, against loops, hand-derived Jacobians, autograd and simulated kinks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aliceopt.theory.relu_glass import (
    ReluGlass,
    expected_variation,
    from_module,
    glass_density,
    glass_density_matrix,
    variation_bound,
)

WIDE = 1e3  # a threshold that every unit of these networks is inside of


def randoms(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, summed: its gradient is ``output - target``."""
    return (output - target).square().sum() / 2


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Float64 with reproducible parameters, whatever the global random state."""
    model = model.double()
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(randoms(100 * seed + k, *p.shape) / math.sqrt(max(p.shape[-1:], default=1)))
    return model


class Net(nn.Module):
    """Linear, activation, linear: the activation is handed in."""

    def __init__(self, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.activation = activation
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.first(x)))


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


# --- the formulas ------------------------------------------------------------------------------


@pytest.fixture
def units() -> tuple[Tensor, Tensor, float]:
    """Seven units over four parameters: pre-activation gradients, loss gradients, threshold."""
    return randoms(0, 7, 4), randoms(1, 7), 0.3


def test_density_matrix_is_the_sum_over_units(units: tuple[Tensor, Tensor, float]):
    """``R_ij = 1/(2 T) sum_k gamma_ki^2 (dL/dz_k)^2 |gamma_kj|``, by a loop over i, j and k."""
    gamma, slope, threshold = (u.tolist() if isinstance(u, Tensor) else u for u in units)
    matrix = glass_density_matrix(*units)
    for i in range(4):
        for j in range(4):
            pairs = zip(gamma, slope, strict=True)
            total = sum(row[i] ** 2 * s**2 * abs(row[j]) for row, s in pairs)
            assert matrix[i, j].item() == pytest.approx(total / (2 * threshold), rel=1e-13)


def test_density_is_the_diagonal(units: tuple[Tensor, Tensor, float]):
    """``1/(2 T) sum_k |gamma_ki|^3 (dL/dz_k)^2``, by a loop, and the diagonal of the matrix."""
    gamma, slope, threshold = units
    density = glass_density(*units)
    for i in range(4):
        pairs = zip(gamma.tolist(), slope.tolist(), strict=True)
        total = sum(abs(row[i]) ** 3 * s**2 for row, s in pairs)
        assert density[i].item() == pytest.approx(total / (2 * threshold), rel=1e-13)
    torch.testing.assert_close(density, glass_density_matrix(*units).diagonal())


def test_bound_is_the_matrix_times_the_displacement(units: tuple[Tensor, Tensor, float]):
    """``R |d|`` with the explicit matrix."""
    d = randoms(2, 4)
    torch.testing.assert_close(variation_bound(*units, d), glass_density_matrix(*units) @ d.abs())


def test_expected_variation_keeps_the_inner_product(units: tuple[Tensor, Tensor, float]):
    """``1/(2 T) sum_k gamma_k^2 (dL/dz_k)^2 |d . gamma_k|``, by a loop."""
    gamma, slope, threshold = units
    d = randoms(3, 4)
    total = torch.zeros(4, dtype=torch.float64)
    for row, s in zip(gamma, slope, strict=True):
        total += row**2 * s**2 * abs(float(row @ d)) / (2 * threshold)
    torch.testing.assert_close(expected_variation(gamma, slope, threshold, d), total)


def test_bound_is_never_below_the_expected_variation(units: tuple[Tensor, Tensor, float]):
    """The triangle inequality, strict for these displacements."""
    for seed in range(20):
        d = randoms(50 + seed, 4)
        assert (variation_bound(*units, d) > expected_variation(*units, d)).all()


@pytest.mark.parametrize("size", [0.7, -0.7])
def test_bound_equals_the_expected_variation_along_one_coordinate(
    units: tuple[Tensor, Tensor, float], size: float
):
    """One moving parameter leaves nothing to the triangle inequality."""
    for j in range(4):
        d = torch.zeros(4, dtype=torch.float64)
        d[j] = size
        torch.testing.assert_close(variation_bound(*units, d), expected_variation(*units, d))
        column = glass_density_matrix(*units)[:, j]
        torch.testing.assert_close(variation_bound(*units, d), abs(size) * column)


def test_triangle_inequality_loses_the_root_of_the_fan_in():
    """Random signs in 400 parameters: bound over expectation is near sqrt(400), i.e. 20."""
    gamma, slope = randoms(4, 200, 400), randoms(5, 200)
    d = randoms(6, 400).sign()
    ratio = (
        variation_bound(gamma, slope, 1.0, d) / expected_variation(gamma, slope, 1.0, d)
    ).mean()
    assert 0.8 * 20 < ratio.item() < 1.25 * 20


def test_simulated_kinks_have_the_expected_variation():
    """Uniform pre-activations, jumps of random sign: mean square gradient change, to 4 s.e.

    Every unit that the displacement carries through zero adds ``+-dL/dz gamma`` to the gradient.
    """
    units_count, params, runs, threshold = 12, 3, 40_000, 2.0
    gamma, slope = randoms(7, units_count, params), randoms(8, units_count)
    d = torch.tensor([0.3, -0.2, 0.25], dtype=torch.float64)
    assert (gamma @ d).abs().max() < threshold
    generator = torch.Generator().manual_seed(9)
    y = (
        2 * torch.rand(runs, units_count, generator=generator, dtype=torch.float64) - 1
    ) * threshold
    signs = 2.0 * torch.randint(0, 2, (runs, units_count), generator=generator) - 1
    previous = None
    for scale in (1.0, 0.5):
        crossed = (y > 0) != (y + scale * gamma @ d > 0)
        change = (crossed * signs * slope) @ gamma
        mean, error = change.square().mean(0), change.square().std(0) / math.sqrt(runs)
        predicted = expected_variation(gamma, slope, threshold, scale * d)
        assert ((mean - predicted).abs() < 4 * error).all()
        assert (mean < variation_bound(gamma, slope, threshold, scale * d)).all()
        if previous is not None:  # linear, not quadratic, in the length of the displacement
            torch.testing.assert_close(2 * predicted, previous)
        previous = predicted


def test_no_units_are_no_glass():
    """Empty input gives zeros of the right shape."""
    gamma, slope, d = torch.zeros(0, 3), torch.zeros(0), torch.ones(3)
    assert torch.equal(glass_density_matrix(gamma, slope, 1.0), torch.zeros(3, 3))
    assert torch.equal(glass_density(gamma, slope, 1.0), torch.zeros(3))
    assert torch.equal(variation_bound(gamma, slope, 1.0, d), torch.zeros(3))
    assert torch.equal(expected_variation(gamma, slope, 1.0, d), torch.zeros(3))


# --- a network's units, by hand ----------------------------------------------------------------


def one_hidden_layer(model: Net, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pre-activations, their parameter gradients and ``dL/dz``, derived on paper.

    ``y_bj = W_j . x_b + b_j`` depends on row j of W through ``x_b`` and on ``b_j`` through 1; the
    last layer does not enter. ``dL/dz_bj = (output - target)_b . V_:j``.
    """
    w, b = model.first.weight.detach(), model.first.bias.detach()
    v, c = model.last.weight.detach(), model.last.bias.detach()
    y = x @ w.T + b
    gamma = torch.zeros(len(x), 4, 4 * 3 + 4 + 2 * 4 + 2, dtype=torch.float64)
    for i in range(len(x)):
        for j in range(4):
            gamma[i, j, 3 * j : 3 * j + 3] = x[i]
            gamma[i, j, 12 + j] = 1.0
    residual = y.clamp(min=0) @ v.T + c - target
    return y.flatten(), gamma.flatten(0, 1), (residual @ v).flatten()


def test_units_of_one_hidden_layer_are_the_hand_derived_ones():
    """Pre-activations, Jacobian rows and loss gradients of all B x 4 units."""
    model, x, target = randomized(Net(nn.ReLU())), randoms(10, 5, 3), randoms(11, 5, 2)
    glass = from_module(model, squared_error, (x, target), WIDE)
    y, gamma, slope = one_hidden_layer(model, x, target)
    torch.testing.assert_close(glass.preacts, y)
    torch.testing.assert_close(glass.preact_grads, gamma)
    torch.testing.assert_close(glass.loss_grads, slope)
    assert glass.total_units == 20


def test_only_units_inside_the_threshold_are_kept():
    """The hand-derived units with ``|y| < T``, in order; the total counts the others too."""
    model, x, target = randomized(Net(nn.ReLU())), randoms(10, 5, 3), randoms(11, 5, 2)
    y, gamma, slope = one_hidden_layer(model, x, target)
    inside = y.abs() < 0.6
    assert 2 < inside.sum() < 18
    glass = from_module(model, squared_error, (x, target), 0.6)
    torch.testing.assert_close(glass.preacts, y[inside])
    torch.testing.assert_close(glass.preact_grads, gamma[inside])
    torch.testing.assert_close(glass.loss_grads, slope[inside])
    assert (glass.total_units, glass.threshold) == (20, 0.6)


def test_methods_of_the_glass_are_the_theorem_on_its_units():
    """Density, matrix, bound and expectation from the hand-derived units."""
    model, x, target = randomized(Net(nn.ReLU())), randoms(10, 5, 3), randoms(11, 5, 2)
    y, gamma, slope = one_hidden_layer(model, x, target)
    inside = y.abs() < 0.6
    gamma, slope = gamma[inside], slope[inside]
    glass = from_module(model, squared_error, (x, target), 0.6)
    d = randoms(12, gamma.shape[1])
    weight = slope**2 / 1.2
    matrix = torch.einsum("ki,k,kj->ij", gamma**2, weight, gamma.abs())
    torch.testing.assert_close(glass.density_matrix(), matrix)
    torch.testing.assert_close(glass.density(), matrix.diagonal())
    torch.testing.assert_close(glass.bound(d), matrix @ d.abs())
    crossing = (gamma @ d).abs()
    torch.testing.assert_close(
        glass.expected(d), torch.einsum("ki,k,k->i", gamma**2, weight, crossing)
    )


def test_second_layer_units_see_the_first_through_active_units_only():
    """``dy2_k/dW1_j = W2_kj 1[y1_j > 0] x`` and ``dy2_k/dW2_k = relu(y1)``, by hand."""
    model = nn.Sequential(
        nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False), nn.ReLU()
    )
    randomized(model, seed=1)
    x, target = randoms(13, 1, 2), randoms(14, 1, 2)
    w1, w2 = model[0].weight.detach(), model[2].weight.detach()
    y1 = w1 @ x[0]
    z1 = y1.clamp(min=0)
    y2 = w2 @ z1
    assert 0 < (y1 > 0).sum() < 3
    glass = from_module(model, squared_error, (x, target), WIDE)
    torch.testing.assert_close(glass.preacts, torch.cat([y1, y2]))
    gamma = torch.zeros(5, 12, dtype=torch.float64)
    for j in range(3):
        gamma[j, 2 * j : 2 * j + 2] = x[0]
    for k in range(2):
        for j in range(3):
            gamma[3 + k, 2 * j : 2 * j + 2] = w2[k, j] * float(y1[j] > 0) * x[0]
        gamma[3 + k, 6 + 3 * k : 9 + 3 * k] = z1
    torch.testing.assert_close(glass.preact_grads, gamma)
    residual = y2.clamp(min=0) - target[0]
    upstream = w2.T @ (residual * (y2 > 0))
    torch.testing.assert_close(glass.loss_grads, torch.cat([upstream, residual]))


def test_slices_say_where_each_parameter_stands():
    """In the order of ``named_parameters``, without gaps."""
    model = randomized(Net(nn.ReLU()))
    glass = from_module(model, squared_error, (randoms(10, 5, 3), randoms(11, 5, 2)), WIDE)
    assert glass.slices == {
        "first.weight": slice(0, 12),
        "first.bias": slice(12, 16),
        "last.weight": slice(16, 24),
        "last.bias": slice(24, 26),
    }
    assert glass.preact_grads[:, glass.slices["last.weight"]].abs().max() == 0


# --- finding every ReLU ------------------------------------------------------------------------

RELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU inplace": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu inplace": lambda x: F.relu(x, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu input=": lambda x: torch.relu(input=x),
    "torch.relu_": torch.relu_,
    "x.relu": lambda x: x.relu(),
    "x.relu_": lambda x: x.relu_(),
    "x.clamp(min=0)": lambda x: x.clamp(min=0),
    "torch.clamp(x, 0)": lambda x: torch.clamp(x, 0),
    "torch.clamp(x, 0.0, None)": lambda x: torch.clamp(x, 0.0, None),
    "torch.clamp(input=x, min=0)": lambda x: torch.clamp(input=x, min=0),
    "x.clamp_min(0)": lambda x: x.clamp_min(0),
    "torch.clamp_min(x, 0)": lambda x: torch.clamp_min(x, 0),
    "x.clamp_(min=0)": lambda x: x.clamp_(min=0),
    "x.clamp_min_(0)": lambda x: x.clamp_min_(0),
    "x.clip(min=0)": lambda x: x.clip(min=0),
    "torch.clip(x, 0)": lambda x: torch.clip(x, 0),
}


@pytest.mark.parametrize("spelling", RELUS)
def test_every_spelling_of_relu_is_found(spelling: str):
    """As a module, in place, a function, a method or a clamp at zero: the hand-derived units."""
    model = randomized(Net(RELUS[spelling]))
    x, target = randoms(10, 5, 3), randoms(11, 5, 2)
    glass = from_module(model, squared_error, (x, target), WIDE)
    y, gamma, slope = one_hidden_layer(model, x, target)
    assert glass.total_units == 20
    torch.testing.assert_close(glass.preacts, y)
    torch.testing.assert_close(glass.preact_grads, gamma)
    torch.testing.assert_close(glass.loss_grads, slope)


LEAKY: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "nn.LeakyReLU(0.2)": (nn.LeakyReLU(0.2), 0.2),
    "nn.LeakyReLU(0.2) inplace": (nn.LeakyReLU(0.2, inplace=True), 0.2),
    "F.leaky_relu default": (F.leaky_relu, 0.01),
    "F.leaky_relu(x, 0.2)": (lambda x: F.leaky_relu(x, 0.2), 0.2),
    "F.leaky_relu(negative_slope=0.2)": (lambda x: F.leaky_relu(x, negative_slope=0.2), 0.2),
    "F.leaky_relu_(x, 0.2)": (lambda x: F.leaky_relu_(x, 0.2), 0.2),
    "slope above one": (nn.LeakyReLU(1.5), 1.5),
}


@pytest.mark.parametrize("spelling", LEAKY)
def test_leaky_relu_counts_with_its_jump_folded_in(spelling: str):
    """The slope jumps by ``1 - negative_slope``, and so does the gradient per ``dL/dz``."""
    activation, slope = LEAKY[spelling]
    model, x, target = randomized(Net(activation)), randoms(10, 5, 3), randoms(11, 5, 2)
    glass = from_module(model, squared_error, (x, target), WIDE)
    y, gamma, _ = one_hidden_layer(model, x, target)
    v, c = model.last.weight.detach(), model.last.bias.detach()
    pre = y.reshape(5, 4)
    residual = torch.where(pre > 0, pre, slope * pre) @ v.T + c - target
    torch.testing.assert_close(glass.preacts, y)
    torch.testing.assert_close(glass.preact_grads, gamma)
    torch.testing.assert_close(glass.loss_grads, (1 - slope) * (residual @ v).flatten())


def test_input_of_an_inplace_relu_is_overwritten_as_in_the_model():
    """A branch that reads the tensor after ``relu_`` reads z, not y: output ``2 V z + c``."""
    model = randomized(Net(lambda y: F.relu(y, inplace=True) + y))
    x, target = randoms(10, 5, 3), randoms(11, 5, 2)
    y, gamma, _ = one_hidden_layer(model, x, target)
    v, c = model.last.weight.detach(), model.last.bias.detach()
    residual = 2 * y.reshape(5, 4).clamp(min=0) @ v.T + c - target
    torch.testing.assert_close(model(x).detach(), residual + target)
    glass = from_module(model, squared_error, (x, target), WIDE)
    torch.testing.assert_close(glass.preact_grads, gamma)
    torch.testing.assert_close(glass.loss_grads, 2 * (residual @ v).flatten())


def test_masked_preactivations_do_not_spoil_the_others():
    """A ReLU of minus infinity is zero, in the model and here."""
    mask = torch.tensor([True, False, False, False])
    model = randomized(Net(lambda y: F.relu(y.masked_fill(mask, -math.inf))))
    x, target = randoms(10, 5, 3), randoms(11, 5, 2)
    glass = from_module(model, squared_error, (x, target), WIDE)
    assert (glass.total_units, len(glass.preacts)) == (20, 15)
    z = model.first(x).detach().clamp(min=0) * ~mask
    residual = z @ model.last.weight.detach().T + model.last.bias.detach() - target
    slope = (residual @ model.last.weight.detach())[:, 1:]
    torch.testing.assert_close(glass.loss_grads, slope.flatten())


@pytest.mark.parametrize(
    "activation",
    [
        F.gelu,
        F.silu,
        torch.tanh,
        lambda x: x.clamp(max=0),
        lambda x: x.clamp(min=-1),
        lambda x: x.clamp(0, 6),
    ],
    ids=["gelu", "silu", "tanh", "clamp max", "clamp at -1", "clamp both sides"],
)
def test_other_activations_are_not_counted(activation: Callable[[Tensor], Tensor]):
    """No ReLU, no units: zero density, matrix, bound and expectation, in the right shapes."""
    model = randomized(Net(activation))
    glass = from_module(model, squared_error, (randoms(10, 5, 3), randoms(11, 5, 2)), WIDE)
    assert glass.total_units == 0
    assert glass.preacts.shape == (0,)
    assert glass.preact_grads.shape == (0, 26)
    assert glass.loss_grads.shape == (0,)
    zeros = torch.zeros(26, dtype=torch.float64)
    assert torch.equal(glass.density(), zeros)
    assert torch.equal(glass.density_matrix(), torch.zeros(26, 26, dtype=torch.float64))
    assert torch.equal(glass.bound(zeros + 1), zeros)
    assert torch.equal(glass.expected(zeros + 1), zeros)


def test_relu_in_the_loss_counts_for_nothing_but_the_chain_rule():
    """A hinge loss: the units are the model's, and ``dL/dz`` goes through the hinge."""
    model, x = randomized(Net(nn.ReLU())), randoms(10, 5, 3)

    def hinge(output: Tensor, target: Tensor) -> Tensor:
        return (1 - output * target).clamp(min=0).sum()

    target = randoms(11, 5, 2).sign()
    glass = from_module(model, hinge, (x, target), WIDE)
    y, gamma, _ = one_hidden_layer(model, x, target)
    v = model.last.weight.detach()
    output = y.reshape(5, 4).clamp(min=0) @ v.T + model.last.bias.detach()
    slope = (-target * (output * target < 1)) @ v
    assert glass.total_units == 20
    torch.testing.assert_close(glass.preact_grads, gamma)
    torch.testing.assert_close(glass.loss_grads, slope.flatten())


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


def test_result_is_detached_and_in_the_dtype_of_the_parameters():
    """Float32 in, float32 out, no graph kept alive; also under ``no_grad``."""
    model = randomized(Net(nn.ReLU())).float()
    batch = (randoms(10, 5, 3).float(), randoms(11, 5, 2).float())
    glass = from_module(model, squared_error, batch, WIDE)
    with torch.no_grad():
        again = from_module(model, squared_error, batch, WIDE)
    for name in ("preacts", "preact_grads", "loss_grads"):
        value = getattr(glass, name)
        assert value.dtype == torch.float32
        assert not value.requires_grad
        assert torch.equal(value, getattr(again, name))


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


def test_many_units_do_not_depend_on_chunking():
    """More units than fit one chunk of Jacobian rows: still one row each, in order."""
    model = randomized(Net(nn.ReLU()))
    x, target = randoms(19, 150, 3), randoms(20, 150, 2)
    glass = from_module(model, squared_error, (x, target), WIDE)
    y, gamma, slope = one_hidden_layer(model, x, target)
    assert glass.total_units == 600
    torch.testing.assert_close(glass.preacts, y)
    torch.testing.assert_close(glass.preact_grads, gamma)
    torch.testing.assert_close(glass.loss_grads, slope)


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
