"""Micro-batches one after another give what a loop over all of them gives."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from aliceopt import Alice
from aliceopt.integrations.window import Window
from contract_cases import same
from trainer_cases import alice, assert_same, by_hand, loader, noisy_network, seed


def streamed(batches, *, accumulate, between=lambda model, optimizer: None, **options):
    """Train micro-batch by micro-batch."""
    model = noisy_network()
    optimizer, window = alice(model, **options), Window()
    for i, (x, y) in enumerate(batches):
        if i % accumulate == 0:
            seed(i // accumulate)
        last = (i + 1) % accumulate == 0
        for _ in window.evaluations(optimizer, last=last):
            (nn.functional.mse_loss(model(x), y) / accumulate).backward()
        between(model, optimizer)
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_a_window_equals_a_loop_over_its_micro_batches(accumulate: int) -> None:
    """To the bit, with dropout and BatchNorm, on measuring and quick steps."""
    batches = list(loader(12))
    model = noisy_network()
    optimizer = alice(model)
    by_hand(model, optimizer, batches, accumulate=accumulate)
    assert_same(streamed(batches, accumulate=accumulate), (model, optimizer))


def test_validation_and_checkpoints_between_micro_batches_change_nothing() -> None:
    """The parameters are at the position there, and looking at them is harmless."""
    batches, seen = list(loader(8)), []

    def between(model: nn.Module, optimizer: Alice) -> None:
        seen.append([p.detach().clone() for p in model.parameters()])
        if len(seen) % 4 == 0:  # after the last micro-batch a step is under way
            return
        model.eval()
        model(batches[0][0])
        model.train()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    undisturbed = streamed(batches, accumulate=4)
    assert_same(streamed(batches, accumulate=4, between=between), undisturbed)
    positions = [p.detach() for p in noisy_network().parameters()]
    assert all(same(positions, there) for there in seen[:4])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zeroed_gradients_give_a_window_up(set_to_none: bool) -> None:
    """What comes next is a first micro-batch."""
    batches = list(loader(2))
    model = noisy_network()
    optimizer, window = alice(model), Window()
    for _ in window.evaluations(optimizer, last=False):
        model(batches[1][0]).sum().backward()
    optimizer.zero_grad(set_to_none)
    fresh = noisy_network()
    fresh.load_state_dict(model.state_dict())
    reference = alice(fresh)
    by_hand(fresh, reference, batches[:1])
    seed(0)
    for _ in window.evaluations(optimizer, last=True):
        nn.functional.mse_loss(model(batches[0][0]), batches[0][1]).backward()
    optimizer.step()
    assert_same((model, optimizer), (fresh, reference))


def clipped_between(limit: float) -> None:
    """A step of two micro-batches, clipped after the first."""
    x, y = next(iter(loader(1)))
    model = noisy_network()
    optimizer, window = alice(model), Window()
    for last in (False, True):
        for _ in window.evaluations(optimizer, last=last):
            nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), math.inf if last else limit)


def test_gradients_changed_within_a_window_are_warned_of() -> None:
    """The sums at the sides do not follow. Asking for a norm changes nothing."""
    with pytest.warns(UserWarning, match="between two micro-batches"):
        clipped_between(0.01)
    clipped_between(math.inf)


def test_settings_changed_within_a_window_are_refused() -> None:
    """Sums at one point and at three do not fit; the error says what to do."""
    x, y = next(iter(loader(1)))
    model = noisy_network()
    optimizer, window = alice(model), Window()
    for _ in window.evaluations(optimizer, last=False):
        nn.functional.mse_loss(model(x), y).backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    with pytest.raises(RuntimeError, match=r"3 point\(s\), this one at 1.*between steps"):
        list(window.evaluations(optimizer, last=True))


def test_parameters_that_others_train_keep_their_gradients() -> None:
    """One gradient a micro-batch, the center's, also when the excursion is taken back."""
    (x, y), *_ = loader(1)
    model = noisy_network().eval()
    head = list(model[4].parameters())
    optimizer = alice(model)
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][:-2]
    optimizer.param_groups[0]["param_names"] = optimizer.param_groups[0]["param_names"][:-2]
    nn.functional.mse_loss(model(x), y).backward()
    once = [p.grad.clone() for p in head]
    model.zero_grad()
    window = Window()
    for last in (False, True):
        for _ in window.evaluations(optimizer, last=last):
            nn.functional.mse_loss(model(x), y).backward()
    for param, grad in zip(head, once, strict=True):
        torch.testing.assert_close(param.grad, 2 * grad)
