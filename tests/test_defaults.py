"""What Alice does if nothing is said: AdamW that looks ahead; and the paper's settings by name."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import PAPER, Alice

STEPS = 60


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(16, 5, dtype=dtype, generator=torch.Generator().manual_seed(step))


def backward(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = (model(x) - x[:, :2].sin()).square().mean()
    loss.backward()
    return loss


def plainly(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> list[Tensor]:
    """The usual loop."""
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, batch(step, next(model.parameters()).dtype))
        optimizer.step()
    return values(model)


def by_closure(model: nn.Module, optimizer: Any, steps: int = STEPS) -> list[Tensor]:
    for step in range(steps):
        x = batch(step, next(model.parameters()).dtype)
        optimizer.step(lambda x=x: backward(model, x))
    return values(model)


def values(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize("train", [plainly, by_closure])
def test_without_look_ahead_it_is_adamw(train: Callable[..., list[Tensor]]) -> None:
    """Every default is AdamW's but ``lookahead``: its rate, betas, eps and weight decay."""
    ours, theirs = network(), network()
    found = train(ours, Alice(ours.parameters(), lookahead=1.0, model=ours))
    known = plainly(theirs, torch.optim.AdamW(theirs.parameters()))
    torch.testing.assert_close(found, known, rtol=1e-9, atol=1e-12)


def test_the_gradient_is_taken_as_far_ahead_as_the_last_step_was_long() -> None:
    """In a plain loop, with ``model=``: the model is called at mu + (lookahead - 1) u."""
    model = network()
    optimizer = Alice(model.parameters(), model=model)
    ahead = optimizer.param_groups[0]["lookahead"] - 1
    assert ahead > 0
    before = values(model)
    plainly(model, optimizer, 1)
    after = values(model)
    seen: list[list[Tensor]] = []
    model[0].register_forward_pre_hook(lambda *_: seen.append(values(model)))
    backward(model, batch(1))
    for old, new, point in zip(before, after, seen[0], strict=True):
        torch.testing.assert_close(point, new + ahead * (new - old), rtol=1e-9, atol=1e-12)
    optimizer.step()


def test_it_takes_one_gradient_a_step_and_keeps_no_curvature() -> None:
    model = network()
    optimizer = Alice(model.parameters(), model=model)
    by_closure(model, optimizer, 7)
    assert optimizer.gradient_evaluations == 7
    state = optimizer.state_dict()["state"][0]
    assert {name for name, value in state.items() if value.shape == model[0].weight.shape} == {
        "probe_center",
        "grad_avg",
        "grad_sq",
    }


# ---- the paper ---------------------------------------------------------------------------------

FORMER = {
    "lr": 1e-2,
    "lr_min": 0.0,
    "probe_radius": None,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "step_fraction": None,
    "lookahead": 1.0,
    "limit": "adam",
    "hessian": "abs",
    "glass": True,
    "quick_steps": 3,
    "weight_decay": 0.0,
    "max_grad_norm": None,
    "maximize": False,
}
"""What the defaults were before they became a drop-in for AdamW."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_papers_settings_are_the_former_defaults_to_the_bit(dtype: torch.dtype) -> None:
    """Sixty steps, fifteen of them measuring."""
    ours, theirs = network(dtype), network(dtype)
    first = Alice(ours.parameters(), model=ours, **PAPER)
    second = Alice(theirs.parameters(), model=theirs, **FORMER)
    for a, b in zip(by_closure(ours, first), by_closure(theirs, second), strict=True):
        assert torch.equal(a, b)
    assert first.gradient_evaluations == 45 + 3 * 15


def test_the_papers_settings_name_every_number_of_the_algorithm() -> None:
    """So that no later default changes them; what is left has nothing to do with the method."""
    options = set(inspect.signature(Alice).parameters) - {"params"}
    rest = {"max_grad_norm", "maximize", "seed", "model", "implementation"}
    assert set(PAPER) == options - rest


def test_the_papers_settings_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        PAPER["lr"] = 1.0  # type: ignore[index]


# ---- right or loud -----------------------------------------------------------------------------


def test_a_plain_loop_that_cannot_look_ahead_says_so_once() -> None:
    """Without ``model=`` nobody takes the parameters to nu: what is left is AdamW."""
    ours, theirs = network(), network()
    with pytest.warns(UserWarning, match="at the position, not ahead of it") as said:
        found = plainly(ours, Alice(ours.parameters()))
    assert len(said) == 1
    known = plainly(theirs, torch.optim.AdamW(theirs.parameters()))
    torch.testing.assert_close(found, known, rtol=1e-9, atol=1e-12)


QUIET: dict[str, Callable[[nn.Module], list[Tensor]]] = {
    "a model": lambda m: plainly(m, Alice(m.parameters(), model=m)),
    "a closure": lambda m: by_closure(m, Alice(m.parameters())),
    "no look-ahead": lambda m: plainly(m, Alice(m.parameters(), lookahead=1.0)),
    "a single step": lambda m: plainly(m, Alice(m.parameters()), 1),
}


@pytest.mark.parametrize("how", QUIET)
def test_and_is_silent_where_nothing_is_lost(how: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QUIET[how](network())


def test_looking_ahead_by_hand_is_looking_ahead() -> None:
    model, twin = network(), network()
    optimizer = Alice(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            optimizer.zero_grad()
            optimizer.look_ahead()
            backward(model, batch(step))
            optimizer.step()
    known = plainly(twin, Alice(twin.parameters(), model=twin))
    for a, b in zip(values(model), known, strict=True):
        assert torch.equal(a, b)


# ---- old checkpoints ---------------------------------------------------------------------------


def test_a_checkpoint_from_before_measuring_steps_had_their_name_goes_on() -> None:
    """They were called full: a checkpoint that says so continues bit for bit."""
    model = network()
    optimizer = Alice(model.parameters(), model=model, **PAPER)
    by_closure(model, optimizer, 6)
    twin, saved = copy.deepcopy(model), optimizer.state_dict()
    for group in saved["param_groups"]:
        group["full_count"] = group.pop("measuring_count")
    other = Alice(twin.parameters(), model=twin, **PAPER)
    other.load_state_dict(saved)
    assert other.gradient_evaluations == optimizer.gradient_evaluations == 6 + 2 * 2
    assert "full_count" not in other.param_groups[0]
    for a, b in zip(by_closure(model, optimizer), by_closure(twin, other), strict=True):
        assert torch.equal(a, b)
