"""What goes wrong, or changes, between evaluations and step leaves nothing half-done."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels import Backend
from aliceopt.probe import Probe
from paper import paper_alice


def task(**options: object) -> tuple[nn.Module, Alice]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    return model, paper_alice(model.parameters(), **{"quick_steps": 0, **options})  # type: ignore[arg-type]


def backward(model: nn.Module) -> Tensor:
    inputs = torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4)
    loss = model(inputs).square().sum()
    loss.backward()
    return loss


def backend_of(optimizer: Alice) -> Backend:
    """What serves the CPU."""
    return optimizer._backends.split(list(optimizer.sites))[0][0]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("betas", (0.9,), "betas"), ("limit", "Fixed", "'Fixed'"), ("hessian", "ABS", "'ABS'")],
)
def test_an_option_edited_to_nonsense_is_refused_at_the_next_step(
    option: str, value: object, message: str
) -> None:
    """Parameters stay where they were, and putting the option right puts everything right."""
    model, optimizer = task()
    optimizer.step(lambda: backward(model))
    before = [p.detach().clone() for p in model.parameters()]
    good, optimizer.param_groups[0][option] = optimizer.param_groups[0][option], value
    with pytest.raises(ValueError, match=message):
        optimizer.step(lambda: backward(model))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.param_groups[0][option] = good
    optimizer.step(lambda: backward(model))


def test_an_interrupted_update_leaves_parameters_at_their_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C before anything was updated: mu, not nu, and no gradients."""
    model, optimizer = task()
    optimizer.step(lambda: backward(model))
    before = [p.detach().clone() for p in model.parameters()]

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(backend_of(optimizer)), "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(lambda: backward(model))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_cleared_state_starts_afresh_and_is_stored_again() -> None:
    """After ``state.clear()`` the run is that of a new optimizer with the same counters."""
    model, optimizer = task()
    optimizer.step(lambda: backward(model))
    optimizer.state.clear()
    for _ in range(3):
        optimizer.step(lambda: backward(model))
    assert len(optimizer.state_dict()["state"]) == 4
    assert {s["step"].item() for s in optimizer.state.values()} == {3}


def test_a_parameter_appended_to_a_group_is_trained() -> None:
    """Groups are lists, and some code appends to them."""
    model, optimizer = task()
    optimizer.step(lambda: backward(model))
    extra = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer.param_groups[0]["params"].append(extra)

    def closure() -> Tensor:
        extra.square().sum().backward()
        return backward(model)

    optimizer.step(closure)
    assert not torch.equal(extra.detach(), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("change", [{"hessian": "rms"}, {"glass": False}])
def test_changing_the_terms_restarts_the_topography(change: dict[str, object]) -> None:
    """One measuring step after the change, the averages are what that step alone measures."""
    model, optimizer = task()
    for _ in range(5):
        optimizer.step(lambda: backward(model))
    if change == {"glass": False}:  # off and on again: what was averaged before is too old
        optimizer.param_groups[0].update(change)
        optimizer.step(lambda: backward(model))
        change = {"glass": True}
    optimizer.param_groups[0].update(change)
    optimizer.step(lambda: backward(model))
    beta = 0.999
    assert {s["topography_weight"].item() for s in optimizer.state.values()} == {1 - beta}


def test_parameters_of_the_model_that_others_train_get_one_gradient() -> None:
    """Alice on the body, SGD on the head: the head's gradient is the center's, not the sum."""
    model, _ = task()
    body, head = model[0], model[2]
    optimizer = paper_alice(body.parameters(), model=model, quick_steps=0, lr=0.5)
    found = []
    for _ in optimizer.evaluations():
        backward(model)
        found.append(head.weight.grad)
    assert torch.equal(head.weight.grad, found[-1])
    alone = torch.autograd.grad  # the center is where the body stands in its first step: at mu
    inputs = torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4)
    (expected,) = alone(model(inputs).square().sum(), [head.weight])
    torch.testing.assert_close(head.weight.grad, expected)


def test_expanded_buffers_do_not_stop_a_step() -> None:
    """Nothing can write to them in place, so there is nothing to guard."""
    model, _ = task()
    model.register_buffer("scale", torch.ones(1).expand(3))
    optimizer = paper_alice(model.parameters(), model=model, quick_steps=0)
    optimizer.step(lambda: backward(model))


def test_an_interrupt_while_undoing_is_made_good_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second Ctrl-C hits the recovery from the first: nothing is saved from the wrong place."""
    model, optimizer = task()
    optimizer.step(lambda: backward(model))
    before = [p.detach().clone() for p in model.parameters()]
    settle, calls = Probe.settle, []

    def interrupted(probe: Probe) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        settle(probe)

    def closure() -> Tensor:
        raise RuntimeError("the first interruption")

    monkeypatch.setattr(Probe, "settle", interrupted)
    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        optimizer.step(closure)
    optimizer.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert len(calls) > 1
