"""The ladder of radii: known glass, known Hessians, and smooth gradients that look like glass."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from aliceopt.landscape import ladder, power_law
from landscape_cases import Interrupted, everything, generator, network, quadratic

COORDINATES, KINKS = 300, 400
DENSITY = COORDINATES * KINKS / 2 * (1 + 1 / 12)  # of kinks in [-1, 1], times the mean square jump


def glasses(count: int, hess: float = 0.0) -> tuple[nn.Parameter, list[Callable[[], None]]]:
    """One closure a glass: every coordinate has its own kinks and jumps, and a Hessian."""
    x = nn.Parameter(torch.zeros(COORDINATES, dtype=torch.float64))

    def closure_of(seed: int) -> Callable[[], None]:
        g, shape = generator(seed), (COORDINATES, KINKS)
        places = 2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1
        signs = 2.0 * torch.randint(2, shape, generator=g) - 1
        jumps = signs * (0.5 + torch.rand(shape, generator=g, dtype=torch.float64))

        def closure() -> None:
            with torch.no_grad():
                gradient = hess * x + (jumps * (x[:, None] > places)).sum(1)
            (x * gradient).sum().backward()

        return closure

    return x, [closure_of(seed) for seed in range(count)]


# ---- known answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_quadratic_is_smooth_at_every_radius(dtype: torch.dtype) -> None:
    """Exponent 2, no glass, and a variation of b radius^2 exactly."""
    model, closure = quadratic(dtype=dtype)
    found = ladder(model, closure, 1e-3)
    assert found.gradients == 1 + 2 * 4 * 6
    for block in (found.total, *found.blocks.values()):
        assert block.verdict == "smooth"
        assert [p.value for p in block.exponents] == pytest.approx([2] * 5, abs=0.01)
        v = block.variation[0].value
        assert block.glass.low <= 1e-3 * v / found.radii[0]
        assert block.glass.value * found.radii[0] < 1e-3 * v
        assert block.hessian.value * found.radii[0] ** 2 == pytest.approx(v, rel=1e-3)
        assert all(share.value < 1e-5 for share in block.glass_share)
        assert math.isnan(block.crossover.value)


def test_a_simulated_glass_has_its_density_inside_the_interval() -> None:
    """Variation is rho radius, with the rho of the kinks; so says the second difference."""
    x, closures = glasses(8)
    found = ladder([x], closures, 0.01, directions=2).total
    assert found.verdict == "glass"
    for p in found.exponents:
        assert p.value == pytest.approx(1, abs=0.1)
    assert found.glass.low < DENSITY < found.glass.high
    assert found.glass.value == pytest.approx(DENSITY, rel=0.1)
    inside = [rho.low < DENSITY < rho.high for rho in found.glass_density]
    assert sum(inside) >= 5
    for rho, share in zip(found.glass_density, found.glass_share, strict=True):
        assert rho.value == pytest.approx(DENSITY, rel=0.15)
        assert share.value == pytest.approx(1, abs=0.1)


def test_a_mixture_has_its_crossover_within_ten_percent() -> None:
    """Glass below the radius a/b, Hessian above it."""
    truth = 0.08
    x, closures = glasses(8, hess=math.sqrt(DENSITY / COORDINATES / truth))
    found = ladder([x], closures, 0.01, directions=2).total
    assert found.verdict == "glass"
    assert found.exponents[0].value < 1.35 < 1.6 < found.exponents[-1].value
    assert found.crossover.value == pytest.approx(truth, rel=0.1)
    assert found.crossover.low < truth < found.crossover.high
    assert found.misfit < 0.05
    assert found.fitted == 6


def test_a_relu_network_has_glass_in_its_hidden_block() -> None:
    """And none at the output, which no ReLU follows."""
    model, closure = network()
    found = ladder(model, closure, 1e-3, directions=8)
    assert found.blocks["hidden"].verdict == "glass"
    assert found.blocks["hidden"].exponents[0].high < 1.5
    assert found.blocks["output"].verdict == "smooth"
    crossover = found.blocks["hidden"].crossover
    near, *_, far = found.radii
    assert near < crossover.low < crossover.value < crossover.high < far
    assert found.blocks["hidden"].glass_share[0].value > 0.8


def test_what_the_radii_cannot_show_is_undecided() -> None:
    """Far beyond the kinks, at rounding, with two radii, or with a single direction."""
    model, closure = network()
    assert ladder(model, closure, 0.1, count=4).blocks["hidden"].verdict == "undecided"
    assert ladder(model, closure, [1e-3, 2e-3]).blocks["hidden"].verdict == "undecided"
    assert ladder(model, closure, 1e-3, directions=1).blocks["hidden"].verdict == "undecided"
    model, closure = network(nn.GELU, dtype=torch.bfloat16)
    assert ladder(model, closure, 1e-3, count=3).blocks["output"].verdict == "undecided"


def test_the_small_end_is_the_smallest_rung_that_can_be_read() -> None:
    """Past radii at which no kink is crossed, and past those whose changes are rounding."""
    x = nn.Parameter(torch.zeros(100, dtype=torch.float64))
    places = torch.linspace(0.011, 1, 100, dtype=torch.float64)
    kinks = ladder([x], lambda: F.relu(x - places).sum().backward(), [1e-3, 1e-2, 0.1, 0.5]).total
    assert [p.value for p in kinks.exponents[:2]] == pytest.approx([math.nan] * 2, nan_ok=True)
    assert kinks.start == 2
    model, closure = network(nn.GELU, dtype=torch.bfloat16)
    found = ladder(model, closure, 1e-3)
    assert found.blocks["output"].verdict == "smooth"
    assert found.blocks["output"].start >= 1


def test_no_change_is_nothing() -> None:
    """A gradient that does not depend on the parameters; null in a record."""
    x = nn.Parameter(torch.ones(3))
    found = ladder([x], lambda: x.sum().backward(), 0.1)
    assert found.total.verdict == "nothing"
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["total"]["exponents"][0]["value"] is None
    assert plain["radii"][0] == 0.1


# ---- the other instrument, and the cost --------------------------------------------------------


def test_two_radii_and_one_side_are_the_power_law() -> None:
    """The same directions, variations, exponent and interval."""
    model, closure = network()
    law = power_law(model, closure, 1e-3, directions=5, seed=3)
    found = ladder(model, closure, [1e-3, 2e-3], directions=5, seed=3, second=False)
    assert found.gradients == law.gradients == 11
    for name, block in law.blocks.items():
        (p,) = found.blocks[name].exponents
        assert (p.value, p.low, p.high) == pytest.approx((block.exponent, block.low, block.high))
        near, far = (v.value for v in found.blocks[name].variation)
        assert (near, far) == pytest.approx((block.variation, block.variation_double))
        assert math.isnan(found.blocks[name].glass_density[0].value)


def test_the_glass_density_is_that_of_the_topography() -> None:
    """(2/radius) (second difference)^2, by hand along one direction."""
    x = nn.Parameter(torch.tensor([0.5, -1.0], dtype=torch.float64))
    found = ladder([x], lambda: x.pow(3).sum().backward(), [0.1, 0.2], directions=1).total
    for radius, rho, v in zip((0.1, 0.2), found.glass_density, found.variation, strict=True):
        second = 3 * radius**2  # of the gradient 3 x^2, in both coordinates
        assert rho.value == pytest.approx(2 / radius * 2 * second**2)
        smooth = sum((6 * center * radius) ** 2 for center in (0.5, -1.0))
        assert v.value == pytest.approx(smooth + 2 * second**2)


@pytest.mark.parametrize("second", [True, False])
def test_gradients_are_counted(second: bool) -> None:
    """The center once a batch, one or two a radius and direction."""
    model, closure = quadratic()
    calls: list[int] = []

    def on_batch(batch: int) -> None:
        calls.append(batch)
        closure()

    found = ladder(
        model, on_batch, 0.01, count=3, directions=2, batches=iter(range(4)), second=second
    )
    assert found.batches == 4
    assert found.gradients == len(calls) == 4 * (1 + (12 if second else 6))
    assert calls == sorted(calls)


# ---- batches -----------------------------------------------------------------------------------


def test_batches_that_differ_widen_the_interval() -> None:
    """Losses of different scale: what batches add exceeds what directions do."""
    model, closure = quadratic()

    def scaled(scale: float) -> Callable[[], None]:
        def on_batch() -> None:
            closure()
            for param in model.parameters():
                assert param.grad is not None
                param.grad *= scale

        return on_batch

    same = ladder(model, [closure] * 4, 0.01, count=3).total.variation[0]
    differing = ladder(model, [scaled(s) for s in (1, 2, 3, 4)], 0.01, count=3).total
    one = ladder(model, closure, 0.01, count=3).total.variation[0]
    v = differing.variation[0]
    assert math.isnan(one.error_batches)
    assert v.error_batches > 2 * v.error_directions
    assert v.high - v.low > 3 * (same.high - same.low)
    assert (v.high - v.low) / v.value > (one.high - one.low) / one.value
    assert same.high - same.low < one.high - one.low
    assert differing.verdict == "smooth"


def test_batches_have_directions_of_their_own() -> None:
    """The same batch twice says more than once."""
    model, closure = network()
    once = ladder(model, closure, 1e-3, count=3)
    twice = ladder(model, [closure] * 2, 1e-3, count=3)
    other = ladder(model, closure, 1e-3, count=3, step=1)
    assert twice.total.variation != once.total.variation != other.total.variation
    assert ladder(model, closure, 1e-3, count=3).as_dict() == once.as_dict()


# ---- what is left behind -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nothing_is_left_behind(dtype: torch.dtype) -> None:
    """Parameters, gradients, buffers and random state, to the bit."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    closure()
    before = everything(model)
    ladder(model, [closure] * 2, 1e-2, count=3, directions=2)
    assert all(map(torch.equal, before, everything(model)))


