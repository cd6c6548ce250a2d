"""Parameters that take turns are all measured, and those that do not keep the cadence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from aliceopt import Alice
from paper import paper_alice

OPTIONS: dict[str, Any] = {"lr": 0.01}


@pytest.mark.parametrize("quick_steps", [1, 3, 7])
@pytest.mark.parametrize("heads", [2, 3])
def test_heads_that_take_turns_are_all_measured(quick_steps: int, heads: int) -> None:
    """Two on the next use, more on the one after that; and again after quick_steps of their own."""
    torch.manual_seed(0)
    trunk = nn.Linear(3, 4)
    tops = [nn.Linear(4, 1) for _ in range(heads)]
    params = [*trunk.parameters(), *(p for top in tops for p in top.parameters())]
    optimizer = paper_alice(params, **OPTIONS | {"quick_steps": quick_steps})
    for i in range(60):
        top = tops[i % heads]

        def closure(top: nn.Module = top) -> None:
            top(trunk(torch.ones(8, 3))).square().mean().backward()

        optimizer.step(closure)
        state = optimizer.state[top.weight]
        if i >= (heads if heads == 2 else 2 * heads):
            assert state["topography_weight"] > 0
        assert state["unmeasured"] <= quick_steps + 1
    fulls = optimizer.param_groups[0]["measuring_count"]
    assert fulls <= heads * 60 / (quick_steps + 1)


@pytest.mark.parametrize(("quick_steps", "period"), [(2, 6), (3, 12), (7, 16), (1, 4)])
def test_a_head_that_is_rarely_used_is_measured_at_a_bounded_price(
    quick_steps: int, period: int
) -> None:
    """Also where its uses and the cadence never meet."""
    torch.manual_seed(0)
    body, often, rare = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    params = [p for module in (body, often, rare) for p in module.parameters()]
    optimizer = paper_alice(params, **OPTIONS | {"quick_steps": quick_steps})
    steps, measured = 40 * period, 0
    for i in range(steps):
        head = rare if i % period == 1 else often

        def closure(head: nn.Module = head) -> None:
            head(body(torch.ones(8, 3))).square().mean().backward()

        optimizer.step(closure)
        measured += head is rare and bool(optimizer.state[rare.weight]["unmeasured"] == 0)
    assert measured >= 40 // (quick_steps + 2)
    measuring = optimizer.param_groups[0]["measuring_count"]
    assert measuring <= steps / (quick_steps + 1) + 40 + 2  # at most one more for each use


def test_a_head_that_is_used_once_costs_two_steps() -> None:
    body, once = nn.Linear(3, 1), nn.Parameter(torch.ones(1))
    optimizer = paper_alice([*body.parameters(), once], **OPTIONS | {"quick_steps": 99})
    for i in range(90):

        def closure(i: int = i) -> None:
            loss = body(torch.ones(2, 3)).square().mean()
            (loss + once.square().sum() if i == 1 else loss).backward()

        optimizer.step(closure)
    assert optimizer.param_groups[0]["measuring_count"] == 3


def test_parameters_that_are_all_used_keep_the_cadence() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = paper_alice(model.parameters(), **OPTIONS | {"quick_steps": 3})
    for _ in range(40):
        optimizer.step(lambda: model(torch.ones(8, 3)).square().mean().backward())
    assert optimizer.param_groups[0]["measuring_count"] == 10


def test_what_is_owed_survives_a_checkpoint() -> None:
    """A run that is resumed measures at the same steps."""
    heads = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]

    def run(optimizer: Alice, params: list[nn.Parameter], steps: range) -> list[int]:
        fulls = []
        for i in steps:
            optimizer.step(lambda i=i: params[i % 2].square().sum().backward())
            fulls.append(optimizer.param_groups[0]["measuring_count"])
        return fulls

    first = paper_alice(heads, **OPTIONS | {"quick_steps": 3})
    run(first, heads, range(2))
    twins = [nn.Parameter(p.detach().clone()) for p in heads]
    second = paper_alice(twins, **OPTIONS | {"quick_steps": 3})
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert first.param_groups[0]["owed_until"] > 0
    assert run(first, heads, range(2, 30)) == run(second, twins, range(2, 30))
    assert all(map(torch.equal, heads, twins))
