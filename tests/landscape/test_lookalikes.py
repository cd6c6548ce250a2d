"""Gradients that look like glass and are not: they saturate, or they are rounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aliceopt.landscape import Estimate, ladder
from aliceopt.landscape.rungs import _verdict
from landscape_cases import generator, network


def cubic() -> tuple[nn.Parameter, Callable[[], None]]:
    """The gradient x - x^3/6, at 0."""
    x = nn.Parameter(torch.zeros(20, dtype=torch.float64))
    return x, lambda: (x.square() / 2 - x.pow(4) / 24).sum().backward()


def test_a_saturating_gradient_has_the_exponents_of_its_closed_form() -> None:
    """1.60 between 0.5 and 1, and 2 at the small end: smooth."""
    x, closure = cubic()
    found = ladder([x], closure, 1 / 64, count=7)
    change = [r - r**3 / 6 for r in found.radii]
    expected = [2 * math.log2(b / a) for a, b in pairwise(change)]
    exponents = [p.value for p in found.total.exponents]
    assert exponents == pytest.approx(expected)
    assert exponents[-1] == pytest.approx(1.60, abs=0.01)
    assert found.total.verdict == "smooth"


def softmax() -> tuple[nn.Module, Callable[[], Tensor]]:
    g = generator(2)
    x, y = torch.randn(64, 32, generator=g).double(), torch.randint(10, (64,), generator=g)
    model = nn.Linear(32, 10).double()
    for param in model.parameters():
        nn.init.normal_(param, std=0.1, generator=g)
    return model, lambda: F.cross_entropy(model(x), y).backward()


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("case", [softmax, lambda: network(nn.Tanh), lambda: network(nn.GELU)])
def test_smooth_models_are_smooth_and_never_glass(case: Callable, second: bool) -> None:
    """Also from a radius at which exponents are near 1: rising as it shrinks, so undecided."""
    model, closure = case()
    small = ladder(model, closure, 2e-3, count=7, second=second)
    assert {block.verdict for block in small.blocks.values()} == {"smooth"}
    for radius in (0.05, 0.1, 0.2):
        large = ladder(model, closure, radius, count=4, directions=6, second=second)
        assert "glass" not in {block.verdict for block in large.blocks.values()}


@pytest.mark.parametrize("factor", [1.3, 2.0, 4.0])
def test_few_directions_do_not_make_smooth_gradients_glass(factor: float) -> None:
    """Wide intervals and exponents far below 2, on fine ladders and coarse ones."""
    for case in (softmax, lambda: network(nn.Tanh)):
        model, closure = case()
        for seed in range(6):
            found = ladder(
                model, closure, 0.15, count=3, factor=factor, directions=2, seed=seed, second=False
            )
            assert "glass" not in {block.verdict for block in found.blocks.values()}


def test_bends_narrower_than_the_radius_are_glass_at_that_radius() -> None:
    """A softplus of a thousand times the slope is a ReLU to whoever looks at a thousandth."""
    model, closure = network(lambda: nn.Softplus(beta=1e5))
    assert ladder(model, closure, 1e-3, directions=6).blocks["hidden"].verdict == "glass"


@pytest.mark.parametrize("radius", [0.3, 0.8, 2.0])
def test_a_gradient_that_saturates_lacks_the_second_difference_of_glass(radius: float) -> None:
    """From so far away a tanh is a step, with exponents of 1.3 to 1 that do not rise downwards."""
    model, closure = network(nn.Tanh)
    found = ladder(model, closure, radius, count=4, directions=6).blocks["hidden"]
    assert 0.9 < found.exponents[0].value < 1.6
    assert found.exponents[0].high + found.glass_share[0].high < 1.9
    assert found.verdict == "undecided"


def test_an_exponent_below_three_quarters_is_no_glass_however_wide_its_interval() -> None:
    """Documented, and read off the exponent itself."""

    def p(value: float) -> Estimate:
        return Estimate(value, value - 1, value + 1, 0.3, 0.1)

    share = Estimate(1.2, 0.9, 1.5, 0.1, 0.1)
    assert _verdict([p(0.8), p(0.9)], (1.0, 2.0, 4.0), share) == "glass"
    assert _verdict([p(0.7), p(0.9)], (1.0, 2.0, 4.0), share) == "undecided"


def test_a_coarse_arithmetic_is_told_to_the_ladder() -> None:
    """Under autocast weights are rounded, which makes jumps of a smooth network's gradient."""
    model, plain = network(nn.GELU)

    def closure() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            plain()

    verdicts = [
        ladder(model, closure, radius, spacing=2.0**-8).blocks["hidden"].verdict
        for radius in (1e-4, 2e-4, 3e-4, 5e-4, 1e-3)
    ]
    assert "glass" not in verdicts
    with pytest.raises(ValueError, match=r"spacing must be .* got -1"):
        ladder(model, plain, 1e-3, spacing=-1)
