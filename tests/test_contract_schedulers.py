"""Every scheduler of torch drives Alice exactly as it drives Adam.

The oracle: torch.optim.Adam under the same scheduler says which lr and betas each step should use;
an Alice with these set by hand must come out bit for bit the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR

from contract_cases import LR, counts, make, network, same, train, values
from paper import paper_alice

STEPS = 12
BETAS = (0.9, 0.99)

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda k: min(1.0, k / 4)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda k: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 4, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 7]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.25, total_iters=5),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=8),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.8),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.8)],
        milestones=[4],
    ),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=10, power=2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, cooldown=1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=LR / 10, max_lr=LR, step_size_up=3, cycle_momentum=True
    ),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=LR, total_steps=STEPS + 1),
    "SWALR": lambda o: SWALR(o, swa_lr=LR / 10, anneal_epochs=4),
}


def advance(scheduler: Any, step: int) -> None:
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0 if step > 2 else 1.0 - step)
    else:
        scheduler.step()


def settings_of(name: str, lr: Any = LR) -> list[tuple[float, tuple[float, float]]]:
    """What Adam, under the same scheduler, would use at each step."""
    adam = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=lr, betas=BETAS)
    scheduler = SCHEDULERS[name](adam)
    settings = []
    for step in range(STEPS):
        group = adam.param_groups[0]
        settings.append((float(group["lr"]), tuple(group["betas"])))
        adam.step()
        advance(scheduler, step)
    return settings


def test_every_public_scheduler_of_torch_is_in_the_list():
    """So that one added by a later torch is not forgotten."""
    public = {name for name in lr_scheduler.__all__ if name != "LRScheduler"}
    assert public <= set(SCHEDULERS)


@pytest.mark.parametrize("options", [{}, {"limit": "fixed", "hessian": "signed"}], ids=repr)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_drives_lr_and_betas_as_it_drives_adams(name, options):
    """Radius, bounds, phi and bias correction all follow what the scheduler set."""
    settings = settings_of(name)
    driven, first = make({**options, "betas": BETAS})
    by_hand, second = make({**options, "betas": BETAS})
    scheduler = SCHEDULERS[name](first)
    for step, (lr, betas) in enumerate(settings):
        group = first.param_groups[0]
        assert (group["lr"], tuple(group["betas"])) == (lr, betas)
        train(driven, first, step, step + 1)
        advance(scheduler, step)
        second.param_groups[0].update(lr=lr, betas=betas)
        train(by_hand, second, step, step + 1)
    assert len({lr for lr, _ in settings}) > 1
    assert same(values(driven), values(by_hand))


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
def test_momentum_cycles_move_the_betas(name):
    """The two schedulers that touch betas do so on Alice too."""
    betas = {betas for _, betas in settings_of(name)}
    assert len({beta1 for beta1, _ in betas}) > 2
    assert {beta2 for _, beta2 in betas} == {BETAS[1]}


@pytest.mark.parametrize("name", ["StepLR", "CosineAnnealingLR", "OneCycleLR", "LinearLR"])
def test_schedulers_drive_a_tensor_learning_rate(name):
    """Filled in place by torch; the run equals one with the same values as numbers."""
    settings = settings_of(name, torch.tensor(LR))
    model, optimizer = make({"lr": torch.tensor(LR), "betas": BETAS})
    by_hand, second = make({"betas": BETAS})
    scheduler = SCHEDULERS[name](optimizer)
    for step, (lr, betas) in enumerate(settings):
        train(model, optimizer, step, step + 1)
        advance(scheduler, step)
        second.param_groups[0].update(lr=lr, betas=betas)
        train(by_hand, second, step, step + 1)
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
    assert same(values(model), values(by_hand))


def test_a_warm_up_from_zero_makes_the_full_step_up_at_the_first_positive_radius():
    """At lr 0 there is no radius: a quick step that moves nothing; the measuring one stays due."""
    model, optimizer = make({"quick_steps": 3})
    before = values(model)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda k: 0.0 if k < 2 else 1.0)
    seen = []
    for step in range(8):
        full = optimizer.param_groups[0]["measuring_count"]
        train(model, optimizer, step, step + 1)
        seen.append(optimizer.param_groups[0]["measuring_count"] - full)
        if step == 1:
            assert same(values(model), before)
        scheduler.step()
    assert seen == [0, 0, 1, 0, 0, 0, 1, 0]
    assert counts(optimizer)[:2] == (2, 6)


def test_a_fixed_radius_does_not_follow_the_schedule():
    """A number stays fixed: on x^2/2 the probes stand where it says while lr decays."""
    p = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    for radius, expected in ((0.25, [0.25] * 3), (None, [LR / 2, LR / 4, LR / 8])):
        optimizer = paper_alice([p], lr=LR, probe_radius=radius, quick_steps=0)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        distances = []
        for _ in range(3):
            places = []

            def closure(places: list[float] = places) -> None:
                places.append(p.item())
                (p.square() / 2).sum().backward()

            optimizer.step(closure)
            scheduler.step()
            distances.append(abs(places[0] - places[1]) / 2)
        assert distances == pytest.approx(expected)


def test_a_scheduler_with_one_lr_per_group_reaches_each_group():
    """Group lrs differ, each scaled by its own lambda."""
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": LR / 2}]
    optimizer = paper_alice(groups, lr=LR)
    scheduler = lr_scheduler.LambdaLR(optimizer, [lambda k: 0.5**k, lambda k: 1.0])
    train(model, optimizer, 0, 1)
    scheduler.step()
    train(model, optimizer, 1, 2)
    assert [group["lr"] for group in optimizer.param_groups] == [LR / 2, LR / 2]
