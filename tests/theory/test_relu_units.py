"""Theorem 1: the units of one network, in every spelling of ReLU, against those derived by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aliceopt.theory.relu_glass import from_module
from theory_cases import WIDE, randomized, randoms, squared_error


class Net(nn.Module):
    """Linear, activation, linear: the activation is handed in."""

    def __init__(self, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.activation = activation
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.first(x)))


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


# --- a network's units, by hand ----------------------------------------------------------------


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
