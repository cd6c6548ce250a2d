"""A problem that breaks the rules is told which, before anything is trained."""

import random
import re

import numpy as np
import pytest
import torch
from torch import nn

from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.problems.problem import Problem, ProblemError
from aliceopt.lab.problems.rules import try_problem

pytest.importorskip("typer")

from lab_cases import tiny

HEAD = """
import random
import numpy as np
import torch
from torch import nn

OWN = torch.Generator().manual_seed(1)
X, Y = torch.randn(40, 3, generator=OWN), torch.arange(40) % 2


def made(**parts):
    usual = {"model": nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
             "loss": nn.functional.cross_entropy, "train": (X, Y), "validation": (X[:20], Y[:20]),
             "batch_size": 10}
    return {**usual, **parts}


def problem():
"""

SPLIT = """
    class Own:
        batch_size = 10
        def __len__(self): return 4
        def to(self, device): return self
        def batch(self, seed, epoch, index): return torch.randn(10, 3), Y[:10]
        def in_order(self): yield X, Y
    return made(train=Own())
"""

TRANSFORMED = """
    class Own(torch.utils.data.Dataset):
        def __len__(self): return 40
        def __getitem__(self, i):
            return X[i] + float(np.random.default_rng().random()), Y[i]
    return made(train=Own())
"""

UNUSED = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)
        def forward(self, x): return self.used(x)
    return made(model=Net())
"""

CONSTANT = """
    parts = made(same_weights=False)
    for p in parts["model"].parameters():
        nn.init.ones_(p)
    return parts
"""

BROKEN = {
    "torch's data": (
        "    return made(train=(torch.randn(40, 3), Y))\n",
        "the training data change with the seed, .* torch.Generator().manual_seed(1)",
    ),
    "numpy's targets": (
        "    return made(train=(X, torch.from_numpy(np.random.randint(2, size=40))))\n",
        "the training data change with the seed",
    ),
    "a split drawn anew": (
        "    rows = torch.randperm(40)\n    return made(validation=(X[rows[:20]], Y[rows[:20]]))\n",
        "the validation data change with the seed",
    ),
    "less data at one seed": (
        "    n = random.randint(20, 60)\n"
        "    return made(validation=(X[:1].expand(n, 3), Y[:1].expand(n)))\n",
        "the validation data change with the seed",
    ),
    "a batch from torch's generator": (SPLIT, "asked for twice, a batch of the training data"),
    "a transform without a seed": (TRANSFORMED, "asked for twice, a batch of the training data"),
    "manual_seed first": (
        "    torch.manual_seed(0)\n    return made()\n",
        "calls torch.manual_seed, .* leave it out",
    ),
    "manual_seed of the other seed": (
        "    torch.manual_seed(1)\n    return made()\n",
        "calls torch.manual_seed",
    ),
    "manual_seed last": (
        "    parts = made()\n    torch.manual_seed(7)\n    return parts\n",
        "calls torch.manual_seed",
    ),
    "constant weights": (
        CONSTANT,
        "the weights are the same at seeds 0 and 1, .* same_weights=True",
    ),
    "a spare layer": (
        UNUSED,
        "not depend on 2 parameters (spare.weight, spare.bias): no gradient in 4 batches; use",
    ),
    "a loss called an accuracy": (
        "    return made(metric=lambda o, t: nn.functional.cross_entropy(o, t), better='higher')\n",
        "higher metric is better, .* give better='lower'",
    ),
    "an accuracy called an error": (
        "    def hits(o, t): return (o.argmax(-1) == t).float().mean()\n"
        "    return made(metric=hits, better='lower')\n",
        "lower hits is better, .* give better='higher'",
    ),
    "a missing number": (
        "    return made(train=(X * float('nan'), Y))\n",
        "the loss of a batch is nan, before anything is trained: is a number in the data not",
    ),
    "a loss of the wrong sign": (
        "    return made(loss=lambda o, t: nn.functional.nll_loss(-o, t), metric='accuracy')\n",
        "higher accuracy is better, .* minimise the other sign",
    ),
}


def write(folder, body):
    (folder / "mine.py").write_text(HEAD + body)
    return f"{folder}/mine.py:problem"


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_named_in_one_sentence(tmp_path, case):
    """With what to do about it, while the study is planned."""
    body, said = BROKEN[case]
    pattern = ".*".join(map(re.escape, said.split(".*")))
    with pytest.raises(ProblemError, match=pattern) as raised:
        study_plan(write(tmp_path, body), terms=["none"], baselines=[])
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 320


def test_the_command_refuses_before_it_trains(tmp_path, monkeypatch):
    """Exit 2, one line, and no folder."""
    monkeypatch.chdir(tmp_path)
    refused = tiny("--problem", write(tmp_path, UNUSED))
    assert refused.exit_code == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


KEPT = {
    "as it is": "    return made()\n",
    "weights from numpy": (
        "    parts = made()\n    nn.init.constant_(parts['model'][0].bias, np.random.rand())\n"
        "    return parts\n"
    ),
    "a seed in a fork": (
        "    with torch.random.fork_rng(devices=[]):\n"
        "        torch.manual_seed(5)\n        X = torch.randn(40, 3)\n"
        "    return made(train=(X, Y))\n"
    ),
    "pretrained": CONSTANT.replace("False", "True"),
    "a frozen layer": (
        "    parts = made()\n    parts['model'][0].requires_grad_(False)\n    return parts\n"
    ),
    "a transform from the global generators": (
        "    class Own(torch.utils.data.Dataset):\n"
        "        def __len__(self): return 40\n"
        "        def __getitem__(self, i): return X[i] + random.random() + torch.rand(3), Y[i]\n"
        "    return made(train=Own())\n"
    ),
    "a loss that minds strange outputs": (
        "    def loss(o, t):\n"
        "        if o.abs().max() > 9: raise ValueError(o)\n"
        "        return nn.functional.cross_entropy(o, t)\n"
        "    return made(loss=loss, metric=lambda o, t: -o.max(), better='higher')\n"
    ),
    "outputs in a dictionary": (
        "    class Net(nn.Linear):\n"
        "        def forward(self, x): return {'logits': super().forward(x)}\n"
        "    return made(model=Net(3, 2), metric=lambda o, t: 1.0, better='higher',\n"
        "                loss=lambda o, t: nn.functional.cross_entropy(o['logits'], t))\n"
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_breaks_no_rule_is_let_through(tmp_path, case):
    """However unusual."""
    study_plan(write(tmp_path, KEPT[case]), terms=["none"], baselines=[])


ONCE = """
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return 2 * x
        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad): return 2 * grad
    class Net(nn.Linear):
        def forward(self, x): return Once.apply(super().forward(x))
    return made(model=Net(3, 2))
