"""bound_check: exact on quadratics, Theorem 4 on simulated glass, and nothing left behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aliceopt.landscape import bound_check
from aliceopt.landscape.bounds import FORMS
from aliceopt.theory.glass_bound import glass_loss_bound
from landscape_cases import Interrupted, everything, generator, network, quadratic


def diagonal(curvatures: Tensor) -> tuple[nn.Parameter, Callable[[], Tensor]]:
    """A separable quadratic away from its minimum."""
    x = nn.Parameter(torch.linspace(-1, 1, len(curvatures), dtype=torch.float64))

    def closure() -> Tensor:
        loss = (curvatures * x.square()).sum() / 2
        loss.backward()
        return loss

    return x, closure


def test_a_separable_quadratic_is_predicted_exactly() -> None:
    """Along every direction the rise is half of sum h d^2, there is no glass, and first is g.d."""
    curvatures = torch.linspace(1, 5, 30, dtype=torch.float64)
    x, closure = diagonal(curvatures)
    move = torch.arange(30, dtype=torch.float64)
    found = bound_check([("x", x)], closure, 0.1, moves={"mine": {"x": move}})
    assert list(found.kinds) == ["random", "gradient", "mine"]
    assert found.gradients == 3 + 8 + 8 + 1
    for rise in found.rises:
        assert rise.measured == pytest.approx(rise.hessian)
        assert rise.along == pytest.approx(rise.hessian)
        assert max(rise.glass.values()) < 1e-6 * rise.hessian
    mine = found.rises[-1]
    d = 0.1 * move / move.square().mean().sqrt()
    assert mine.first == pytest.approx((curvatures * x * d).sum().item())
    assert mine.measured == pytest.approx((curvatures * d.square()).sum().item() / 2)
    for forms in found.kinds.values():
        assert forms["joint"].ratio.value == pytest.approx(1)


def test_coordinates_that_act_together_show_along_the_gradient() -> None:
    """A dense quadratic: right on average over signs, and too low along its own gradient."""
    model, closure = quadratic()
    found = bound_check(model, closure, 0.01, directions=32)
    assert found.kinds["random"]["joint"].ratio.value == pytest.approx(1, abs=0.25)
    gradient = found.kinds["gradient"]["joint"]
    assert gradient.violations == 1
    steep = [r for r in found.rises if r.kind == "gradient"]
    assert all(r.measured == pytest.approx(r.along) for r in steep)
    assert gradient.ratio.value == pytest.approx(steep[0].along / steep[0].hessian, rel=1e-3)


def glass(coordinates: int, kinks: int, seed: int) -> tuple[nn.Parameter, Callable[[], Tensor]]:
    """Every coordinate its own kinks in [-1, 1], jumps of both signs: an integrated random walk."""
    x = nn.Parameter(torch.zeros(coordinates, dtype=torch.float64))
    g, shape = generator(seed), (coordinates, kinks)
    places = 2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1
    jumps = 2.0 * torch.randint(2, shape, generator=g, dtype=torch.float64) - 1

    def closure() -> Tensor:
        beyond = (x[:, None] - places).clamp(min=0) - (-places).clamp(min=0)
        loss = (jumps * beyond).sum()
        loss.backward()
        return loss

    return x, closure


def test_theorem_4_on_simulated_glass() -> None:
    """Independent coordinates: the joint form is right, the separable one sqrt(n) too large."""
    n, kinks, radius = 100, 400, 0.2
    cases = [glass(n, kinks, seed) for seed in range(6)]
    x = cases[0][0]

    def on(k: int) -> Callable[[], Tensor]:
        other, closure = cases[k]

        def run() -> Tensor:
            with torch.no_grad():
                other.copy_(x)
            other.grad = None
            loss = closure()
            x.grad = other.grad if other is not x else x.grad
            return loss

        return run

    found = bound_check([x], [on(k) for k in range(6)], radius, probes=8, directions=16)
    walk = found.walk["joint"]
    assert walk.low < 1 < walk.high
    assert walk.value == pytest.approx(1, abs=0.25)
    assert found.walk["separable"].value == pytest.approx(1 / math.sqrt(n), rel=0.3)
    assert found.coherence == pytest.approx(1 / math.sqrt(n), rel=0.5)
    density = torch.full((n,), kinks / 2, dtype=torch.float64)  # kinks a length, jumps of size 1
    d = torch.full((n,), radius, dtype=torch.float64)
    told = found.rises[0].glass
    assert told["joint"] == pytest.approx(glass_loss_bound(density, d, joint=True).item(), rel=0.2)
    root = math.sqrt(2 / math.pi)  # a coordinate alone has one second difference, a normal number
    assert told["separable"] == pytest.approx(root * glass_loss_bound(density, d).item(), rel=0.2)
    assert told["coherent"] == pytest.approx(found.coherence * told["separable"])
    assert found.kinds["random"]["separable"].violations == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("call", [None, 4, 20])
def test_nothing_is_left_behind(dtype: torch.dtype, call: int | None) -> None:
    """Parameters, gradients, buffers and random state to the bit; also after a failure anywhere."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    closure()
    before, counted = everything(model), Interrupted(closure, call)
    if call is None:
        found = bound_check(model, [counted] * 2, 0.02, probes=2, directions=2)
        assert counted.calls == found.gradients == 2 * (3 + 4 + 4)
        told = found.kinds["random"]["joint"]
        assert told.moves + told.rounded == 8
        assert told.moves == (8 if dtype == torch.float64 else 0)  # the loss itself is in bf16
    else:
        with pytest.raises(KeyboardInterrupt):
            bound_check(model, [counted] * 2, 0.02, probes=2, directions=2)
    assert all(map(torch.equal, before, everything(model)))


def test_rises_below_the_spacing_of_the_loss_decide_nothing() -> None:
    """At a radius of 1e-7 in float32 a rise is rounding; the record says null."""
    model, closure = network(dtype=torch.float32)
    found = bound_check(model, closure, 1e-7)
    for form in FORMS:
        calibration = found.kinds["random"][form]
        assert (calibration.moves, calibration.rounded) == (0, 8)
        assert math.isnan(calibration.violations)
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["kinds"]["random"]["joint"]["violations"] is None


def test_coarse_arithmetic_makes_more_of_a_rise_rounding() -> None:
    """As for bf16 autocast, whose losses are float32 and no better than what they come from."""
    model, closure = quadratic(n=10)
    told = [
        bound_check(model, closure, 0.01, spacing=spacing).kinds["random"]["joint"].rounded
        for spacing in (None, 1e3)
    ]
    assert told == [0, 8]


def test_bad_input_is_named() -> None:
    """Every refusal says what was wrong and with what value."""
    model, closure = network()
    for options, message in (
        ({"radius": 0.0}, r"radius must be a number in \(0, inf\), got 0.0"),
        ({"probes": 0}, "probes must be a whole number >= 1, got 0"),
        ({"directions": 0}, "directions must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"closure": lambda: None}, "must return the loss, a tensor with one number, got None"),
        ({"moves": {"random": {}}}, "moves has 'random', which is measured anyway"),
        ({"moves": {"o": {"no": torch.ones(1)}}}, r"\['o'\] has 'no', which is no trainable"),
        ({"moves": {"o": {"hidden.bias": torch.ones(1)}}}, r"shape \(128,\), got \(1,\)"),
    ):
        given: dict[str, object] = {"closure": closure, "radius": 1e-2, **options}
        with pytest.raises(ValueError, match=message):
            bound_check(model, **given)  # type: ignore[arg-type]
