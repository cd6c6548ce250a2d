"""What masks leave, fitted anew: least squares by other means, and nothing lost on the way."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from aliceopt.compress import prune, refit, weights_of
from aliceopt.compress.refitting import refitted
from compress_cases import everything_of, small_net, some_batches


def by_size(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.values().abs() for name, weight in weights_of(net).items()}


def test_every_row_is_the_least_squares_fit_of_its_own_columns():
    """Against torch's lstsq, row by row; rows of nothing, of one and of all weights."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(40, 7, generator=random, dtype=torch.float64)
    x[:, 1] += 0.9 * x[:, 0]  # what one loses, the other can make up for
    w = torch.randn(5, 7, generator=random, dtype=torch.float64)
    kept = torch.rand(5, 7, generator=random) < 0.5
    kept[0], kept[1], kept[2] = False, True, torch.arange(7) == 3
    found = refitted(w, x.T @ x, kept, 1e-12)
    assert (found[~kept] == 0).all()
    for row, mask, fitted in zip(w, kept, found, strict=True):
        best = torch.linalg.lstsq(x[:, mask], (x @ row)[:, None]).solution[:, 0]
        torch.testing.assert_close(fitted[mask], best, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[1], w[1])


def test_a_fit_that_is_stopped_early_is_no_worse_than_none(monkeypatch):
    """On features so alike that it takes many iterations: each comes nearer."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(200, 30, generator=random, dtype=torch.float64).cumsum(1)
    w = torch.randn(4, 30, generator=random, dtype=torch.float64)
    kept, gram = torch.rand(4, 30, generator=random) < 0.5, x.T @ x
    errors = []
    for most in (0, 1, 3, 10, 1000):
        monkeypatch.setattr("aliceopt.compress.refitting._MOST", most)
        off = w - refitted(w, gram, kept, 1e-6)
        errors.append(float((off @ gram * off).sum()))
    assert all(later < before for before, later in pairwise(errors))


def test_outputs_come_nearer_to_those_of_before_and_masks_stay():
    """On images that were not seen; random ones share little that could be made up with."""
    net, batches = small_net(norm=False).eval(), some_batches(40)
    fresh = some_batches(4, seed=9)
    with torch.no_grad():
        before = [net(x) for x, _ in fresh]
        prune(net, by_size(net), 0.6)
        masks = [weight.mask.clone() for weight in weights_of(net).values()]

        def off() -> float:
            return sum(
                float((net(x) - y).square().sum()) for (x, _), y in zip(fresh, before, strict=True)
            )

        removed = off()
        assert refit(net, lambda batch: net(batch[0]), batches) == ("0.weight", "4.weight")
        last = net[-1]
        assert torch.equal(last.weight, last.weight_orig * last.weight_mask)  # before a call, too
        assert off() < 0.7 * removed
    after = [weight.mask for weight in weights_of(net).values()]
    assert all(map(torch.equal, masks, after))


def test_what_cannot_be_refitted_is_refused_and_stays():
    net = small_net().eval()
    with pytest.raises(ValueError, match="the model has no masks: prune it first"):
        refit(net, lambda batch: net(batch[0]), some_batches(1))
    prune(net, by_size(net), 0.5)
    before = everything_of(net)
    with pytest.raises(ValueError, match=r"damping must be a number in \(0, inf\), got -1"):
        refit(net, lambda batch: net(batch[0]), some_batches(1), damping=-1)
    bad = [*some_batches(1), (torch.full((8, 1, 6, 6), torch.inf), None)]
    with pytest.raises(ValueError, match=r"the inputs of '0\.weight' are not finite"):
        refit(net, lambda batch: net(batch[0]), bad)
    assert all(map(torch.equal, everything_of(net), before))
