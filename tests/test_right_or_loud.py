"""Where other people's loops drive Alice: she is right, or says what is wrong, once."""

# ruff: noqa: PT031  (what is warned of once is seen over several statements)
from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from paper import paper_alice

OPTIONS: dict[str, Any] = {"lr": 0.01, "quick_steps": 1, "lookahead": 1.5, "step_fraction": 1.0}


def network(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(5) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(3, 5), middle, nn.Tanh(), nn.Linear(5, 1))


def batch(i: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(i)
    return torch.randn(8, 3, generator=g), torch.randn(8, 1, generator=g)


def loss_of(model: nn.Module, i: int = 0) -> Tensor:
    x, y = batch(i)
    return (model(x) - y).square().mean()


def backward(model: nn.Module, i: int = 0) -> Tensor:
    loss = loss_of(model, i)
    loss.backward()
    return loss


def values(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in model.state_dict().values()]


def assert_same(a: list[Tensor], b: list[Tensor]) -> None:
    assert all(map(torch.equal, a, b))


@contextmanager
def silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# ---- A: a closure that leaves no gradient -------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_taken_before_a_closure_that_takes_none_are_used(steps: int) -> None:
    """``loss.backward(); step(lambda: loss)`` is a plain step, as with Adam."""
    model, other = network(), network()
    with pytest.warns(UserWarning, match="no curvature has been measured"):
        given, plain = (
            paper_alice(model.parameters(), **OPTIONS),
            paper_alice(other.parameters(), **OPTIONS),
        )
        for i in range(steps):
            given.zero_grad()
            loss = backward(model, i)
            assert given.step(lambda loss=loss: loss) is loss
            plain.zero_grad()
            backward(other, i)
            plain.step()
    assert_same(values(model), values(other))
    assert given.gradient_evaluations == steps


def test_a_closure_without_gradients_is_warned_of_once_and_does_not_count() -> None:
    model = network()
    optimizer, before = paper_alice(model.parameters(), **OPTIONS), values(model)
    with pytest.warns(UserWarning, match="no parameter got a gradient") as caught:
        for _ in range(3):
            optimizer.step(lambda: loss_of(model))
    assert len(caught) == 1
    assert_same(values(model), before)
    assert optimizer.gradient_evaluations == 0
    assert not optimizer.state


@pytest.mark.parametrize("looping", [False, True], ids=["closure", "loop"])
@pytest.mark.parametrize("rounds", [(0,), (1,), (0, 1)], ids=str)
def test_gradients_of_the_sides_alone_make_no_step(rounds: tuple[int, ...], looping: bool) -> None:
    """Nothing would be updated, and the step would count as one that measured."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS)
    before, calls = values(model), itertools.count()

    def closure() -> None:
        loss = loss_of(model)
        if next(calls) in rounds:
            loss.backward()

    with pytest.warns(UserWarning, match="no parameter got a gradient at the center"):
        if looping:
            for _ in optimizer.evaluations():
                closure()
            optimizer.step()
        else:
            optimizer.step(closure)
    assert_same(values(model), before)
    assert optimizer.gradient_evaluations == 0
    optimizer.step(lambda: backward(model))
    assert optimizer.gradient_evaluations == 3


@pytest.mark.parametrize("quick", [False, True], ids=["measuring", "quick"])
def test_a_closure_without_gradients_is_evaluated_at_the_center(quick: bool) -> None:
    """Also where a measuring step is due: that is its value's place."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS | {"quick_steps": 1})
    for i in range(1 if quick else 2):
        optimizer.step(lambda i=i: backward(model, i))
    center = [optimizer.state[p]["probe_center"].clone() for p in model.parameters()]
    optimizer.zero_grad()
    backward(model)
    seen: list[list[Tensor]] = []
    optimizer.step(lambda: seen.append(values(model)))
    assert_same(seen[-1], center)


# ---- B: gradients that would be dropped ---------------------------------------------------------


def drive_closure(optimizer: Alice, model: nn.Module) -> None:
    optimizer.step(lambda: backward(model))


def drive_loop(optimizer: Alice, model: nn.Module) -> None:
    for _ in optimizer.evaluations():
        backward(model)
    optimizer.step()


@pytest.mark.parametrize("drive", [drive_closure, drive_loop])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_gradients_accumulated_before_the_evaluations_are_said_to_be_dropped(
    drive: Callable[[Alice, nn.Module], None], steps: int
) -> None:
    """Whether or not steps were taken before; said once."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS)
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
    backward(model)  # from before the optimizer's time
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
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS)
    with pytest.warns(UserWarning, match="of a finished loop .* have been dropped") as caught:
        for i in range(3):
            for _ in optimizer.evaluations():
                backward(model, i)
        optimizer.step()
    assert len(caught) == 1


def test_after_a_loop_a_closure_without_gradient_is_called_once() -> None:
    """Lightning's wrapped optimizers pass one in any case, with hooks in it."""
    results, calls = [], []
    for closure in (None, lambda: calls.append("hook") or "loss"):
        model = network()
        optimizer = paper_alice(model.parameters(), **OPTIONS)
        with silence():
            for i in range(3):
                for _ in optimizer.evaluations():
                    backward(model, i)
                value = optimizer.step(closure)
        results.append([*model.parameters(), optimizer.gradient_evaluations])
    assert calls == ["hook"] * 3
    assert value == "loss"
    assert all(torch.equal(a, b) for a, b in zip(*(r[:-1] for r in results), strict=True))
    assert results[0][-1] == results[1][-1] > 0


def test_after_a_loop_a_closure_with_gradient_is_evaluated() -> None:
    """And the loop was in vain, which is said."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS)
    for _ in optimizer.evaluations():
        backward(model)
    with pytest.warns(UserWarning, match="of a finished loop .* have been dropped"):
        optimizer.step(lambda: backward(model, 1))
    alone = network()
    other = paper_alice(alone.parameters(), **OPTIONS)
    other.step(lambda: backward(alone, 1))
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_loop_given_up_on_purpose_is_not_spoken_of() -> None:
    """Whoever clears the gradients knows."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS)
    with silence():
        for _ in range(2):
            for _ in optimizer.evaluations():
                backward(model)
            optimizer.zero_grad()


# ---- C: wrappers --------------------------------------------------------------------------------


def test_a_wrapper_that_copies_the_class_drives_the_optimizer_itself() -> None:
    """Lightning's and Fabric's have the same class and a copy of the attributes."""
    model, other = network(), network()
    real, plain = (
        paper_alice(model.parameters(), **OPTIONS),
        paper_alice(other.parameters(), **OPTIONS),
    )

    class Wrapped(Alice):
        def __init__(self, optimizer: Alice) -> None:
            self.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k != "step"}
            self._optimizer = optimizer

        def step(self, closure: Any = None) -> Any:
            return self._optimizer.step(closure)

    wrapped = Wrapped(real)
    for i in range(5):
        drive_loop(wrapped, model)
        drive_loop(plain, other)
        if i == 2:
            real.load_state_dict(copy.deepcopy(real.state_dict()))
    assert_same(values(model), values(other))
    assert wrapped.gradient_evaluations == plain.gradient_evaluations == 11
    assert_same(
        [*wrapped.state_dict()["state"][0].values()], [*plain.state_dict()["state"][0].values()]
    )
    assert wrapped.telemetry() == plain.telemetry()