"""


def test_adahessian_is_left_out_where_a_gradient_has_no_gradient(tmp_path):
    """As flash attention's has none; unless it was asked for: then that is told."""
    name = write(tmp_path, ONCE)
    assert "adahessian" not in study_plan(name).final.methods
    with pytest.raises(ProblemError, match="AdaHessian needs gradients that can be differentiated"):
        study_plan(name, baselines=["adahessian"])
    assert "adahessian" in study_plan(write(tmp_path, KEPT["as it is"])).final.methods


def correlation(outputs, targets):
    return torch.corrcoef(torch.stack([outputs.flatten(), targets.flatten()]))[0, 1]


def absolute_error(outputs, targets):
    return (outputs - targets).abs().mean()


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize(("metric", "better"), [(correlation, "higher"), (absolute_error, "lower")])
@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.functional.l1_loss])
def test_the_sign_of_a_metric_is_judged_at_every_scale(metric, better, loss, scale):
    """The right one passes, the other does not, whatever the targets' units."""
    own = torch.Generator().manual_seed(3)
    data = torch.randn(64, 3, generator=own), scale * torch.randn(64, 1, generator=own)
    wrong = {"higher": "lower", "lower": "higher"}[better]
    parts = (nn.Linear(3, 1), loss, data, data)
    try_problem(Problem(*parts, metric=metric, better=better))
    with pytest.raises(ProblemError, match=f"give better='{better}'"):
        try_problem(Problem(*parts, metric=metric, better=wrong))


def test_a_layer_that_some_batches_use_is_used():
    """Experts, or layers that are left out at random."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.experts[self.calls % 2](x)

    data = torch.ones(32, 1), torch.ones(32, 1)
    try_problem(Problem(Experts(), nn.functional.mse_loss, data, data, batch_size=8))


def test_trying_leaves_gradients_and_generators_as_they_were():
    """A gradient that was there too; numpy's and random's states included."""
    data = torch.ones(8, 1), torch.ones(8, 1)
    problem = Problem(nn.Linear(1, 1), nn.functional.mse_loss, data, data)
    problem.model.bias.grad = torch.tensor([5.0])
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    try_problem(problem)
    assert problem.model.bias.grad.tolist() == [5.0]
    assert problem.model.weight.grad is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[2]) == states[1:]  # noqa: NPY002
