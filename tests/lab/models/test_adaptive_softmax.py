"""Adaptive softmax with shapes that depend on no data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt.lab.models import AdaptiveSoftmax

VOCABULARY, WIDTH, CUTOFFS = 40, 6, (10, 18, 30)


def _setting(capacity: float = 1.0) -> tuple[AdaptiveSoftmax, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    softmax = AdaptiveSoftmax(WIDTH, VOCABULARY, CUTOFFS, capacity).double()
    with torch.no_grad():
        softmax.bias.normal_()
        softmax.cluster_bias.normal_()
    table = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(50, WIDTH, dtype=torch.float64, requires_grad=True)
    return softmax, table, hidden, torch.randint(VOCABULARY, (50,))


def test_probabilities_sum_to_one() -> None:
    """Words of the head and of all clusters together."""
    softmax, table, hidden, _ = _setting()
    log_p = softmax.log_probabilities(hidden, table)
    assert log_p.shape == (50, VOCABULARY)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(50, dtype=torch.float64))


def test_agrees_with_torchs_own_adaptive_softmax() -> None:
    """With the weights copied over (its tails have no bias and a projection, here the identity)."""
    softmax, table, hidden, targets = _setting()
    theirs = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCABULARY, list(CUTOFFS), 1.0, head_bias=True)
    theirs = theirs.double()
    with torch.no_grad():
        softmax.bias[CUTOFFS[0] :] = 0
        theirs.head.weight.copy_(torch.cat([table[:10], softmax.cluster_weight]))
        theirs.head.bias.copy_(torch.cat([softmax.bias[:10], softmax.cluster_bias]))
        bounds = (*CUTOFFS, VOCABULARY)
        for i, (projection, words) in enumerate(theirs.tail):
            projection.weight.copy_(torch.eye(WIDTH))
            words.weight.copy_(table[bounds[i] : bounds[i + 1]])
    torch.testing.assert_close(softmax.loss(hidden, table, targets), theirs(hidden, targets).loss)
    torch.testing.assert_close(softmax.log_probabilities(hidden, table), theirs.log_prob(hidden))


@pytest.mark.parametrize("capacity", [1.0, 0.5])
def test_loss_and_gradients_are_exact_within_the_capacity(capacity: float) -> None:
    """The mean of ``-log p(target)``; a capacity that holds each cluster changes nothing."""
    softmax, table, hidden, targets = _setting(capacity)
    for start, end in zip(CUTOFFS, (*CUTOFFS[1:], VOCABULARY), strict=True):
        assert ((targets >= start) & (targets < end)).sum() <= 25
    log_p = softmax.log_probabilities(hidden, table)
    expected = -log_p.gather(1, targets[:, None]).mean()
    found = softmax.loss(hidden, table, targets)
    torch.testing.assert_close(found, expected)
    wrt = [hidden, table, *softmax.parameters()]
    torch.testing.assert_close(torch.autograd.grad(found, wrt), torch.autograd.grad(expected, wrt))


def test_beyond_the_capacity_the_tail_is_the_mean_of_the_first_that_fit() -> None:
    """30 of 50 tokens in one cluster, room for 5: those 5 stand for all 30. Exact in eval mode."""
    softmax, table, hidden, _ = _setting(capacity=0.1)
    targets = torch.cat([torch.arange(20) % 10, 30 + torch.arange(30) % 10])
    losses = -softmax.log_probabilities(hidden, table).gather(1, targets[:, None])[:, 0]
    head = -nn.functional.linear(hidden, *softmax.clusters(table)[0]).log_softmax(1)
    in_head = torch.where(targets < 10, targets, 12)
    head_losses = head.gather(1, in_head[:, None])[:, 0]
    tail = (losses - head_losses)[20:25].mean() * 30 / 50
    torch.testing.assert_close(softmax.loss(hidden, table, targets), head_losses.mean() + tail)
    torch.testing.assert_close(softmax.eval().loss(hidden, table, targets), losses.mean())


@pytest.mark.parametrize("capacity", [1.0, 0.1])
def test_clusters_without_a_target_add_nothing(capacity: float) -> None:
    """No division by their zero count, and finite gradients."""
    softmax, table, hidden, targets = _setting(capacity)
    loss = softmax.loss(hidden, table, targets % 10)
    loss.backward()
    expected = -softmax.log_probabilities(hidden, table).gather(1, targets[:, None] % 10).mean()
    torch.testing.assert_close(loss, expected)
    assert all(torch.isfinite(p.grad).all() for p in softmax.parameters())
    assert not table.grad[10:].any()


def test_without_cutoffs_it_is_the_plain_softmax() -> None:
    """``cross_entropy`` of ``hidden table^T + bias``, and no cluster parameters."""
    softmax = AdaptiveSoftmax(WIDTH, VOCABULARY)
    _, table, hidden, targets = _setting()
    softmax = softmax.double()
    expected = nn.functional.cross_entropy(hidden @ table.mT, targets)
    torch.testing.assert_close(softmax.loss(hidden, table, targets), expected)
    assert [name for name, _ in softmax.named_parameters()] == ["bias"]
