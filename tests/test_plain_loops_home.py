"""Whatever else is done with a model that looks ahead finds its parameters at home."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from contract_cases import values
from paper import paper_alice
from plain_loop_cases import Network, batches, is_home, plainly, ready

GOING_HOME: dict[str, Callable[[Network, Alice], object]] = {
    "a call in eval mode": lambda model, _: model.eval()(torch.ones(2, 3)),
    "the model's state_dict": lambda model, _: model.state_dict(),
    "a part's state_dict": lambda model, _: model.first.state_dict(),
    "the optimizer's state_dict": lambda _, optimizer: optimizer.state_dict(),
    "a copy of the model": lambda model, _: copy.deepcopy(model),
    "a pickled optimizer": lambda _, optimizer: torch.save(optimizer, io.BytesIO()),
    "come_home": lambda _, optimizer: optimizer.come_home(),
    "a step without gradients": lambda _, optimizer: optimizer.step(),
    "a loop begun and left": lambda _, optimizer: next(iter(optimizer.evaluations())),
    "a second optimizer": lambda model, _: paper_alice(model.parameters(), model=model),
}


@pytest.mark.parametrize("way", GOING_HOME)
def test_a_discarded_forward_leaves_nothing_behind_after(way: str) -> None:
    model, optimizer, home = ready()
    optimizer.zero_grad()
    model(torch.ones(4, 3))
    assert not is_home(model, home)
    with torch.no_grad():
        model(torch.ones(4, 3))
    assert not is_home(model, home)  # training mode without gradients stays where it is
    GOING_HOME[way](model, optimizer)
    gc.collect()
    assert is_home(model, home)
    assert optimizer.gradient_evaluations == 2


def test_an_optimizer_that_is_dropped_brings_the_parameters_home() -> None:
    model, optimizer, home = ready()
    model(torch.ones(4, 3))
    assert not is_home(model, home)
    del optimizer
    gc.collect()
    assert is_home(model, home)
    model(torch.ones(4, 3))
    assert is_home(model, home)
    assert not model._forward_pre_hooks


def test_weights_loaded_while_looking_ahead_stay() -> None:
    """Also those written one by one, and those that another optimizer trains."""
    model, optimizer, home = ready()
    saved = copy.deepcopy(model.state_dict())
    plainly(model, optimizer, 5, 1)
    model(torch.ones(4, 3))
    model.load_state_dict(saved)
    assert is_home(model, home)
    model(torch.ones(4, 3))
    with torch.no_grad():
        model.last.bias.fill_(7.0)
    model.eval()(torch.ones(4, 3))
    assert model.last.bias == 7.0
    assert all(map(torch.equal, home[:-1], list(model.parameters())[:-1]))


def test_another_optimizer_may_take_over() -> None:
    """SGD on the same parameters trains as if Alice, still alive, were not there."""
    (model, optimizer, _), (other, stopped, _) = ready(), ready()
    stopped.looking_ahead.stop()
    for twin in (model, other):
        sgd = torch.optim.SGD(twin.parameters(), lr=0.1)
        torch.manual_seed(2)
        for i in range(3):
            sgd.zero_grad()
            for x, y in batches(i):
                (twin(x) - y).square().mean().backward()
            sgd.step()
    assert optimizer._probe is not None
    model.eval()(torch.ones(2, 3))
    assert optimizer._probe is None
    assert all(p.isfinite().all() for p in model.parameters())
    # It began at nu, where the first forward had taken the parameters, and ended where SGD went.
    assert not is_home(model, ready()[2])


@pytest.mark.parametrize("copied", ["deepcopy", "pickle"])
def test_a_copy_of_the_model_does_not_drive_the_optimizer(copied: str) -> None:
    model, optimizer, home = ready()
    if copied == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        assert b"aliceopt" not in file.getvalue()
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    twin(torch.ones(4, 3)).sum().backward()
    assert is_home(model, home)
    assert is_home(twin, home)
    assert optimizer._probe is None


class Scaled(nn.Module):
    """Has parameters of its own and those of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.part = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) * self.scale


COPIES: dict[str, Callable[[Scaled, Alice], Scaled]] = {
    "the model": lambda model, _: copy.deepcopy(model),
    "the model, then the optimizer": lambda *both: copy.deepcopy(both)[0],
    "the optimizer, then the model": lambda *both: copy.deepcopy(both[::-1])[1],
    "a part, then the model": lambda model, _: copy.deepcopy([model.part, model])[1],
    "pickled": lambda *both: pickle.loads(pickle.dumps(both))[0],
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("implementation", ["eager", "auto"])
def test_what_is_copied_while_looking_ahead_is_at_home(way: str, implementation: str) -> None:
    """And the step goes on as if nothing had happened."""
    torch.manual_seed(0)
    model = Scaled()
    twin = copy.deepcopy(model)
    for m in (model, twin):
        optimizer = Alice(m.parameters(), lr=0.1, model=m, implementation=implementation)
        for step in range(3):
            home = values(m)
            optimizer.zero_grad()
            m(torch.ones(4, 3)).square().sum().backward()
            if m is model and step > 0:
                assert not is_home(m, home)
                assert is_home(COPIES[way](m, optimizer), home)
            optimizer.step()
    assert is_home(model, list(twin.parameters()))


def test_a_copied_optimizer_drives_its_own_model() -> None:
    model, optimizer, home = ready()
    twin = copy.deepcopy(optimizer)
    model(torch.ones(4, 3))
    assert not is_home(model, home)
    assert is_home(twin.model, home)
    twin.model(torch.ones(4, 3))
    assert not is_home(twin.model, home)


def test_calls_that_bypass_the_model_are_taken_at_home() -> None:
    """A part alone, other tensors in the parameters' place, eval mode."""
    model, _, home = ready()
    model.last(model.first(torch.ones(4, 3)))
    assert is_home(model, home)
    others = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.func.functional_call(model, others, (torch.ones(4, 3),))
    assert is_home(model, home)
    model(torch.ones(4, 3))
    assert not is_home(model, home)
