"""The power law of gradient variations: exact where it can be, and told where it cannot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aliceopt.landscape import power_law, variation_exponent
from aliceopt.landscape.power_law import jackknife_interval
from aliceopt.landscape.spread import student
from landscape_cases import generator, network, quadratic

# ---- exponents ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "error"),
    [
        (torch.float64, 1e-9),
        (torch.float32, 1e-3),
        (torch.bfloat16, 0.03),
        (torch.float16, 0.01),
    ],
)
def test_a_quadratic_has_exponent_two(dtype: torch.dtype, error: float) -> None:
    """The gradient is linear: p = 2 to rounding, of every block, in every direction."""
    model, closure = quadratic(dtype=dtype)
    found = power_law(model, closure, 0.01)
    assert set(found.blocks) == {"first", "second"}
    for block in (found.total, *found.blocks.values()):
        assert block.exponent == pytest.approx(2, abs=error)
        assert block.low - 1e-12 <= block.exponent <= block.high + 1e-12
        assert block.high - block.low < 8 * error
    assert found.displaced == 1.0
    assert found.gradients == 9


def test_any_factor_gives_the_same_exponent_of_a_quadratic() -> None:
    """The log is taken to the base of the factor."""
    model, closure = quadratic()
    for factor in (1.5, 3.0, 10):
        assert power_law(model, closure, 0.01, factor=factor).total.exponent == pytest.approx(2)


def test_variations_are_those_of_the_definition() -> None:
    """The mean of |H t|^2 radius^2, which is the sum of squares of H."""
    model, closure = quadratic()
    found = power_law(model, closure, 0.5, directions=400)
    closure()
    hessian_norm = _hessian_norm_squared(closure, model)
    assert found.total.variation == pytest.approx(0.25 * hessian_norm, rel=0.05)
    both = sum(block.variation for block in found.blocks.values())
    assert found.total.variation == pytest.approx(both)


def _hessian_norm_squared(closure: Callable[[], Tensor], model: nn.Module) -> float:
    """E |H t|^2 = sum of squares of H, by differences of the gradient."""
    params = list(model.parameters())

    def gradient() -> Tensor:
        model.zero_grad()
        closure()
        return torch.cat([p.grad for p in params if p.grad is not None])

    zero, total = gradient(), 0.0
    for param in params:
        for i in range(param.numel()):
            with torch.no_grad():
                param[i] += 1
            total += float((gradient() - zero).square().sum())
            with torch.no_grad():
                param[i] -= 1
    return total


def test_explicit_hyperplanes_have_exponent_one() -> None:
    """Many independent ReLUs with uniform offsets, and nothing smooth: Theorem 1's glass."""
    g = generator(1)
    weights = torch.randn(20_000, 30, generator=g, dtype=torch.float64)
    offsets = 10 * torch.rand(20_000, generator=g, dtype=torch.float64) - 5
    scale = torch.randn(20_000, generator=g, dtype=torch.float64)
    x = nn.Parameter(torch.zeros(30, dtype=torch.float64))

    def closure() -> None:
        (scale * torch.relu(weights @ x + offsets)).sum().backward()

    found = power_law([x], closure, 0.02, directions=40).total
    assert found.exponent == pytest.approx(1, abs=0.15)
    assert found.low < 1 < found.high


def test_a_fresh_relu_network_has_glass_in_the_hidden_layer_only() -> None:
    """About 1 where a ReLU follows, 2 at the output."""
    model, closure = network()
    found = power_law(model, closure, 1e-3, directions=24)
    assert found.blocks["hidden"].exponent == pytest.approx(1.1, abs=0.15)
    assert found.blocks["output"].exponent == pytest.approx(2, abs=0.05)


def test_a_smooth_network_has_exponent_two_everywhere() -> None:
    """GELU in place of ReLU leaves a Hessian only."""
    model, closure = network(nn.GELU)
    found = power_law(model, closure, 2e-4)
    for block in found.blocks.values():
        assert block.exponent == pytest.approx(2, abs=0.01)


def test_the_second_difference_sees_glass_without_the_hessian() -> None:
    """A Hessian cancels in it: about 1 also at a radius where the one-sided exponent is not."""
    model, closure = network()
    one_sided = power_law(model, closure, 4e-3, directions=16)
    second = power_law(model, closure, 4e-3, directions=16, second=True)
    assert one_sided.blocks["hidden"].exponent > 1.15
    assert second.blocks["hidden"].exponent == pytest.approx(1, abs=0.15)
    assert second.gradients == 65


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_coordinates_that_cannot_move_are_counted(dtype: torch.dtype) -> None:
    """bf16 near 64 has a spacing of 0.5, fp16 one of 0.06: a radius of 0.002 is no move there."""
    x = nn.Parameter(torch.tensor([64.0, 64.0, 0.01, 0.01], dtype=dtype))

    def closure() -> None:
        x.float().square().sum().backward()

    found = power_law([x], closure, 0.002)
    assert found.displaced == 0.5
    assert found.total.exponent == pytest.approx(2, abs=0.02)


# ---- what cannot be told -----------------------------------------------------------------------


