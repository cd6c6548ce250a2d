"""The joint factor: curvature along Alice's own step, against its diagonal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.landscape import joint_curvature


def quadratic(matrix: Tensor, steps: int = 400, **options: Any) -> tuple[nn.Parameter, Alice, Any]:
    """``x'Ax / 2`` after some steps that measure."""
    x = nn.Parameter(torch.linspace(1.0, 2.0, len(matrix), dtype=torch.float64))
    given = {"lr": 0.01, "hessian": "signed", "quick_steps": 0, "implementation": "eager"}
    optimizer = Alice([x], **{**given, **options})

    def closure() -> Tensor:
        loss = x @ matrix @ x / 2
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return x, optimizer, closure


@pytest.mark.parametrize("length", [0.1, 1.0, 30.0])
def test_a_diagonal_hessian_has_factor_one(length: float) -> None:
    """Whatever the length: a quadratic has the same curvature everywhere."""
    matrix = torch.diag(torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64))
    _, optimizer, closure = quadratic(matrix)
    found = joint_curvature(optimizer, closure, length=length)
    assert found.factor == pytest.approx(1.0, rel=1e-6)
    assert found.gradients == 2


def test_coordinates_that_act_together_are_seen() -> None:
    """A step of all coordinates alike on a matrix of ones: n times what its diagonal says."""
    n = 8
    x, optimizer, closure = quadratic(torch.ones(n, n, dtype=torch.float64), steps=1)
    state = optimizer.state[x]
    # What was measured has noise from the rest of each row; the truth is 1, before its correction.
    state["hess"].fill_(state["topography_weight"].item())
    found = joint_curvature(optimizer, closure)
    assert found.factor == pytest.approx(n, rel=1e-6)
    assert found.diagonal == pytest.approx(n * 0.01**2, rel=1e-6)
    assert found.along == pytest.approx((n * 0.01) ** 2, rel=1e-6)


def test_the_curvature_is_that_of_the_exact_hessian() -> None:
    """Of a smooth network, in float64, along the step that Alice then takes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    x = torch.randn(32, 4, dtype=torch.float64)
    optimizer = Alice(
        model.parameters(), lr=1e-4, weight_decay=0.0, hessian="abs", quick_steps=0, model=model
    )

    def closure() -> Tensor:
        loss = (model(x) - x[:, :1].sin()).square().mean()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    found = joint_curvature(optimizer, closure)
    before = [p.detach().clone() for p in model.parameters()]
    center = [optimizer.state[p]["probe_center"].clone() for p in model.parameters()]
    # The step from averages as they stand, taken from the definition of the probe center.
    last = [(c - b) / 0.5 for b, c in zip(before, center, strict=True)]
    params = list(model.parameters())
    loss = (model(x) - x[:, :1].sin()).square().mean()
    grads = torch.autograd.grad(loss, params, create_graph=True)
    along = sum((g * u).sum() for g, u in zip(grads, last, strict=True))
    product = torch.autograd.grad(along, params)
    exact = sum((h * u).sum().item() for h, u in zip(product, last, strict=True))
    assert found.along == pytest.approx(exact, rel=1e-3)


def layers(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Alice, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)
    x = torch.randn(64, 4).to(dtype)
    optimizer = Alice(model.parameters(), hessian="abs", quick_steps=0, lr=1e-2, model=model)

    def closure() -> Tensor:
        loss = (model(x) - x[:, :1]).float().square().mean()
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)
    return model, optimizer, closure


def test_what_is_frozen_counts_on_neither_side() -> None:
    """The factor of the other layer alone, as if the frozen one had never been the optimizer's."""
    model, optimizer, closure = layers()
    model[0].requires_grad_(False)
    found = joint_curvature(optimizer, closure)
    del optimizer.state[model[0].weight], optimizer.state[model[0].bias]
    alone = joint_curvature(optimizer, closure)
    assert (found.along, found.diagonal) == (alone.along, alone.diagonal)


def test_low_precision_uses_the_displacement_that_rounding_left() -> None:
    """With bf16 weights the factor is that of float32, though the rounded step is another one."""
    _, precise, closure = layers()
    _, rounded, low_closure = layers(torch.bfloat16)
    wanted = joint_curvature(precise, closure, length=8).factor
    assert joint_curvature(rounded, low_closure, length=8).factor == pytest.approx(wanted, rel=0.2)


def test_nothing_notices() -> None:
    """Parameters, gradients, buffers, random state and the next steps, to the bit."""

    def run(look: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)
        )
        optimizer = Alice(model.parameters(), hessian="abs", quick_steps=1, model=model)
        x = torch.randn(16, 4)

        def closure() -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(6):
            optimizer.step(closure)
            if look:
                joint_curvature(optimizer, closure)
        kept = [*model.state_dict().values(), torch.get_rng_state()]
        return [t.clone() for t in kept] + [p.grad.clone() for p in model.parameters()]

    for a, b in zip(run(False), run(True), strict=True):
        assert torch.equal(a, b)


def test_a_closure_that_fails_leaves_no_trace() -> None:
    x, optimizer, _ = quadratic(torch.eye(3, dtype=torch.float64))
    before, grad = x.detach().clone(), x.grad
    with pytest.raises(KeyError):
        joint_curvature(optimizer, lambda: {}["no such batch"])
    assert torch.equal(x, before)
    assert x.grad is grad


def test_what_cannot_be_compared_is_refused() -> None:
    x, optimizer, closure = quadratic(torch.eye(3, dtype=torch.float64), hessian="none")
    with pytest.raises(ValueError, match=r"there is none: construct .* got 'none'"):
        joint_curvature(optimizer, closure)
    with pytest.raises(TypeError, match="an Alice, got SGD"):
        joint_curvature(torch.optim.SGD([nn.Parameter(torch.ones(1))]), closure)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has taken a step"):
        joint_curvature(Alice([x], hessian="abs"), closure)
    for bad in (0, -1.0, math.inf, True, "1"):
        with pytest.raises(ValueError, match=r"length must be a number in \(0, inf\), got"):
            joint_curvature(optimizer, closure, length=bad)
