"""Every method takes the steps of its optimizer, and counts the gradients it really asks for."""

import copy
import sys

import pytest
import torch
from torch import nn

from aliceopt import Alice
from aliceopt.lab import models
from aliceopt.lab.methods import (
    METHODS,
    STEPS,
    TERMS,
    make_method,
    mean_gradients,
    planned,
)
from aliceopt.lab.muon import matrices_of

NEEDS = {"adahessian": "pytorch_optimizer", "schedule-free": "schedulefree"}
CASES = [
    ("adam", {"lr": 1e-2}),
    ("adamw", {"lr": 1e-2, "weight_decay": 0.1}),
    ("nadamw", {"lr": 1e-2, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.05, "momentum": 0.9}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("adahessian", {"lr": 0.1}),
    ("schedule-free", {"lr": 1e-2}),
    ("muon", {"lr": 0.02, "weight_decay": 0.0}),
    ("muon", {"lr": 1e-2, "adjust_lr_fn": "match_rms_adamw", "kernels": True}),
    ("alice", {"lr": 1e-2, "terms": "glass+abs", "step": "naq", "quick_steps": 3}),
    ("alice", {"lr": 1e-2, "terms": "glass+signed", "step": "full", "quick_steps": 1}),
    ("alice", {"lr": 1e-2, "terms": "rms", "quick_steps": 0}),
    ("alice", {"lr": 1e-2, "terms": "none"}),
    ("alice", {"lr": 1e-2}),
]


def need(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def batches(count):
    random = torch.Generator().manual_seed(4)
    return [
        (torch.randn(7, 6, generator=random), torch.randint(3, (7,), generator=random))
        for _ in range(count)
    ]


class CountedLoss:
    """Cross-entropy of a model, and how often it was asked for."""

    def __init__(self, model):
        self.model, self.calls = model, 0

    def __call__(self, inputs, targets):
        self.calls += 1
        return nn.functional.cross_entropy(self.model(inputs), targets)


def drive(method, data, factors=None):
    """The losses of steps on ``data``, and how often the loss was computed."""
    loss_of = CountedLoss(method.model)
    step = method.bind(loss_of, data[0], capture=False)
    losses = []
    for k, (x, y) in enumerate(data):
        if factors:
            method.set_rate(factors[k])
        losses.append(step(x, y).item())
    return losses, loss_of.calls


def by_hand(optimizer, model, data, rates=None, create_graph=False):
    """The textbook loop: zero, loss, backward, step."""
    losses = []
    for k, (x, y) in enumerate(data):
        if rates:
            optimizer.param_groups[0]["lr"] = rates[k]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward(create_graph=create_graph)
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "options", "bare"),
    [
        ("adam", {"lr": 1e-2, "betas": [0.8, 0.99]}, torch.optim.Adam),
        ("adamw", {"lr": 1e-2, "weight_decay": 0.1}, torch.optim.AdamW),
        ("sgd", {"lr": 0.05, "momentum": 0.9}, torch.optim.SGD),
        ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}, torch.optim.SGD),
    ],
)
def test_steps_are_those_of_the_torch_optimizer(name, options, bare):
    """Twelve steps with a falling rate against torch's unfused loop: same losses and weights."""
    data, factors = batches(12), [1 - k / 20 for k in range(12)]
    mine, theirs = network(), network()
    losses, _ = drive(make_method(name, mine, options, seed=0), data, factors)
    optimizer = bare(theirs.parameters(), foreach=False, **options)
    rates = [options["lr"] * f for f in factors]
    assert losses == pytest.approx(by_hand(optimizer, theirs, data, rates), rel=1e-5)
    assert_same(mine, theirs)


@pytest.mark.filterwarnings("ignore:.*create_graph=True.*")
def test_adahessian_steps_are_those_of_its_package():
    """With the graph of the gradient, from the same random state."""
    AdaHessian = pytest.importorskip("pytorch_optimizer").AdaHessian
    data, mine, theirs = batches(6), network(), network()
    torch.manual_seed(9)
    losses, _ = drive(make_method("adahessian", mine, {"lr": 0.1}, seed=0), data)
    torch.manual_seed(9)
    optimizer = AdaHessian(theirs.parameters(), lr=0.1)
    wanted = by_hand(optimizer, theirs, data, create_graph=True)
    optimizer.zero_grad(set_to_none=True)
    assert losses == pytest.approx(wanted, rel=1e-6)
    assert_same(mine, theirs)


