"""Every method takes the steps of its optimizer, and counts the gradients it really asks for."""

import copy
import sys

import pytest
import torch
from torch import nn

from aliceopt.lab.optimizers.captured import is_capturable
from aliceopt.lab.optimizers.methods import (
    METHODS,
    STEPS,
    TERMS,
    make_method,
    mean_gradients,
    planned,
)
from aliceopt.lab.plans.plan import experiment_plan
from method_cases import assert_same, batches, by_hand, drive, network
from paper import paper_alice

NEEDS = {"schedule-free": "schedulefree"}
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


def test_nadamw_decays_apart_from_the_gradient():
    """Torch's NAdam with its weight decay decoupled, unless told otherwise."""
    data, mine, theirs = batches(8), network(), network()
    options = {"lr": 1e-2, "weight_decay": 0.1}
    losses, _ = drive(make_method("nadamw", mine, options, seed=0), data)
    bare = torch.optim.NAdam(theirs.parameters(), decoupled_weight_decay=True, **options)
    assert losses == by_hand(bare, theirs, data)
    method = make_method("nadamw", mine, {"decoupled_weight_decay": False}, seed=0)
    assert method.optimizers[0].param_groups[0]["decoupled_weight_decay"] is False


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
    alice = paper_alice(
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
    assert planned("alice", {"step": "naq"}, 4) == planned("alice", {"glass": True}, 4) == 6
    assert planned("alice", {"step": "naq", "quick_steps": 0}, 4) == 12
    assert planned("alice", {"quick_steps": 0}, 4) == 4
    assert planned("alice", {"terms": "none", "quick_steps": 0}, 4) == 4
    assert planned("alice", {"glass": False, "hessian": "none"}, 4) == 4
    for bad in (-1, 1.5, "three", True):
        with pytest.raises(ValueError, match=f"quick_steps .* got {bad!r}"):
            planned("alice", {"terms": "abs", "quick_steps": bad}, 4)


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
    found, always = [], {"step": "naq", "quick_steps": 0}
    for options, seed in (({}, 2), ({"seed": 2}, 5), ({}, 5)):
        model = network()
        drive(make_method("alice", model, {**always, **options}, seed=seed), batches(3))
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["adamw", "sgd", "nadamw", "alice"])
def test_gradients_are_clipped_if_asked_to(name):
    """As torch clips them: the norm of all parameters together, before the update."""
    data, mine, theirs = batches(8), network(), network()
    options = {"lr": 1e-2, "max_grad_norm": 0.1}
    plain = {"terms": "none", "step": "full"} if name == "alice" else {}
    losses, _ = drive(make_method(name, mine, {**options, **plain}, seed=0), data)
    bare = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
        "nadamw": lambda p: torch.optim.NAdam(p, lr=1e-2),
        "alice": lambda p: torch.optim.Adam(p, lr=1e-2),
    }[name](theirs.parameters())

    def clip(*_):
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)

    bare.register_step_pre_hook(clip)
    assert losses == pytest.approx(by_hand(bare, theirs, data), rel=1e-5)


@pytest.mark.parametrize("norm", [0, -1.0, float("inf"), "1"])
def test_a_norm_to_clip_to_that_is_none_is_refused(norm):
    with pytest.raises(ValueError, match="max_grad_norm must be a number > 0, got"):
        make_method("adamw", network(), {"max_grad_norm": norm}, seed=0)


def test_a_checkpoint_of_captured_steps_goes_on_without_a_graph():
    """What a graph needed, rates and counts on the device, is not asked of whoever resumes."""
    method = make_method("nadamw", network(), {"lr": 1e-2}, seed=0)
    drive(method, batches(3))
    saved = copy.deepcopy(method.state_dict())
    for group in saved["optimizers"][0]["param_groups"]:
        group["lr"], group["capturable"] = torch.tensor(0.5), True
    method.load_state_dict(saved)
    losses, _ = drive(method, batches(3), [1.0, 0.5, 0.25])
    assert len(losses) == 3
    assert method.rate == pytest.approx(0.25e-2)


def test_what_a_graph_cannot_hold_is_known():
    params = [nn.Parameter(torch.ones(2))]
    assert is_capturable(torch.optim.SGD(params, momentum=0.9))
    assert not is_capturable(torch.optim.SGD(params, momentum=0.9, dampening=0.1))
    assert not is_capturable(torch.optim.LBFGS(params))


def test_a_method_at_another_rate_keeps_its_name():
    """Also what all of Alice's methods share of it; the rate stands behind."""
    plan = experiment_plan(
        "resnet18-methods", "smoke", methods=["alice", "alice@1e-3", "adam@2"], read=False
    )
    usual, *others = (method.label for method in plan.methods.values())
    assert usual == "Alice, glass + abs, NAQ"
    assert others == [f"{usual}, lr 1e-3", "Adam, lr 2"]