@pytest.mark.parametrize("call", [0, 4, 13, 17])
def test_nothing_is_left_behind_by_a_closure_that_fails(call: int) -> None:
    """At the first center, half-way up, at the second batch's center and on its ladder."""
    model, closure = network(dropout=0.2, norm=True)
    closure()
    before, failing = everything(model), Interrupted(closure, call)
    with pytest.raises(KeyboardInterrupt):
        ladder(model, [failing] * 2, 1e-2, count=3, directions=2)
    assert all(map(torch.equal, before, everything(model)))


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radii": [0.1]}, r"two radii or more, got \[0.1\]"),
        ({"radii": []}, r"two radii or more, got \[\]"),
        ({"radii": 0.1, "count": 1}, r"two radii or more, got \[0.1\]"),
        ({"radii": [0.2, 0.1]}, r"each above the last, got \[0.2, 0.1\]"),
        ({"radii": [0.1, 0.1]}, r"each above the last, got \[0.1, 0.1\]"),
        ({"radii": [0.1, math.inf]}, r"each above the last, got \[0.1, inf\]"),
        ({"radii": -1.0}, "numbers above 0, .* got -1.0"),
        ({"radii": "0.1"}, "numbers above 0, .* got '0.1'"),
        ({"count": 2.5}, "count must be a whole number >= 1, got 2.5"),
        ({"factor": 1.0}, r"factor must be a number in \(1, inf\), got 1.0"),
        ({"directions": 0}, "directions must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"batches": []}, "no batches were given"),
        ({"closure": []}, "no batches were given"),
        ({"closure": 3}, "closure must be callable, or a sequence of callables, got 3"),
        ({"closure": [print], "batches": [1]}, "with batches one closure is needed, got a list"),
        ({"blocks": 0}, "blocks, as a depth of names, must be a whole number >= 1, got 0"),
    ],
)
def test_bad_input_is_named(options: dict[str, object], message: str) -> None:
    """Every refusal says what was wrong and with what value."""
    model, closure = network()
    given: dict[str, object] = {"model": model, "closure": closure, "radii": 1e-3, **options}
    with pytest.raises(ValueError, match=message):
        ladder(**given)  # type: ignore[arg-type]


