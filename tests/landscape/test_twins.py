"""Activation twins: the same weights, other activations, and nothing overlooked in silence."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from aliceopt.landscape import ladder, twin
from aliceopt.landscape.twins import check_swapped
from landscape_cases import network

FORMULAS = {
    "gelu": F.gelu,
    "silu": lambda x: x * torch.sigmoid(x),
    "relu2": lambda x: torch.where(x > 0, x * x, 0.0),
    "leaky": lambda x: torch.where(x > 0, x, 0.01 * x),
}


class Functional(nn.Module):
    """ReLUs in every spelling that torch has, also in place, and one as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.act, self.outward = (
            nn.Linear(4, 6),
            nn.ReLU(inplace=True),
            nn.Linear(6, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x)
        F.relu_(x)
        x.relu_()
        x = F.relu(torch.relu(x), inplace=True)
        return self.outward(self.act(x.relu()))


@pytest.mark.parametrize("name", FORMULAS)
def test_modules_and_functions_are_replaced_alike(name: str) -> None:
    """Six ReLUs in six spellings become six of the other, in value and in gradient."""
    model = Functional()
    found = twin(model, name)
    x = torch.randn(5, 4)
    expected = model.inward(x)
    for _ in range(6):
        expected = FORMULAS[name](expected)
    expected = model.outward(expected)
    assert torch.allclose(found.model(x), expected, atol=1e-6)
    assert (found.modules, found.calls) == (("act",), 5)
    found.model(x).square().sum().backward()
    expected.square().sum().backward()
    for mine, other in zip(found.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=1e-5)  # type: ignore[arg-type]


class Aliased(nn.Module):
    """A residual block that reads what its ReLU has overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x)
        return x + self.act(x)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_module_in_place_stays_in_place_and_keeps_its_hooks(name: str) -> None:
    model, seen = Aliased(), []
    model.act.register_forward_hook(lambda module, inputs, output: seen.append(output))
    x = torch.randn(5, 4)
    found = twin(model, name).model(x)
    expected = 2 * FORMULAS[name](model.inward(x))
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(seen.pop(), expected / 2, atol=1e-6)
    assert not seen


def test_hooks_of_the_backward_pass_go_along_and_cells_and_pools_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.RNNCell(4, 4, nonlinearity="relu"))
    model.append(nn.FractionalMaxPool2d(2, output_size=1))
    doubled = copy.deepcopy(model[:2])
    doubled[1].register_full_backward_hook(lambda module, inward, out: (2 * inward[0],))
    x = torch.randn(5, 4)
    for net, factor in ((twin(nn.Sequential(*model[:2])), 1), (twin(doubled), 2)):
        net.model(x).sum().backward()
        expected = torch.autograd.grad(F.gelu(model[0](x)).sum(), model[0].bias)[0]
        found = net.model[0].bias.grad
        assert torch.allclose(found, factor * expected, atol=1e-5)
    assert twin(model).kinked == ("2", "3")


def test_the_model_itself_is_left_alone() -> None:
    """Its modules, its outputs and torch's functions, also after the twin has raised."""
    model = Functional()
    x, shapes = torch.randn(5, 4), copy.deepcopy(model.state_dict())
    before = model(x)
    found = twin(model)
    found.model(x)
    with pytest.raises(RuntimeError):
        found.model(torch.randn(5, 3))
    assert F.relu(torch.tensor(-1.0)) == 0
    assert torch.equal(model(x), before)
    assert isinstance(model.act, nn.ReLU)
    assert shapes.keys() == found.model.state_dict().keys()


def test_an_interrupt_while_a_twin_computes_leaves_torch_as_it_was() -> None:
    """Ctrl-C is no Exception, and comes anywhere; the twin goes on afterwards."""

    class Interrupted(nn.Module):
        stop = True

        def forward(self, x: Tensor) -> Tensor:
            if self.stop:
                raise KeyboardInterrupt
            return F.relu(x)

    found = twin(nn.Sequential(nn.Linear(2, 2), Interrupted()))
    with pytest.raises(KeyboardInterrupt):
        found.model(torch.randn(3, 2))
    assert F.relu(torch.tensor(-1.0)) == 0
    Interrupted.stop = False
    for model in (found.model, copy.deepcopy(found.model)):
        x = torch.randn(3, 2)
        assert torch.equal(model(x), F.gelu(model[0](x)))


def test_weights_are_copied_or_shared() -> None:
    """A copy does not follow the model; one that shares is the model's."""
    model = Functional()
    copied, shared = twin(model), twin(model, share=True)
    with torch.no_grad():
        model.inward.weight.zero_()
    assert copied.model.inward.weight.abs().sum() > 0
    assert shared.model.inward.weight is model.inward.weight


def test_a_module_used_twice_and_a_checkpointed_part() -> None:
    """One activation of the twin's in both places; recomputed parts have it, too."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.ReLU()
            self.part = Functional()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.part, self.b(self.a(x)), use_reentrant=False)  # type: ignore[no-any-return]

    model = Twice()
    found = twin(model)
    assert found.model.a is found.model.b
    assert found.modules == ("a", "b", "part.act")
    x = torch.randn(3, 4)
    found.model(x).sum().backward()
    plain = twin(model.part).model
    plain(F.gelu(F.gelu(x))).sum().backward()
    for mine, other in zip(found.model.part.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=1e-6)  # type: ignore[arg-type]


def test_back_to_relu_and_what_is_left() -> None:
    """A smooth model gets kinks; those of pooling and of fused layers are named."""
    model = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 4), nn.SiLU())
    found = twin(model, "relu")
    assert found.modules == ("1", "3")
    x = torch.randn(3, 2)
    assert torch.equal(found.model(x), F.relu(model[2](F.relu(model[0](x)))))
    left = nn.ModuleDict({"pool": nn.MaxPool2d(2), "rnn": nn.RNN(2, 2, nonlinearity="relu")})
    assert twin(left).kinked == ("pool", "rnn")


def test_what_cannot_be_swapped_is_said() -> None:
    """An unknown name, the same activation, and a model that has none."""
    model = Functional()
    with pytest.raises(ValueError, match="one of relu, gelu, silu, relu2, leaky; got 'tanh'"):
        twin(model, "tanh")
    with pytest.raises(ValueError, match="got 'relu' for both"):
        twin(model, "relu", of="relu")
    with pytest.raises(ValueError, match="is itself a ReLU"):
        twin(nn.ReLU())
    smooth = twin(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    smooth.model(torch.ones(1, 2))
    with pytest.raises(ValueError, match="nothing was replaced"):
        check_swapped(smooth.model)
    with pytest.raises(ValueError, match="no activation twin"):
        check_swapped(model)
    used = twin(model)
    used.model(torch.ones(1, 4))
    assert check_swapped(used.model) == "replaced 1 module and 5 calls of functions"


def test_a_gelu_twin_of_a_relu_network_is_smooth() -> None:
    """The same weights and directions: glass in one, a Hessian in the other, far apart."""
    model, _ = network()
    x, y = torch.randn(128, 32, dtype=torch.float64), torch.randint(10, (128,))
    found = {}
    for name, one in (("relu", model), ("gelu", twin(model).model)):

        def closure(one: nn.Module = one) -> None:
            F.cross_entropy(one(x), y).backward()

        found[name] = ladder(one, closure, 1e-3, count=4, directions=8).blocks["hidden"]
    assert [found["relu"].verdict, found["gelu"].verdict] == ["glass", "smooth"]
    assert found["relu"].exponents[0].high < found["gelu"].exponents[0].low
