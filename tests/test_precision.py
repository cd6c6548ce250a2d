"""Mixed precision with a GradScaler: the same steps, or no step at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from contract_cases import (
    FEW_OPTIONS,
    LR,
    batch,
    closure_for,
    counts,
    loss_of,
    make,
    memory,
    same,
    train,
    values,
)
from paper import paper_alice

few_cases = pytest.mark.parametrize("options", FEW_OPTIONS, ids=range(len(FEW_OPTIONS)))
SCALE = 2.0**10


def new_scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": SCALE, **options})


def scaled_rounds(
    model: nn.Module,
    optimizer: Alice,
    scaler: torch.amp.GradScaler,
    index: int,
    overflow_in: int | None = None,
) -> None:
    """The loop of one step under a scaler; in one chosen round the gradient overflows."""
    for i in optimizer.evaluations(scaler=scaler):
        x, y = batch(index)
        out = model(x)
        if i == overflow_in:
            out.register_hook(lambda grad: grad * float("inf"))
        scaler.scale(nn.functional.mse_loss(out, y)).backward()


def scaled_step(
    model: nn.Module,
    optimizer: Alice,
    scaler: torch.amp.GradScaler,
    index: int,
    overflow_in: int | None = None,
) -> None:
    """One whole iteration, as the guide shows it."""
    scaled_rounds(model, optimizer, scaler, index, overflow_in)
    scaler.step(optimizer)
    scaler.update()


def assert_close_models(a: nn.Module, b: nn.Module) -> None:
    for p, q in zip(values(a), values(b), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


@few_cases
def test_a_scaled_run_equals_the_unscaled_one(options):
    """Every round is unscaled: parameters and averages agree to rounding."""
    plain, first = make(options)
    scaled, second = make(options)
    scaler = new_scaler(growth_interval=3)  # the scale changes on the way
    train(plain, first, 0, 8)
    for index in range(8):
        scaled_step(scaled, second, scaler, index)
    assert scaler.get_scale() > SCALE
    assert_close_models(plain, scaled)
    assert counts(first) == counts(second)
    averages = memory(second)["state"]
    for name, value in memory(first)["state"].items():
        torch.testing.assert_close(averages[name], value, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_and_scaler_give_the_trajectory_of_autocast_alone(dtype):
    """In float32 parameters; a power of two commutes with rounding."""
    plain, first = make({})
    scaled, second = make({})
    scaler = new_scaler(init_scale=4.0)
    for index in range(6):
        x, y = batch(index)
        for model, optimizer, wrap, use in (
            (plain, first, lambda loss: loss, None),
            (scaled, second, scaler.scale, scaler),
        ):
            for _ in optimizer.evaluations(scaler=use):
                with torch.autocast("cpu", dtype=dtype):
                    loss = nn.functional.mse_loss(model(x).float(), y)
                wrap(loss).backward()
        first.step()
        scaler.step(second)
        scaler.update()
    assert counts(first) == counts(second) == (2, 4, 6)
    for p, q in zip(values(plain), values(scaled), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


# ---- overflow ---------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow_in", [0, 1, 2])
def test_an_overflow_in_any_evaluation_skips_the_step_and_lowers_the_scale(overflow_in):
    """Nothing moves, nothing counts, the scale backs off, and the next step is as if first."""
    model, optimizer = make({})
    scaler = new_scaler()
    for index in range(4):
        scaled_step(model, optimizer, scaler, index)
    before = values(model), memory(optimizer)
    scaled_rounds(model, optimizer, scaler, 4, overflow_in)
    assert same(values(model), before[0])
    scaler.step(optimizer)
    assert same((values(model), memory(optimizer)), before)
    scaler.update()
    assert scaler.get_scale() == SCALE / 2
    scaled_step(model, optimizer, scaler, 4)
    clean, second = make({})
    train(clean, second, 0, 5)
    assert counts(optimizer) == counts(second) == (2, 3, 5)
    assert_close_models(model, clean)


def test_an_overflow_in_a_quick_step_skips_it_too():
    """One evaluation, same rule."""
    model, optimizer = make({})
    scaler = new_scaler()
    scaled_step(model, optimizer, scaler, 0)
    before = values(model), memory(optimizer)
    scaled_step(model, optimizer, scaler, 1, overflow_in=0)
    assert same((values(model), memory(optimizer)), before)
    assert scaler.get_scale() == SCALE / 2


def test_an_overflow_in_the_only_probe_that_reached_a_parameter_is_seen():
    """A parameter the minus side did not use: its infinite plus gradient still skips the step."""
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = paper_alice([a, b], lr=LR)
    scaler = new_scaler()
    for i in optimizer.evaluations(scaler=scaler):
        loss = a.square().sum()
        if i != 1:
            loss = loss + (float("inf") if i == 0 else 1.0) * b.sum()
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert counts(optimizer) == (0, 0, 0)
    assert scaler.get_scale() == SCALE / 2


# ---- wrong ways to combine them ---------------------------------------------------------------


def refused_ways() -> dict[str, tuple[Callable[..., Any], str]]:
    def positional(model, optimizer, scaler):
        scaler.scale(torch.ones(()))
        scaler.step(optimizer, closure_for(model, 0))

    def loop_without(model, optimizer, scaler):
        for _ in optimizer.evaluations():
            scaler.scale(loss_of(model, 0)).backward()
        scaler.step(optimizer)

    def step_without(model, optimizer, scaler):
        scaled_rounds(model, optimizer, scaler, 0)
        optimizer.step()

    return {
        "closure through the scaler": (positional, r"evaluations\(scaler=scaler\)"),
        "loop without the scaler": (loop_without, r"use optimizer\.evaluations\(scaler=scaler\)"),
        "step without the scaler": (step_without, r"scaler\.step\(optimizer\) instead"),
    }


@pytest.mark.parametrize("way", refused_ways())
def test_wrong_ways_to_use_a_scaler_are_refused_with_the_right_one(way):
    """A clear error; parameters at mu, nothing counted."""
    act, message = refused_ways()[way]
    model, optimizer = make({})
    before = values(model)
    with pytest.raises(RuntimeError, match=message):
        act(model, optimizer, new_scaler())
    assert same(values(model), before)
    assert counts(optimizer) == (0, 0, 0)


@pytest.mark.parametrize("way", refused_ways())
@pytest.mark.parametrize("then", ["scaled", "unscaled"])
def test_after_a_refusal_the_right_way_works(way, then):
    """In a notebook the next cell does it properly: same result as without the mistake."""
    act, _ = refused_ways()[way]
    model, optimizer = make({})
    scaler = new_scaler()
    with pytest.raises(RuntimeError):
        act(model, optimizer, scaler)
    if then == "scaled":
        scaled_step(model, optimizer, scaler, 0)
    else:
        train(model, optimizer, 0, 1)
    clean, second = make({})
    train(clean, second, 0, 1)
    assert_close_models(model, clean)
    averages = memory(optimizer)["state"]
    for name, value in memory(second)["state"].items():
        torch.testing.assert_close(averages[name], value, rtol=1e-4, atol=1e-7)


def test_a_closure_keyword_is_refused_by_torch_itself():
    """The keyword form never reaches Alice."""
    model, optimizer = make({})
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        new_scaler().step(optimizer, closure=closure_for(model, 0))


# ---- right ways -------------------------------------------------------------------------------


def test_a_disabled_scaler_is_transparent():
    """The same script with enabled=False is the plain run, bit for bit."""
    plain, first = make({})
    other, second = make({})
    scaler = new_scaler(enabled=False)
    train(plain, first, 0, 5)
    for index in range(5):
        scaled_step(other, second, scaler, index)
    assert same(values(plain), values(other))
    assert same(memory(first), memory(second))
    scaler.step(second, closure_for(other, 5))
    train(plain, first, 5, 6)
    assert same(values(plain), values(other))


def test_unscale_before_step_is_legal_and_shows_the_true_gradient():
    """As for logging norms: .grad holds g0 after unscale_, and the step is the same."""
    plain, first = make({})
    other, second = make({})
    scaler = new_scaler()
    for index in range(5):
        train(plain, first, index, index + 1)
        scaled_rounds(other, second, scaler, index)
        scaler.unscale_(second)
        for p, q in zip(plain.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-7)
        scaler.step(second)
        scaler.update()
    assert_close_models(plain, other)


@pytest.mark.parametrize("overflow", [False, True])
def test_plain_backward_and_scaler_step_work(overflow):
    """What a trainer that knows nothing of evaluations does: a quick step, or a skipped one."""
    plain, first = make({})
    other, second = make({})
    scaler = new_scaler()
    before = values(other)
    loss_of(plain, 0).backward()
    (scaler.scale(loss_of(other, 0)) * (float("inf") if overflow else 1.0)).backward()
    if overflow:
        scaler.step(second)
        assert same(values(other), before)
        assert counts(second) == (0, 0, 0)
        return
    with pytest.warns(UserWarning, match="no curvature"):
        first.step()
    with pytest.warns(UserWarning, match="no curvature"):
        scaler.step(second)
    assert_close_models(plain, other)


def test_clipping_under_a_scaler_clips_the_true_gradient():
    """max_grad_norm is in units of the loss, not of the scaled loss."""
    plain, first = make({"max_grad_norm": 0.05})
    other, second = make({"max_grad_norm": 0.05})
    scaler = new_scaler()
    train(plain, first, 0, 5)
    for index in range(5):
        scaled_step(other, second, scaler, index)
    assert_close_models(plain, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("slope", [1e-3, 1.5e-7, 2e-9])
def test_gradients_too_small_for_the_parameters_dtype_survive_unscaling(dtype, slope):
    """That is what a scale is for: all three gradients are divided in float32, alike."""
    p = nn.Parameter(torch.full((4,), 3.0, dtype=dtype))
    optimizer = paper_alice([p], lr=LR, betas=(0.5, 0.9))
    scaler = new_scaler(init_scale=65536.0)
    for _ in optimizer.evaluations(scaler=scaler):
        scaler.scale((p.float() * slope).sum()).backward()
    scaler.step(optimizer)
    state = optimizer.state[p]
    assert state["grad_avg"].tolist() == pytest.approx([0.5 * slope] * 4, rel=0.01)
    assert state["glass_density"].max() <= 1e-6 * slope**2


def test_two_optimizers_may_share_one_scaler():
    """As in GAN training: each skips for its own overflow only."""
    a_model, a = make({})
    b_model, b = make({}, seed=1)
    scaler = new_scaler()
    before: list[Tensor] = values(a_model)
    scaled_rounds(a_model, a, scaler, 0, overflow_in=1)
    scaled_rounds(b_model, b, scaler, 0)
    scaler.step(a)
    scaler.step(b)
    scaler.update()
    assert same(values(a_model), before)
    assert counts(a) == (0, 0, 0)
    assert counts(b) == (1, 0, 1)


@pytest.mark.parametrize("driven", ["closure", "loop", "validated"])
def test_autocast_may_stand_around_the_step(driven):
    """Its cache of cast weights must not outlive a move: the same training as with it inside."""

    def trained(around: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, y = torch.randn(32, 8), torch.randn(32, 1)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = paper_alice(model.parameters(), lr=1e-2, quick_steps=1, model=model)
        autocast = [torch.autocast("cpu", dtype=torch.bfloat16, enabled=on) for on in (True, False)]
        outer, inner = autocast if around else autocast[::-1]

        def closure() -> torch.Tensor:
            with nullcontext() if around else inner:
                loss = ((model(x).float() - y) ** 2).mean()
            loss.backward()
            return loss

        found = []
        with outer:
            for _ in range(4):
                if driven == "loop":
                    for _ in optimizer.evaluations():
                        closure()
                    optimizer.step()
                else:
                    optimizer.step(closure)
                if driven == "validated":
                    with torch.no_grad(), nullcontext() if around else inner:
                        found.append(model(x).float())
        state = [
            optimizer.state[p][name] for p in model.parameters() for name in ("hess", "grad_avg")
        ]
        assert all(s.any() for s in state)
        return [*model.parameters(), *state, *found]

    for a, b in zip(trained(True), trained(False), strict=True):
        assert torch.equal(a, b)
