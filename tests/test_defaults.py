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


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).double()


def batch(step: int) -> Tensor:
    return torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def backward(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    loss: Tensor = (model(x) - x[:, :2].sin()).square().mean()
    loss.backward()
    return loss


def plainly(
    model: Any, optimizer: torch.optim.Optimizer, steps: int = STEPS, home: nn.Module | None = None
) -> list[Tensor]:
    """The usual loop; the parameters are those of ``home``, by default the model itself."""
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, batch(step))
        optimizer.step()
    return values(model if home is None else home)


def by_closure(model: nn.Module, optimizer: Any, steps: int = STEPS) -> list[Tensor]:
    for step in range(steps):
        x = batch(step)
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


FORMER_SUMS = [
    (-1.3183293757368524, 2.6986893408430475),
    (-0.47181831817834763, 0.5206258049046677),
    (0.19862113896206293, 0.594536599089598),
    (0.13581404738335384, 0.02218038169224011),
]
"""Of every parameter and of its square after sixty steps, with those defaults."""


def test_the_papers_settings_are_the_former_defaults() -> None:
    assert {**FORMER, **PAPER} == FORMER


def test_and_end_where_the_former_defaults_did() -> None:
    """Sixty steps in float64, fifteen of them measuring. Room is for other machines' rounding."""
    model = network()
    optimizer = Alice(model.parameters(), model=model, **PAPER)
    found = by_closure(model, optimizer)
    assert optimizer.gradient_evaluations == 45 + 3 * 15
    for value, pair in zip(found, FORMER_SUMS, strict=True):
        assert (value.sum().item(), value.square().sum().item()) == pytest.approx(pair, rel=1e-6)


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
    with pytest.warns(
        UserWarning, match=r"not ahead of it: give Alice\(..., model=model\)"
    ) as said:
        found = plainly(ours, Alice(ours.parameters()))
    assert len(said) == 1
    known = plainly(theirs, torch.optim.AdamW(theirs.parameters()))
    torch.testing.assert_close(found, known, rtol=1e-9, atol=1e-12)


def in_eval_mode(model: nn.Module) -> list[Tensor]:
    return plainly(model.eval(), Alice(model.parameters(), model=model))


def part_by_part(model: nn.Module) -> list[Tensor]:
    layers = list(model.children())
    optimizer = Alice(model.parameters(), model=model)
    return plainly(lambda x: layers[2](layers[1](layers[0](x))), optimizer, home=model)


@pytest.mark.parametrize("train", [in_eval_mode, part_by_part])
def test_a_model_whose_calls_are_not_seen_is_none(train: Callable[..., Any]) -> None:
    """It is given, but called in eval mode all along, or in parts."""
    with pytest.warns(UserWarning, match="was in eval mode, or parts of it were called") as said:
        train(network())
    assert len(said) == 1


def validating(model: nn.Module) -> list[Tensor]:
    """Between backward and step, which takes the parameters home before the step."""
    optimizer = Alice(model.parameters(), model=model)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, batch(step))
        model.eval()
        model(batch(step))
        model.train()
        optimizer.state_dict()
        optimizer.step()
    return values(model)


QUIET: dict[str, Callable[[nn.Module], list[Tensor]]] = {
    "a model": lambda m: plainly(m, Alice(m.parameters(), model=m)),
    "a closure": lambda m: by_closure(m, Alice(m.parameters())),
    "no look-ahead": lambda m: plainly(m, Alice(m.parameters(), lookahead=1.0)),
    "a single step": lambda m: plainly(m, Alice(m.parameters()), 1),
    "validation in between": validating,
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
