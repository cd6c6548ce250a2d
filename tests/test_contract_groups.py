"""Parameter groups, names, groups added later, and plain steps without evaluations."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.signs import block_signs, sign_key
from contract_cases import (
    FEW_OPTIONS,
    IDS,
    LR,
    OPTIONS,
    closure_for,
    counts,
    loss_of,
    make,
    memory,
    network,
    run_loop,
    same,
    train,
    values,
)
from paper import paper_alice
from reference import ReferenceAlice

few_cases = pytest.mark.parametrize("options", FEW_OPTIONS, ids=range(len(FEW_OPTIONS)))
every_case = pytest.mark.parametrize("options", OPTIONS, ids=IDS)

PER_GROUP = [
    {"lr": LR / 4},
    {"lr_min": 1e-3},
    {"probe_radius": 0.05},
    {"betas": (0.5, 0.9)},
    {"eps": 1e-2},
    {"step_fraction": 0.7},
    {"lookahead": 1.5},
    {"limit": "fixed"},
    {"limit": "sgd", "probe_radius": 0.02},
    {"hessian": "rms"},
    {"hessian": "signed"},
    {"glass": False},
    {"hessian": "none", "glass": False},
    {"weight_decay": 0.5},
    {"maximize": True},
]


def separate(a: Tensor, b: Tensor) -> Tensor:
    """A loss whose two parameters do not see each other."""
    return sum((p.square() / 2 + 0.3 * (p - 0.2).abs()).sum() for p in (a, b))


@every_case
def test_two_groups_with_equal_options_equal_one_group(options):
    """Groups are bookkeeping: parameter order decides, not how it is divided."""
    model, optimizer = make(options)
    twin = network()
    groups = [{"params": twin[0].parameters()}, {"params": twin[2].parameters()}]
    second = paper_alice(groups, **{"lr": LR, **options})
    train(model, optimizer, 0, 6)
    train(twin, second, 0, 6)
    assert same(values(model), values(twin))


@pytest.mark.parametrize("change", PER_GROUP, ids=repr)
def test_a_groups_options_rule_its_own_parameters_only(change):
    """With a separable loss the first group runs as if alone, the second as the reference says."""
    start = torch.linspace(-1, 1, 6, dtype=torch.float64)
    a, b = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = paper_alice([{"params": [a]}, {"params": [b], **change}], lr=LR, quick_steps=1)
    lone = nn.Parameter(start.clone())
    alone = paper_alice([lone], lr=LR, quick_steps=1)
    reference = ReferenceAlice([start.numpy()], **{"lr": LR, "quick_steps": 1, **change})

    def gradient(at: list[np.ndarray]) -> list[np.ndarray]:
        return [at[0] + 0.3 * np.sign(at[0] - 0.2)]

    def signs(step: int, _: int, shape: tuple[int, ...]) -> np.ndarray:
        return block_signs(sign_key(0, step, 1), shape, dtype=torch.float64).numpy()

    for _ in range(6):
        optimizer.step(lambda: separate(a, b).backward())
        alone.step(lambda: separate(lone, lone.detach()).backward())
        reference.step(gradient, signs)
    assert torch.equal(a, lone)
    np.testing.assert_allclose(b.detach().numpy(), reference.positions[0], rtol=1e-10)


def test_groups_without_curvature_stay_at_the_center_during_probes():
    """Their parameters stand at nu in all three evaluations, the others move."""
    a, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = paper_alice(
        [{"params": [a]}, {"params": [b], "hessian": "none", "glass": False}], quick_steps=0
    )
    for _ in range(2):
        seen: list[list[Tensor]] = []

        def closure(seen: list[list[Tensor]] = seen) -> None:
            seen.append(values([a, b]))
            separate(a, b).backward()

        center = optimizer.state[b]["probe_center"].clone() if optimizer.state else b.clone()
        optimizer.step(closure)
        assert all(torch.equal(at_b, center) for _, at_b in seen)
        assert not torch.equal(seen[0][0], seen[2][0])
    assert {"hess", "glass_density"}.isdisjoint(optimizer.state[b])


@few_cases
def test_a_group_added_later_equals_one_that_had_no_gradients_before(options):
    """Own step count, own bias correction, own topography weight, from the day it joins."""
    first, late = make(options)
    extra = nn.Parameter(torch.ones(1))
    other, early = make(options)
    waiting = nn.Parameter(torch.ones(1))
    early.add_param_group({"params": [waiting], "lr": LR / 2})
    train(first, late, 0, 3)
    train(other, early, 0, 3)
    late.add_param_group({"params": [extra], "lr": LR / 2})
    for index in range(3, 9):
        late.step(lambda i=index: (loss_of(first, i) * extra.sum()).backward())
        early.step(lambda i=index: (loss_of(other, i) * waiting.sum()).backward())
    assert same(values(first) + values([extra]), values(other) + values([waiting]))
    assert late.state[extra]["step"] == 6


def test_adding_a_group_inside_a_loop_ends_the_excursion():
    """Parameters are back at mu, and the loop says what happened to it."""
    model, optimizer = make({})
    before = values(model)
    with pytest.raises(RuntimeError, match="given up"):  # noqa: PT012, the loop is the claim
        for _ in optimizer.evaluations():
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
            assert same(values(model), before)
    assert counts(optimizer) == (0, 0, 0)


@every_case
def test_named_parameters_change_no_number_and_names_are_kept(options):
    """Alice(model.named_parameters()) is the same run; names sit in groups and checkpoints."""
    model, optimizer = make(options)
    twin = network()
    second = paper_alice(twin.named_parameters(), **{"lr": LR, **options})
    train(model, optimizer, 0, 5)
    train(twin, second, 0, 5)
    assert same(values(model), values(twin))
    assert second.param_groups[0]["param_names"] == [name for name, _ in twin.named_parameters()]
    third = paper_alice(network(1).named_parameters(), **{"lr": LR, **options})
    third.load_state_dict(second.state_dict())
    assert third.param_groups[0]["param_names"] == second.param_groups[0]["param_names"]
    second.load_state_dict(optimizer.state_dict())
    assert second.param_groups[0]["param_names"][0] == "0.weight"


def test_a_bad_named_parameter_is_refused_by_its_name():
    """The message a user of named_parameters() needs."""
    with pytest.raises(ValueError, match=r"'embed\.weight' of group 0 is complex"):
        paper_alice([("embed.weight", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))])


# ---- plain backward + step() ------------------------------------------------------------------


def plain_step(model: nn.Module, optimizer: Alice, index: int) -> None:
    optimizer.zero_grad()
    loss_of(model, index).backward()
    optimizer.step()


def test_plain_steps_warn_exactly_once_and_say_how_to_fix_it():
    """Neither the closure nor the loop was used: one warning, with both ways out."""
    model, optimizer = make({})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for index in range(4):
            plain_step(model, optimizer, index)
    assert len(seen) == 1
    assert issubclass(seen[0].category, UserWarning)
    text = str(seen[0].message)
    assert "closure" in text
    assert "evaluations()" in text
    assert counts(optimizer)[:2] == (0, 4)
    assert optimizer.gradient_evaluations == 4


def test_the_plain_step_warning_points_at_the_users_line():
    """Not into torch or this package: the line to change is the caller's."""
    model, optimizer = make({})
    with pytest.warns(UserWarning, match="no curvature") as seen:
        plain_step(model, optimizer, 0)
    assert seen[0].filename == __file__