def test_half_precision_needs_whole_multiples() -> None:
    """1.5 spacings are no place in bf16."""
    model, closure = network(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"whole number for the torch.bfloat16 parameter.*1\.5"):
        ladder(model, closure, [0.01, 0.015])


def test_radii_may_be_an_array() -> None:
    """torch.logspace gives a tensor."""
    model, closure = quadratic()
    found = ladder(model, closure, torch.tensor([0.01, 0.1], dtype=torch.float64))
    assert found.radii == (0.01, 0.1)


def test_any_set_of_parameters_can_be_read_afterwards() -> None:
    """All of them are the total, one is its block, and tied names count once."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.Linear(2, 3)).double()
    model[3].weight = model[0].weight
    inputs = torch.randn(5, 2, generator=generator(0), dtype=torch.float64)

    def closure() -> None:
        model(inputs).square().sum().backward()

    found = ladder(model, closure, 0.01, count=3, blocks=2)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert "3.weight" in names
    assert found.of(names).variation == found.total.variation
    for name in names:
        assert found.of([name]).variation == found.blocks[name].variation
    assert found.of(["0.weight", "3.weight"]).variation == found.of(["0.weight"]).variation
    with pytest.raises(ValueError, match="'nothing' was not measured"):
        found.of(["nothing"])
    with pytest.raises(ValueError, match="no parameter was named"):
        found.of([])
