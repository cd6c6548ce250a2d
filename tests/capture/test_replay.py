"""Captured steps without a GPU are the uncaptured ones, whatever is done between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("captured steps proper are tested there", allow_module_level=True)
from capture_cases import ReplayedStep, Run, assert_alike, assert_equal, both

# numpy, in the interpreter, warns of what a GPU does silently and the kernels then mask.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def intervene(run: Run, change: str, i: int) -> bool:
    """Something a user may do before step ``i``; whether that step may be replayed."""
    group, state = run.optimizer.param_groups[0], run.optimizer.state
    if change == "a schedule":
        group["lr"] *= 0.9
    elif change == "another radius" and i in (2, 3):
        group["probe_radius"] = 0.02 * i
    elif change == "another seed" and i == 2:
        group["seed"] = 2**63 - 5
    elif change == "fewer quick steps" and i == 2:
        group["quick_steps"] = 0
    elif change == "other numbers" and i == 2:
        group.update(betas=(0.5, 0.9), eps=1e-3, lookahead=2.0, weight_decay=0.1, lr_min=0.001)
    elif change == "an edited center" and i in (1, 2):
        state[run.a]["probe_center"].mul_(1.1)
    elif change == "an edited parameter" and i in (0, 2):
        with torch.no_grad():
            for param in run.optimizer.param_groups[0]["params"]:
                param.mul_(1.1)
    elif change == "replaced state" and i == 2:
        for entries in state.values():
            entries.update({name: value.clone() for name, value in entries.items()})
    elif change == "a replaced counter" and i == 2:
        state[run.a]["step"] = torch.tensor(10.0)
    elif change == "loaded state" and i == 2:
        run.optimizer.load_state_dict(run.optimizer.state_dict())
    elif change == "moved parameters" and i == 2:
        run.a.data = run.a.data.clone()
    elif change == "other terms" and i in (2, 4):
        group.update({2: {"hessian": "signed", "glass": False}, 4: {"glass": True}}[i])
    elif change == "clipping" and i in (2, 4):
        group["max_grad_norm"] = {2: 0.5, 4: None}[i]
    elif change == "a frozen parameter" and i in (2, 4):
        run.b.requires_grad_(i == 4)
    elif change == "a new group" and i == 2:
        run.other.grad = None
        run.optimizer.add_param_group({"params": [run.other]})
    elif change == "uncaptured steps" and i in (0, 2, 4):
        return False
    return True


CHANGES = [
    "nothing",
    "a schedule",
    "another radius",
    "another seed",
    "fewer quick steps",
    "other numbers",
    "an edited center",
    "an edited parameter",
    "replaced state",
    "a replaced counter",
    "loaded state",
    "moved parameters",
    "other terms",
    "clipping",
    "a frozen parameter",
    "a new group",
    "uncaptured steps",
]


@pytest.mark.parametrize("change", CHANGES)
def test_replayed_and_uncaptured_runs_are_equal_to_the_bit(change: str) -> None:
    """Losses, parameters, gradients, state and generator, whatever is done between steps.

    Edits come before the first step too, and to a parameter that has no state.
    """
    assert_alike(both(), 5, lambda run, i: intervene(run, change, i))


@pytest.mark.parametrize("change", ["an edited parameter", "clipping"])
def test_what_cannot_be_pointed_is_replayed_to_the_bit(change: str) -> None:
    """Low precision with its master copy and a part of a larger buffer, in measuring steps only."""
    assert_alike(both(wide=True, quick_steps=0), 4, lambda run, i: intervene(run, change, i))


def test_what_cannot_be_pointed_takes_quick_steps_too() -> None:
    runs = both(wide=True, quick_steps=2)
    assert_alike(runs, 4, lambda run, i: intervene(run, "an edited parameter", i))
    sides = runs[1].step._backend._sides
    pointed = [site.param for site in runs[1].optimizer.sites if site in sides]
    assert [id(p) for p in pointed] == [id(runs[1].model[name]) for name in ("a", "b", "idle", "c")]


@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 0.5, "hessian": "signed"},
        {"limit": "fixed", "maximize": True, "weight_decay": 0.1},
        {"limit": "sgd", "probe_radius": 0.1, "hessian": "rms"},
        {"hessian": "none", "glass": False},
    ],
    ids=str,
)
def test_every_kind_of_step_is_replayed_to_the_bit(options: dict[str, Any]) -> None:
    assert_alike(both(**options), 4, lambda run, i: None)


def test_a_group_that_stands_still_is_probed_at_its_center() -> None:
    """Radius zero beside a group with a positive one, recorded as if it were displaced."""

    def before(run: Run, i: int) -> None:
        if i == 2:
            run.optimizer.state[run.c]["probe_center"].add_(1.0)

    assert_alike(both(quick_steps=0, lr_c=0.0), 4, before)


def test_a_warm_up_from_zero_is_quick_until_there_is_a_radius() -> None:
    """The measuring step that is due stays due, captured or not."""

    def before(run: Run, i: int) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = 0.01 * max(0, i - 1)

    runs = both(lr=0.0, lr_c=0.0)
    assert_alike(runs, 5, before)
    assert runs[1].optimizer.gradient_evaluations == 5 + 2 * 2


def test_parameters_whose_counts_have_parted_keep_numbers_of_their_own() -> None:
    """An uncaptured step without a gradient for one leaves it a step behind; no new capture."""

    def before(run: Run, i: int) -> bool:
        run.missing = ("b",) if i in (1, 2) else ()
        return i not in (1, 2)

    runs = both()
    assert_alike(runs, 6, before)
    assert runs[1].step.captures == 2
    state = runs[1].optimizer.state
    assert [state[p]["step"].item() for p in (runs[1].a, runs[1].b)] == [6, 4]


def test_a_part_of_a_buffer_that_gets_no_gradient_is_probed_and_comes_home() -> None:
    """With a state from before; its depart and its return are in one graph."""

    def before(run: Run, i: int) -> bool:
        if i == 2:
            run.missing = ("part",)
            run.a.data = run.a.data.clone()  # makes the captured run look again
        return i >= 2

    assert_alike(both(wide=True, quick_steps=0), 4, before)


def test_the_gradient_of_a_parameter_that_others_train_adds_up() -> None:
    """As in an uncaptured run: onto what is there, or to a tensor that is not written again."""

    def before(run: Run, i: int) -> None:
        if i == 2:
            run.other.grad = None
        if i == 3:
            run.other.grad = torch.ones(8)

    runs = both()
    assert_alike(runs, 5, before)
    assert runs[1].other.grad is not None
    kept = runs[1].other.grad.clone()
    mine = runs[1].other.grad
    runs[1].other.grad = None
    runs[1].train()
    assert torch.equal(mine, kept)


def test_a_capture_in_mid_training_changes_nothing() -> None:
    """Averages and counters of the steps before it count: nothing is fitted again."""
    runs = both()

    def before(run: Run, i: int) -> bool:
        if i == 3 and run.step is not None:
            run.step = ReplayedStep(run.optimizer, run.closure)
        return i >= 3

    assert_alike(runs, 5, before)
    assert runs[1].step.captures == 2


def test_weights_loaded_after_the_capture_are_where_a_first_step_begins() -> None:
    """Nu and the master copies are those of the first step, not of the capture."""

    def before(run: Run, i: int) -> None:
        if i == 0:
            draws = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for p in run.model.values():
                    p.copy_(torch.randn(p.shape, generator=draws))

    assert_alike(both(wide=True), 2, before)


def test_a_parameter_without_state_is_displaced() -> None:
    """In the two sides and not at the center: seen by the closure, and equal to an uncaptured run.

    It is not trained, so nothing of it is recorded but where it stands.
    """
    runs, seen = both(quick_steps=0), []
    for run in runs:
        run.hook = lambda run=run: seen.append(run.idle.detach().clone())  # type: ignore[misc]
        run.train()
    plain, captured = seen[:3], seen[-3:]
    assert_equal(plain, captured)
    center = runs[1].idle.detach()
    radius = torch.full((8,), 0.005)
    torch.testing.assert_close((captured[0] - center).abs(), radius, rtol=1e-4, atol=0)
    assert torch.equal(captured[2], center)