# ---- E: buffers outside the model ---------------------------------------------------------------


def test_buffers_outside_the_model_are_watched_at_the_first_full_step() -> None:
    """A GAN's other network is warned of, once; with both in a list it is guarded."""
    generator, critic = network(norm=True), nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4))

    def closure() -> Tensor:
        loss = critic(generator(batch(0)[0])).sum() + loss_of(generator)
        loss.backward()
        return loss

    optimizer = paper_alice(generator.parameters(), model=generator, **OPTIONS)
    with pytest.warns(UserWarning, match="BatchNorm1d outside the model given") as caught:
        for _ in range(4):
            optimizer.step(closure)
    assert len(caught) == 1
    ticks = int(critic[1].num_batches_tracked)
    both = paper_alice(generator.parameters(), model=nn.ModuleList([generator, critic]), **OPTIONS)
    with silence():
        for _ in range(4):
            both.step(closure)
    assert critic[1].num_batches_tracked == ticks + 4


# ---- F, G: clipping -----------------------------------------------------------------------------


def train(optimizer: Alice, door: str, evaluate: Callable[[], object]) -> None:
    """Three steps, by a closure or by a loop."""
    for _ in range(3):
        if door == "closure":
            optimizer.step(evaluate)
        else:
            for _ in optimizer.evaluations():
                evaluate()
            optimizer.step()


