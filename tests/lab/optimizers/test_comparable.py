"""Methods can be compared: at one seed all start alike, whatever a user's problem does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from aliceopt.lab.data import Arrays
from aliceopt.lab.models import convnet
from aliceopt.lab.models.blocks import blocks_of
from aliceopt.lab.optimizers.methods import make_method, mean_gradients, planned
from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.problems.problem import Problem, ProblemError, build_problem
from aliceopt.lab.problems.rules import check_repeatable, try_problem
from aliceopt.lab.randomness import host_states, restore_host_states, seed_all
from aliceopt.lab.spec import UserProblem

HEAD = """
import random
import numpy as np, torch
from torch import nn

DRAWN_AT_IMPORT = torch.randn(5)
SHARED = nn.Linear(3, 2)


def made(model, inputs=None):
    inputs = torch.ones(20, 3) if inputs is None else inputs
    data = inputs, torch.zeros(20, dtype=torch.long)
    return {"model": model, "loss": nn.functional.cross_entropy, "train": data,
            "validation": data, "batch_size": 5}


def good():
    return made(nn.Linear(3, 2))


def from_numpy():
    model = nn.Linear(3, 2)
    nn.init.constant_(model.bias, float(np.random.rand()) + random.random())
    return made(model)


def shared():
    return made(SHARED)


def unseeded():
    model = nn.Linear(3, 2)
    nn.init.constant_(model.bias, float(np.random.default_rng().random()))
    return made(model)


def moving_data():
    return made(nn.Linear(3, 2), torch.from_numpy(np.random.default_rng().random((20, 3))).float())


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.sub_(0.5))


def writes():
    return made(Writes())
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "user_problem_x.py").write_text(HEAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "user_problem_x"


@pytest.mark.parametrize("function", ["good", "from_numpy"])
def test_weights_follow_from_the_seed_alone(module, function):
    """Also in the first run of a process, which imports the module, and with numpy's numbers."""
    config = UserProblem(f"{module}:{function}")
    first, again, other = (build_problem(config, seed) for seed in (3, 3, 4))
    check_repeatable(first, again)
    assert torch.equal(first.model.bias, again.model.bias)
    assert not torch.equal(first.model.bias, other.model.bias)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("shared", "same model"),
        ("unseeded", "different weights"),
        ("moving_data", "different training data"),
        ("writes", "in place"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(module, function, said):
    with pytest.raises(ProblemError, match=said):
        study_plan(f"{module}:{function}", terms=["none"], baselines=[])


def test_a_model_that_writes_to_its_inputs_leaves_the_data_alone():
    split = Arrays(torch.ones(6, 2), torch.zeros(6), 3)
    for inputs, _ in split.in_order():
        inputs.zero_()
    assert all((inputs == 1).all() for inputs, _ in split.in_order())


def test_host_states_come_back():
    """Through plain values: the next numbers of torch, numpy and random are the same."""
    seed_all(5)
    np.random.standard_normal()  # noqa: NPY002 - leaves half a pair behind
    saved = host_states()

    def numbers():
        import random

        return torch.rand(2).tolist(), np.random.standard_normal(3).tolist(), random.random()  # noqa: NPY002

    expected = numbers()
    restore_host_states(saved)
    assert numbers() == expected


class Layers(nn.Module):
    """As many models are written: ``blocks`` is a list of layers."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))

    def forward(self, x):
        return self.blocks(x)


class Wants(nn.Linear):
    def blocks(self, depth):
        return depth


class Other(nn.Linear):
    def blocks(self):
        return {"first": ["no.such.parameter"]}


def test_blocks_are_the_models_only_if_it_means_the_same_by_them():
    assert set(blocks_of(convnet()) or {}) == set(convnet().blocks())
    assert blocks_of(Layers()) is None
    assert blocks_of(Wants(3, 2)) is None
    assert blocks_of(Other(3, 2)) is None
    assert blocks_of(nn.Linear(3, 2)) is None


def test_alice_tells_of_a_model_that_has_layers_called_blocks():
    """Telemetry must not call them."""
    model = Layers()
    method = make_method("alice", model, {"lr": 0.01}, seed=0)
    step = method.bind(lambda x, y: model(x).square().mean(), (None, None), capture=False)
    step(torch.ones(4, 3), None)
    assert list(method.telemetry()["blocks"]) == ["blocks"]


@pytest.mark.parametrize("options", [{}, {"num_samples": 3}, {"update_period": 4}])
def test_hessian_products_are_counted_as_they_are_made(options, monkeypatch):
    """Each counts two gradients; the plan expects what the run takes."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    method = make_method("adahessian", model, {"lr": 0.01, **options}, seed=0)
    products = []
    grad = torch.autograd.grad

    def counted(outputs, *arguments, **more):
        products.extend([1] if isinstance(outputs, tuple) else [])  # else it is the loss
        return grad(outputs, *arguments, **more)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    step = method.bind(lambda x, y: model(x).square().mean(), (None, None), capture=False)
    for _ in range(8):
        step(torch.ones(4, 3), None)
    assert method.gradients == 8 + 2 * len(products)
    assert planned("adahessian", options, 8) == method.gradients
    assert mean_gradients("adahessian", options) * 8 == method.gradients


def test_outputs_and_targets_that_only_broadcast_are_refused():
    """Torch warns and compares all with all; a study would train on the wrong loss."""
    data = torch.randn(8, 3), torch.randn(8)
    made = Problem(nn.Linear(3, 1), nn.functional.mse_loss, data, data, batch_size=4)
    with pytest.raises(ProblemError, match="target size"):
        try_problem(made)


def test_numpys_doubles_become_the_models_floats():
    split = Arrays(np.ones((4, 2)), np.zeros(4, dtype=np.int64), 2)
    assert split.inputs.dtype == torch.get_default_dtype()
    assert split.targets.dtype == torch.int64