def test_adahessian_leaves_no_graph_behind():
    """A gradient that holds its own graph would keep every step in memory."""
    pytest.importorskip("pytorch_optimizer")
    model = network()
    drive(make_method("adahessian", model, {"lr": 0.1}, seed=0), batches(2))
    assert all(p.grad is None for p in model.parameters())


def test_schedule_free_steps_and_rests_at_the_average():
    """At rest the weights are the mean of all z so far, which is what the method evaluates."""
    pytest.importorskip("schedulefree")
    model = network()
    method = make_method("schedule-free", model, {"lr": 1e-2}, seed=0)
    parameter, points = next(model.parameters()), []
    for batch in batches(7):
        drive(method, [batch])
        points.append(method.optimizers[0].state[parameter]["z"].clone())
    training = parameter.detach().clone()
    with method.at_rest():
        torch.testing.assert_close(parameter.detach(), torch.stack(points).mean(0))
        assert not torch.allclose(parameter, training, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(parameter.detach(), training)


def test_schedule_free_trains_on_after_an_error_at_rest():
    """Leaving `at_rest` by an exception also puts the training weights back."""
    pytest.importorskip("schedulefree")
    model = network()
    method = make_method("schedule-free", model, {"lr": 1e-2}, seed=0)
    drive(method, batches(3))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(KeyError), method.at_rest():
        raise KeyError("evaluation")
    for p, q in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), q)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.first(self.table(x.argmax(-1))).relu())


def test_muon_takes_the_matrices_and_adamw_the_rest():
    """Embeddings and biases are not Muon's; the two optimizers step from one gradient."""
    torch.manual_seed(0)
    mine = Words()
    theirs = copy.deepcopy(mine)
    method = make_method("muon", mine, {"lr": 0.02, "adam_lr": 1e-2}, seed=0)
    taken = {id(p) for group in method.optimizers[0].param_groups for p in group["params"]}
    assert taken == {id(mine.first.weight), id(mine.last.weight)}
    data = batches(5)
    drive(method, data)
    muon = torch.optim.Muon([theirs.first.weight, theirs.last.weight], lr=0.02)
    others = [theirs.table.weight, theirs.first.bias, theirs.last.bias]
    adam = torch.optim.AdamW(others, lr=1e-2, weight_decay=0.0, foreach=False)
    for x, y in data:
        theirs.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        muon.step()
        adam.step()
    assert_same(mine, theirs)
    assert method.gradients == 5


def test_nadamw_decays_apart_from_the_gradient():
    """Torch's NAdam with its weight decay decoupled, unless told otherwise."""
    data, mine, theirs = batches(8), network(), network()
    options = {"lr": 1e-2, "weight_decay": 0.1}
    losses, _ = drive(make_method("nadamw", mine, options, seed=0), data)
    bare = torch.optim.NAdam(theirs.parameters(), decoupled_weight_decay=True, **options)
    assert losses == by_hand(bare, theirs, data)
    method = make_method("nadamw", mine, {"decoupled_weight_decay": False}, seed=0)
    assert method.optimizers[0].param_groups[0]["decoupled_weight_decay"] is False


