"""Gradients that a step does not find, or would drop: they are used, or it is said, once."""

# ruff: noqa: PT031  (what is warned of once is seen over several statements)
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from contract_cases import backward, loss_of, make, network, run_loop, silence, values
from paper import paper_alice

OPTIONS: dict[str, Any] = {"lr": 0.01, "quick_steps": 1, "lookahead": 1.5, "step_fraction": 1.0}


# ---- a closure or a loop that leaves no gradient ------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_taken_before_a_closure_that_takes_none_are_used(steps: int) -> None:
    """``loss.backward(); step(lambda: loss)`` is a plain step, as with Adam."""
    with pytest.warns(UserWarning, match="no curvature has been measured"):
        (model, given), (other, plain) = make(OPTIONS), make(OPTIONS)
        for i in range(steps):
            given.zero_grad()
            loss = backward(model, i)
            assert given.step(lambda loss=loss: loss) is loss
            plain.zero_grad()
            backward(other, i)
            plain.step()
    assert all(map(torch.equal, values(model), values(other)))
    assert given.gradient_evaluations == steps


def test_a_closure_without_gradients_is_warned_of_once_and_does_not_count() -> None:
    model, optimizer = make(OPTIONS)
    before = values(model)
    with pytest.warns(UserWarning, match="no parameter got a gradient") as caught:
        for _ in range(3):
            optimizer.step(lambda: loss_of(model, 0))
    assert len(caught) == 1
    assert all(map(torch.equal, values(model), before))
    assert optimizer.gradient_evaluations == 0
    assert not optimizer.state


@pytest.mark.parametrize("looping", [False, True], ids=["closure", "loop"])
@pytest.mark.parametrize("rounds", [(0,), (1,), (0, 1)], ids=str)
def test_gradients_of_the_sides_alone_make_no_step(rounds: tuple[int, ...], looping: bool) -> None:
    """Nothing would be updated, and the step would count as one that measured."""
    model, optimizer = make(OPTIONS)
    before, calls = values(model), itertools.count()

    def closure() -> None:
        loss = loss_of(model, 0)
        if next(calls) in rounds:
            loss.backward()

    with pytest.warns(UserWarning, match="no parameter got a gradient at the center"):
        if looping:
            for _ in optimizer.evaluations():
                closure()
            optimizer.step()
        else:
            optimizer.step(closure)
    assert all(map(torch.equal, values(model), before))
    assert optimizer.gradient_evaluations == 0
    optimizer.step(lambda: backward(model, 0))
    assert optimizer.gradient_evaluations == 3


@pytest.mark.parametrize("quick", [False, True], ids=["measuring", "quick"])
def test_a_closure_without_gradients_is_evaluated_at_the_center(quick: bool) -> None:
    """Also where a measuring step is due: that is its value's place."""
    model, optimizer = make(OPTIONS)
    for i in range(1 if quick else 2):
        optimizer.step(lambda i=i: backward(model, i))
    center = [optimizer.state[p]["probe_center"].clone() for p in model.parameters()]
    optimizer.zero_grad()
    backward(model, 0)
    seen: list[list[Tensor]] = []
    optimizer.step(lambda: seen.append(values(model)))
    assert all(map(torch.equal, seen[-1], center))


def test_a_missing_backward_in_the_loop_is_warned_of() -> None:
    model, optimizer = make(OPTIONS)
    before = values(model)
    with pytest.warns(UserWarning, match=r"call backward\(\) inside"):
        for _ in optimizer.evaluations():
            loss_of(model, 0)
        optimizer.step()
    assert all(map(torch.equal, values(model), before))
    assert optimizer.gradient_evaluations == 0


# ---- gradients that would be dropped ------------------------------------------------------------


def drive_closure(optimizer: Alice, model: nn.Module) -> None:
    optimizer.step(lambda: backward(model, 0))


def drive_loop(optimizer: Alice, model: nn.Module) -> None:
    run_loop(model, optimizer, 0)
    optimizer.step()


@pytest.mark.parametrize("drive", [drive_closure, drive_loop])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_gradients_accumulated_before_the_evaluations_are_said_to_be_dropped(
    drive: Callable[[Alice, nn.Module], None], steps: int
) -> None:
    """Whether or not steps were taken before; said once."""
    model, optimizer = make(OPTIONS)
    with silence():
        for _ in range(steps):
            drive(optimizer, model)
    with pytest.warns(UserWarning, match="have been dropped: accumulate micro-batches") as caught:
        for _ in range(2):
            optimizer.zero_grad()
            backward(model, 1)
            drive(optimizer, model)
    assert len(caught) == 1


@pytest.mark.parametrize("drive", [drive_closure, drive_loop])
@pytest.mark.parametrize("zero", ["never", "to none", "in place", "by the model, in place"])
def test_gradients_left_over_from_a_step_are_not_said_to_be_dropped(
    drive: Callable[[Alice, nn.Module], None], zero: str
) -> None:
    model = network()
    backward(model, 0)  # from before the optimizer's time
    optimizer = paper_alice(model.parameters(), **OPTIONS)
    with silence():
        for _ in range(20):
            drive(optimizer, model)
            if zero == "by the model, in place":
                model.zero_grad(set_to_none=False)
            elif zero != "never":
                optimizer.zero_grad(set_to_none=zero == "to none")


def test_a_second_loop_without_a_step_between_is_said_to_drop_the_first() -> None:
    """That is what accumulating by whole loops comes to."""
    model, optimizer = make(OPTIONS)
    with pytest.warns(UserWarning, match="of a finished loop .* have been dropped") as caught:
        for i in range(3):
            run_loop(model, optimizer, i)
        optimizer.step()
    assert len(caught) == 1


def test_after_a_loop_a_closure_without_gradient_is_called_once() -> None:
    """Lightning's wrapped optimizers pass one in any case, with hooks in it."""
    results, calls = [], []
    for closure in (None, lambda: calls.append("hook") or "loss"):
        model, optimizer = make(OPTIONS)
        with silence():
            for i in range(3):
                run_loop(model, optimizer, i)
                value = optimizer.step(closure)
        results.append([*model.parameters(), optimizer.gradient_evaluations])
    assert calls == ["hook"] * 3
    assert value == "loss"
    assert all(torch.equal(a, b) for a, b in zip(*(r[:-1] for r in results), strict=True))
    assert results[0][-1] == results[1][-1] > 0


def test_after_a_loop_a_closure_with_gradient_is_evaluated() -> None:
    """And the loop was in vain, which is said."""
    (model, optimizer), (alone, other) = make(OPTIONS), make(OPTIONS)
    run_loop(model, optimizer, 0)
    with pytest.warns(UserWarning, match="of a finished loop .* have been dropped"):
        optimizer.step(lambda: backward(model, 1))
    other.step(lambda: backward(alone, 1))
    assert all(map(torch.equal, values(model), values(alone)))


def test_a_loop_given_up_on_purpose_is_not_spoken_of() -> None:
    """Whoever clears the gradients knows."""
    model, optimizer = make(OPTIONS)
    with silence():
        for _ in range(2):
            run_loop(model, optimizer, 0)
            optimizer.zero_grad()
