"""Standard errors and intervals over directions and batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aliceopt.landscape.rungs import glass_and_hessian
from aliceopt.landscape.spread import estimates
from landscape_cases import generator


def same(mean: Tensor) -> Tensor:
    return mean


def test_the_errors_of_a_mean_are_those_of_the_textbook() -> None:
    """Pooled variance within batches over n m; variance of batch means over m, less that."""
    x = torch.randn(5, 4, 1, generator=generator(), dtype=torch.float64)
    x += 3 * torch.randn(5, 1, 1, generator=generator(1), dtype=torch.float64)
    (found,) = estimates(x, same)
    inner = x.var(1).mean().item() / 20
    both = x.mean(1).var().item() / 5
    assert found.value == pytest.approx(x.mean().item())
    assert found.error_directions == pytest.approx(math.sqrt(inner))
    assert found.error_batches == pytest.approx(math.sqrt(both - inner))


def test_one_batch_or_one_direction_leaves_the_other_error() -> None:
    """And one of each leaves no interval at all."""
    x = torch.randn(1, 4, 1, generator=generator(), dtype=torch.float64)
    (found,) = estimates(x, same)
    half = 3.1824 * x.std().item() / 2
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))
    assert math.isnan(found.error_batches)
    (found,) = estimates(x.transpose(0, 1), same)
    assert found.high == pytest.approx(found.value + half)
    assert math.isnan(found.error_directions)
    (found,) = estimates(x[:, :1], same)
    assert math.isnan(found.low)
    assert found.value == x[0, 0, 0]


@pytest.mark.parametrize(("batches", "spread"), [(1, 0.0), (4, 0.0), (4, 0.5), (8, 3.0)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(batches: int, spread: float) -> None:
    """Whether batches differ or not."""
    g, tables = generator(), 2000
    x = torch.randn(batches, 6, tables, generator=g, dtype=torch.float64)
    x += spread * torch.randn(batches, 1, tables, generator=g, dtype=torch.float64)
    inside = [found.low < 0 < found.high for found in estimates(x, same)]
    assert 0.92 < sum(inside) / tables < 0.99


@pytest.mark.parametrize(("batches", "directions"), [(3, 8), (4, 4), (8, 8)])
def test_batches_that_differ_as_much_as_directions_are_no_trap(
    batches: int, directions: int
) -> None:
    """A hard case for the choice between the two variances; two batches are told of."""
    g, tables = generator(), 4000
    x = torch.randn(batches, directions, tables, generator=g, dtype=torch.float64)
    x += torch.randn(batches, 1, tables, generator=g, dtype=torch.float64)
    inside = [found.low < 0 < found.high for found in estimates(x, same)]
    assert 0.93 < sum(inside) / tables < 0.97


def test_the_fit_never_goes_below_zero_and_agrees_with_a_search() -> None:
    """Against a grid of a and b, for data that want either term negative."""
    radii = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    rows = torch.tensor([[1.0, 3.0, 20.0], [1.0, 1.5, 2.0], [1.0, 3.0, 10.0]], dtype=torch.float64)
    steps = torch.linspace(0, 2, 401, dtype=torch.float64)
    a, b = torch.meshgrid(steps, steps, indexing="ij")
    curves = a[..., None] * radii + b[..., None] * radii.square()
    for v, found in zip(rows, glass_and_hessian(rows, radii, rounds=0), strict=True):
        best = ((curves / v - 1).square().sum(-1)).argmin()
        assert found[0].item() == pytest.approx(a.flatten()[best].item(), abs=0.006)
        assert found[1].item() == pytest.approx(b.flatten()[best].item(), abs=0.006)
        assert found.min() >= 0