def test_muons_adamw_has_options_of_its_own():
    """One rate for both where Muon's steps are matched to AdamW's; else 1e-3, and no decay."""

    def rest(**options):
        method = make_method("muon", network(), {"lr": 0.02, **options}, seed=0)
        return method.optimizers[1].param_groups[0]

    assert (rest()["lr"], rest()["weight_decay"]) == (1e-3, 0.0)
    assert rest(adjust_lr_fn="match_rms_adamw")["lr"] == 0.02
    assert rest(adjust_lr_fn="match_rms_adamw", adam_lr=0.5)["lr"] == 0.5
    group = rest(adam_betas=[0.8, 0.9], adam_weight_decay=0.3)
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.3)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_muon_takes_a_kernel_as_the_matrix_of_its_rows(layout):
    """[o, i, h, w] steps as torch's Muon does on [o, i h w], however it lies in memory."""
    torch.manual_seed(0)
    kernel, matrix = nn.Conv2d(3, 4, 3, bias=False), nn.Parameter(torch.empty(4, 27))
    kernel.to(memory_format=layout)
    with torch.no_grad():
        matrix.copy_(kernel.weight.flatten(1))
    options = {"lr": 0.02, "weight_decay": 0.1}
    method = make_method("muon", kernel, {**options, "kernels": True}, seed=0)
    muon, x = torch.optim.Muon([matrix], **options), torch.randn(5, 3, 6, 6)
    step = method.bind(lambda x, y: kernel(x).square().mean(), (x, x), capture=False)
    for _ in range(3):
        step(x, x)
        muon.zero_grad()
        nn.functional.conv2d(x, matrix.unflatten(1, (3, 3, 3))).square().mean().backward()
        muon.step()
    # Newton-Schulz runs in bfloat16, whose sums depend on the order of the columns.
    torch.testing.assert_close(kernel.weight.flatten(1), matrix, rtol=0.02, atol=1e-3)


def test_muon_leaves_first_and_last_layers_to_adamw():
    """Of the lab's networks it takes what lies between: kernels only if told."""
    vit = models.vit(3, image=16, width=16, heads=2, layers=2)
    assert len(matrices_of(vit)) == 2 * 4
    gpt = models.gpt(20, context=4, layers=3, width=8, heads=1, tie=False)
    assert len(matrices_of(gpt)) == 3 * 4
    resnet = models.resnet18(3, width=4)
    assert matrices_of(resnet) == []
    taken = matrices_of(resnet, kernels=True)
    assert len(taken) == 16 + 3
    with pytest.raises(ValueError, match="the model has none: kernels = true takes"):
        make_method("muon", resnet, {}, seed=0)


def test_muon_alone_where_all_parameters_are_matrices():
    """And refused where none is."""
    linear = nn.Linear(3, 3, bias=False)
    assert len(make_method("muon", linear, {}, seed=0).optimizers) == 1
    with pytest.raises(ValueError, match="matrices, and the model has none"):
        make_method("muon", nn.Conv2d(1, 2, 3, bias=False), {}, seed=0)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("step", STEPS)
def test_alice_steps_are_those_of_a_closure(term, step):
    """Terms and steps by name give the options that the optimizer documents."""
    glass = "glass" in term
    hessian = "none" if term in ("none", "glass") else term.removeprefix("glass+")
    data, mine, theirs = batches(6), network(), network()
    options = {"lr": 1e-2, "terms": term, "step": step, "quick_steps": 1}
    method = make_method("alice", mine, options, seed=7)
    losses, _ = drive(method, data)
    alice = Alice(
        theirs.named_parameters(),
        lr=1e-2,
        glass=glass,
        hessian=hessian,
        quick_steps=1,
        step_fraction=1.0 if step == "full" else 0.1,
        seed=7,
        model=theirs,
    )
    wanted = []
    for x, y in data:

        def closure(x=x, y=y):
            loss = nn.functional.cross_entropy(theirs(x), y)
            loss.backward()
            return loss

        wanted.append(alice.step(closure).item())
    assert losses == wanted
    assert_same(mine, theirs)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_gradients_are_counted_as_they_are_asked_for(name, options, steps):
    """The count, the plan's promise and the calls of the loss agree.

    One loss is one gradient; AdaHessian differentiates its gradient again, which counts as two
    more.
    """
    need(name)
    method = make_method(name, network(), options, seed=0)
    _, calls = drive(method, batches(steps))
    each = 3 if name == "adahessian" else 1
    assert method.gradients == each * calls == planned(name, options, steps)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_mean_is_that_of_many_steps(name, options):
    """`mean_gradients` is the slope of `planned`."""
    assert mean_gradients(name, options) == pytest.approx(
        planned(name, options, 12_000) / 12_000, rel=1e-3
    )