def clip(model: nn.Module, limit: float) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), limit)


@pytest.mark.parametrize("door", ["closure", "loop"])
@pytest.mark.parametrize("edit", ["norm", "value", "infinity", "half"])
def test_clipping_each_evaluation_by_itself_is_warned_of_once(door: str, edit: str) -> None:
    """By norm or by value; not a clip that changes nothing, nor a factor that all have."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS | {"quick_steps": 0})

    def evaluate() -> None:
        backward(model)
        if edit == "value":
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        elif edit == "half":
            for param in model.parameters():
                assert param.grad is not None
                param.grad *= 0.5
        else:
            clip(model, 1e-3 if edit == "norm" else float("inf"))

    if edit in ("infinity", "half"):
        with silence():
            train(optimizer, door, evaluate)
    else:
        with pytest.warns(UserWarning, match=r"clipped .* by itself .*max_grad_norm") as caught:
            train(optimizer, door, evaluate)
        assert len(caught) == 1


def test_clipping_at_infinity_after_the_loop_is_no_edit() -> None:
    """It is how frameworks log a norm."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS | {"quick_steps": 0})
    with silence():
        for i in range(80):
            for _ in optimizer.evaluations():
                backward(model, i)
            clip(model, float("inf"))
            optimizer.step()


# ---- H: a parameter replaced in its group -------------------------------------------------------


def test_a_parameter_replaced_in_its_group_is_trained() -> None:
    """As by Adam: the new one moves, from a state of its own."""
    param = nn.Parameter(torch.ones(3))
    optimizer = paper_alice([param], **OPTIONS)
    optimizer.step(lambda: param.square().sum().backward())
    new = nn.Parameter(torch.full((3,), 2.0))
    optimizer.param_groups[0]["params"][0] = new
    for _ in range(3):
        optimizer.step(lambda: new.square().sum().backward())
    assert (new < 2).all()
    assert optimizer.state[new]["step"] == 3


# ---- K: slips inside the loop -------------------------------------------------------------------


@pytest.mark.parametrize("door", ["closure", "loop"])
def test_another_batch_in_each_round_is_warned_of(door: str) -> None:
    """With the model at hand; a fresh copy of the same batch is not another batch."""
    for same in (True, False):
        model, draws = network(), iter(range(100))
        optimizer = paper_alice(model.parameters(), model=model, **OPTIONS)

        def evaluate(model: nn.Module = model, same: bool = same, draws: Any = draws) -> None:
            backward(model, 0 if same else next(draws))

        if same:
            with silence():
                train(optimizer, door, evaluate)
        else:
            with pytest.warns(UserWarning, match="saw different batches"):
                train(optimizer, door, evaluate)


def test_a_forward_pass_before_the_closure_is_named_in_torchs_error() -> None:
    """The parameters have moved since; autograd notices, and does not know by whom."""
    model = network()
    optimizer = paper_alice(model.parameters(), **OPTIONS)
    drive_closure(optimizer, model)
    loss, before = loss_of(model), values(model)
    with pytest.raises(RuntimeError, match="inplace operation") as caught:
        optimizer.step(lambda: loss.backward())
    assert "run the forward pass in the closure" in caught.value.__notes__[0]
    assert_same(values(model), before)


def test_a_missing_backward_in_the_loop_is_warned_of() -> None:
    model = network()
    optimizer, before = paper_alice(model.parameters(), **OPTIONS), values(model)
    with pytest.warns(UserWarning, match=r"call backward\(\) inside"):
        for _ in optimizer.evaluations():
            loss_of(model)
        optimizer.step()
    assert_same(values(model), before)
    assert optimizer.gradient_evaluations == 0


# ---- L: parameters that are not what they were --------------------------------------------------


def test_a_lazy_module_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"parameter 0 of group 0 is lazy .* run the model once"):
        paper_alice(nn.LazyLinear(3).parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("implementation", ["eager", "auto"])
def test_a_model_cast_in_mid_training_trains_on(dtype: torch.dtype, implementation: str) -> None:
    model = network()
    optimizer = paper_alice(model.parameters(), implementation=implementation, **OPTIONS)

    def closure() -> Tensor:
        x, y = (t.to(next(model.parameters()).dtype) for t in batch(0))
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        first = optimizer.step(closure)
    model.to(dtype)
    for _ in range(30):
        last = optimizer.step(closure)
    assert last < first
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())
