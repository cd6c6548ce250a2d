"""Where other people's loops drive Alice: she is right, or says what is wrong, once."""

# ruff: noqa: PT031  (what is warned of once is seen over several statements)
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from contract_cases import backward, batch, loss_of, make, network, run_loop, silence, values
from paper import paper_alice

OPTIONS: dict[str, Any] = {"lr": 0.01, "quick_steps": 1, "lookahead": 1.5, "step_fraction": 1.0}


# ---- wrappers -----------------------------------------------------------------------------------


def test_a_wrapper_that_copies_the_class_drives_the_optimizer_itself() -> None:
    """Lightning's and Fabric's have the same class and a copy of the attributes."""
    (model, real), (other, plain) = make(OPTIONS), make(OPTIONS)

    class Wrapped(Alice):
        def __init__(self, optimizer: Alice) -> None:
            self.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k != "step"}
            self._optimizer = optimizer

        def step(self, closure: Any = None) -> Any:
            return self._optimizer.step(closure)

    wrapped = Wrapped(real)
    for i in range(5):
        for driven, net in ((wrapped, model), (plain, other)):
            run_loop(net, driven, 0)
            driven.step()
        if i == 2:
            real.load_state_dict(copy.deepcopy(real.state_dict()))
    assert all(map(torch.equal, values(model), values(other)))
    assert wrapped.gradient_evaluations == plain.gradient_evaluations == 11
    states = [optimizer.state_dict()["state"][0].values() for optimizer in (wrapped, plain)]
    assert all(map(torch.equal, *states))
    assert wrapped.telemetry() == plain.telemetry()


# ---- buffers outside the model ------------------------------------------------------------------


def test_buffers_outside_the_model_are_watched_at_the_first_full_step() -> None:
    """A GAN's other network is warned of, once; with both in a list it is guarded."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
    critic = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4))

    def closure() -> Tensor:
        loss = critic(generator(batch(0)[0])).sum() + loss_of(generator, 0)
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


# ---- clipping -----------------------------------------------------------------------------------


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
    model, optimizer = make(OPTIONS | {"quick_steps": 0})

    def evaluate() -> None:
        backward(model, 0)
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
    model, optimizer = make(OPTIONS | {"quick_steps": 0})
    with silence():
        for i in range(80):
            run_loop(model, optimizer, i)
            clip(model, float("inf"))
            optimizer.step()


# ---- a parameter replaced in its group ----------------------------------------------------------


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


# ---- slips inside the loop ----------------------------------------------------------------------


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
    model, optimizer = make(OPTIONS)
    optimizer.step(lambda: backward(model, 0))
    loss, before = loss_of(model, 0), values(model)
    with pytest.raises(RuntimeError, match="inplace operation") as caught:
        optimizer.step(lambda: loss.backward())
    assert "run the forward pass in the closure" in caught.value.__notes__[0]
    assert all(map(torch.equal, values(model), before))


# ---- parameters that are not what they were -----------------------------------------------------


def test_a_lazy_module_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"parameter 0 of group 0 is lazy .* run the model once"):
        paper_alice(nn.LazyLinear(3).parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("implementation", ["eager", "auto"])
def test_a_model_cast_in_mid_training_trains_on(dtype: torch.dtype, implementation: str) -> None:
    model, optimizer = make(OPTIONS | {"implementation": implementation})
    for _ in range(3):
        first = optimizer.step(lambda: backward(model, 0))
    model.to(dtype)
    for _ in range(30):
        last = optimizer.step(lambda: backward(model, 0))
    assert last < first
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())