def test_the_papers_cost_of_quick_steps():
    """With q = 3 six gradients in four steps; q = 0: three a step; no terms: one."""
    assert planned("alice", {"quick_steps": 3}, 4) == 6
    assert planned("alice", {"quick_steps": 0}, 4) == 12
    assert planned("alice", {"terms": "none", "quick_steps": 0}, 4) == 4
    assert planned("alice", {"glass": False, "hessian": "none"}, 4) == 4
    for bad in (-1, 1.5, "three", True):
        with pytest.raises(ValueError, match=f"quick_steps .* got {bad!r}"):
            planned("alice", {"quick_steps": bad}, 4)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_rate_is_a_factor_of_every_groups_own(name, options):
    """Muon's two rates keep their ratio; the factor is not compounded."""
    need(name)
    method = make_method(name, network(), options, seed=0)
    own = [[g["lr"] for g in o.param_groups] for o in method.optimizers]
    for factor in (0.5, 0.25, 1.0):
        method.set_rate(factor)
        found = [[g["lr"] for g in o.param_groups] for o in method.optimizers]
        assert found == [[rate * factor for rate in rates] for rates in own]
        assert method.rate == own[0][0] * factor


@pytest.mark.parametrize(("name", "options"), CASES)
def test_state_dict_goes_on_bit_for_bit(name, options, tmp_path):
    """Through a file, into a fresh method: the same weights after five more steps."""
    need(name)
    data = batches(10)
    model = network()
    method = make_method(name, model, options, seed=0)
    torch.manual_seed(1)
    drive(method, data[:5])
    saved = {"model": model.state_dict(), "method": method.state_dict()}
    torch.save({**saved, "random": torch.get_rng_state()}, tmp_path / "state.pt")
    drive(method, data[5:])
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    again = network()
    other = make_method(name, again, options, seed=0)
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["method"])
    torch.set_rng_state(saved["random"])
    drive(other, data[5:])
    assert other.gradients == method.gradients
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", METHODS)
def test_an_option_the_optimizer_lacks_is_refused_by_name(name):
    """And those it has are listed."""
    need(name)
    with pytest.raises(ValueError, match=f"optimizer '{name}' has no option 'speed'; it has .*lr"):
        make_method(name, network(), {"speed": 3}, seed=0)


def test_unknown_names_are_refused_with_the_known():
    """Optimizer, terms and step."""
    with pytest.raises(ValueError, match=r"must be one of alice, adam.*'lion'"):
        make_method("lion", network(), {}, seed=0)
    with pytest.raises(ValueError, match=r"terms must be one of none, glass.*'mirror'"):
        make_method("alice", network(), {"terms": "mirror"}, seed=0)
    with pytest.raises(ValueError, match=r"step must be one of naq, full.*'half'"):
        make_method("alice", network(), {"step": "half"}, seed=0)


@pytest.mark.parametrize(("name", "package"), NEEDS.items())
def test_a_missing_package_is_named_with_what_to_install(name, package, monkeypatch):
    """None in sys.modules is how Python marks a module that cannot be imported."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{name}.*needs the package {package}: pip install"):
        make_method(name, network(), {}, seed=0)


def test_only_alice_speaks_of_curvature():
    """Baselines have no telemetry; Alice's has groups and blocks."""
    for name in ("adam", "sgd"):
        assert make_method(name, network(), {"lr": 0.1}, seed=0).telemetry() is None
    method = make_method("alice", network(), {"lr": 0.01}, seed=0)
    drive(method, batches(2))
    assert set(method.telemetry()) >= {"groups", "blocks"}


def test_alices_signs_follow_the_runs_seed_unless_it_has_one_of_its_own():
    """Probes differ between seeds; an option named seed wins."""
    found = []
    for options, seed in (({}, 2), ({"seed": 2}, 5), ({}, 5)):
        model = network()
        drive(make_method("alice", model, {"quick_steps": 0, **options}, seed=seed), batches(3))
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