def test_plain_steps_do_not_warn_where_nothing_is_missed():
    """With no curvature term, or after a measuring step, a plain step is in order."""
    model, optimizer = make({"hessian": "none", "glass": False})
    plain_step(model, optimizer, 0)
    model, optimizer = make({})
    train(model, optimizer, 0, 1)
    plain_step(model, optimizer, 1)
    assert counts(optimizer)[:2] == (1, 1)


def test_plain_steps_are_adam_steps_while_nothing_was_measured():
    """Gradient at mu, upper bound, phi = 1: torch.optim.Adam."""
    model, optimizer = make({"step_fraction": 1.0})
    twin = network()
    adam = torch.optim.Adam(twin.parameters(), lr=LR)
    with pytest.warns(UserWarning, match="no curvature"):
        plain_step(model, optimizer, 0)
    for index in range(1, 5):
        plain_step(model, optimizer, index)
    for index in range(5):
        adam.zero_grad()
        loss_of(twin, index).backward()
        adam.step()
    for p, q in zip(values(model), values(twin), strict=True):
        torch.testing.assert_close(p, q)


def test_plain_steps_leave_a_due_full_step_due():
    """The first closure after plain steps is evaluated three times."""
    model, optimizer = make({})
    with pytest.warns(UserWarning, match="no curvature"):
        plain_step(model, optimizer, 0)
    plain_step(model, optimizer, 1)
    calls = []

    def closure() -> None:
        calls.append(None)
        closure_for(model, 2)()

    optimizer.step(closure)
    assert len(calls) == 3


def test_a_plain_step_moves_from_the_position_not_from_the_center():
    """After steps that left nu elsewhere, the step starts at mu, which the parameters hold."""
    model, optimizer = make({"lookahead": 3.0, "step_fraction": 0.1})
    train(model, optimizer, 0, 2)
    before = values(model)
    plain_step(model, optimizer, 2)
    for start, p in zip(before, model.parameters(), strict=True):
        center = optimizer.state[p]["probe_center"]
        # nu - mu = 3 u and the move is 0.1 u, both from the same start.
        torch.testing.assert_close(0.1 * (center - start), 3.0 * (p.detach() - start))


def test_per_optimizer_options_are_shared_by_every_group():
    """Counters and options kept in every group agree after training with two groups."""
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = paper_alice(groups, lr=LR, quick_steps=2, seed=5, max_grad_norm=1.0)
    train(model, optimizer, 0, 4)
    run_loop(model, optimizer, 4)
    optimizer.step()
    names = ("quick_steps", "seed", "max_grad_norm", "cadence", "measuring_count", "quick_count")
    first, second = memory(optimizer)["groups"]
    assert [first[name] for name in names] == [2, 5, 1.0, 5, 2, 3]
    assert [second[name] for name in names] == [2, 5, 1.0, 5, 2, 3]