def test_no_variation_gives_no_exponent() -> None:
    """A gradient that does not depend on the parameters: NaN, and null in a record."""
    x, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    found = power_law({"x": x, "unused": unused}.items(), lambda: x.sum().backward(), 0.1)
    for block in (found.total, *found.blocks.values()):
        assert block.variation == 0
        assert math.isnan(block.exponent)
        assert math.isnan(block.low)
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["blocks"]["unused"]["exponent"] is None
    assert plain["radius"] == 0.1


def test_a_gradient_that_is_not_finite_gives_no_exponent() -> None:
    """Of its own block; the others are told."""
    x, y = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    found = power_law(
        {"x": x, "y": y}.items(), lambda: (x.sqrt().sum() + y.square().sum()).backward(), 0.1
    )
    assert math.isnan(found.blocks["x"].exponent)
    assert found.blocks["y"].exponent == pytest.approx(2, abs=1e-3)


def test_a_single_direction_has_no_interval() -> None:
    """There is nothing to compare it with."""
    model, closure = network()
    found = power_law(model, closure, 1e-3, directions=1).total
    assert math.isfinite(found.exponent)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Directions with exponential sums: the true exponent is 1, the coverage near 95%."""
    g = generator()
    near, more = (
        torch.empty(8, 2000, dtype=torch.float64).exponential_(generator=g) for _ in range(2)
    )
    low, high = jackknife_interval(near, near + more, 2.0)
    assert 0.91 < ((low < 1) & (high > 1)).double().mean().item() < 0.99


def teststudents_quantiles() -> None:
    """Against the usual tables, within the series' error."""
    known = {1: 12.706, 3: 3.182, 10: 2.228, 11: 2.201, 20: 2.086, 30: 2.042, 120: 1.980}
    for freedom, value in known.items():
        assert student(freedom) == pytest.approx(value, abs=1e-3)


def test_the_exponent_is_a_pure_function() -> None:
    """log_factor(far / near); NaN where there is nothing to compare."""
    near = torch.tensor([1.0, 2.0, 0.0, 1.0, math.inf])
    far = torch.tensor([9.0, 2.0, 1.0, 0.0, 1.0])
    p = variation_exponent(near, far, 3.0)
    assert p[:2].tolist() == pytest.approx([2, 0])
    assert bool(p[2:].isnan().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0.0}, r"radius must be a number in \(0, inf\), got 0.0"),
        ({"radius": math.nan}, "radius .* got nan"),
        ({"radius": "1"}, "radius .* got '1'"),
        ({"factor": 1.0}, r"factor must be a number in \(1, inf\), got 1.0"),
        ({"directions": 0}, "directions must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"step": 0.5}, "step must be a whole number >= 0, got 0.5"),
        ({"blocks": 0}, "blocks, as a depth of names, must be a whole number >= 1, got 0"),
        ({"blocks": {"a": ["hiden.weight"]}}, "'a' has 'hiden.weight'.*mean 'hidden.weight'"),
        ({"blocks": {"a": []}}, "'a' has no trainable parameter"),
        ({"center": {"x": torch.zeros(1)}}, "center names 'x', which is no trainable"),
        ({"center": {"hidden.bias": torch.zeros(1)}}, r"'hidden.bias' must have .* \(128,\)"),
        ({"closure": 3}, "closure must be callable, got int"),
        ({"model": 3}, "a torch.nn.Module or its parameters are needed, got int"),
        ({"model": []}, "nothing to displace"),
    ],
)
def test_bad_input_is_named(options: dict[str, object], message: str) -> None:
    """Every refusal says what was wrong and with what value."""
    model, closure = network()
    given: dict[str, object] = {"model": model, "closure": closure, "radius": 1e-3, **options}
    with pytest.raises(ValueError, match=message):
        power_law(**given)  # type: ignore[arg-type]


def test_half_precision_needs_a_whole_factor() -> None:
    """1.5 spacings are no place in bf16."""
    model, closure = network(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"whole number for the torch.bfloat16 parameter.*1\.5"):
        power_law(model, closure, 1e-3, factor=1.5)


# ---- on a GPU ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_measures_what_the_cpu_does(dtype: torch.dtype) -> None:
    """The same signs and the same quadratic; nothing is left behind on the device either."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, _ = quadratic(dtype=dtype)
    root = torch.randn(40, 40, generator=generator())
    found = []
    for device in ("cpu", "cuda"):
        model.to(device)
        hessian = (root @ root.T).to(device)

        def closure(hessian: Tensor = hessian) -> None:
            x = torch.cat([model.first, model.second]).float()  # type: ignore[list-item]
            x = F.dropout(x, 0.3)
            (x @ hessian @ x / 2).backward()

        torch.manual_seed(0)
        before = [p.detach().clone() for p in model.parameters()]
        random = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
        found.append(power_law(model, closure, 0.01))
        after = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
        assert torch.equal(random, after)
        assert all(map(torch.equal, before, model.parameters()))
    assert found[0].displaced == found[1].displaced
    for measured in found:
        assert measured.total.exponent == pytest.approx(2, abs=0.05)
