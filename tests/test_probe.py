"""Where the parameters stand while gradients are taken, and that nobody notices afterwards."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aliceopt import Alice
from aliceopt.signs import block_signs, sign_key
from contract_cases import (
    FEW_OPTIONS,
    LR,
    batch,
    closure_for,
    loss_of,
    make,
    memory,
    network,
    run_loop,
    same,
    topography,
    train,
    values,
)
from paper import paper_alice

few_cases = pytest.mark.parametrize("options", FEW_OPTIONS, ids=range(len(FEW_OPTIONS)))


def centers(model: nn.Module, optimizer: Alice) -> list[Tensor]:
    """Copies of nu."""
    return [optimizer.state[p]["probe_center"].clone() for p in model.parameters()]


def test_the_closure_sees_plus_minus_center_in_this_order():
    """Nu + lambda t, nu - lambda t, nu, with t the hash of (seed, step, parameter)."""
    model, optimizer = make(
        {"seed": 3, "quick_steps": 1, "probe_radius": 0.125}, dtype=torch.double
    )
    train(model, optimizer, 0, 2)
    nu, seen = centers(model, optimizer), []

    def closure() -> None:
        seen.append(values(model))
        closure_for(model, 2)()

    optimizer.step(closure)
    signs = [block_signs(sign_key(3, 2, i), p.shape, dtype=torch.double) for i, p in enumerate(nu)]
    assert len(seen) == 3
    for side, places in zip((1.0, -1.0, 0.0), seen, strict=True):
        wanted = [c + 0.125 * side * t for c, t in zip(nu, signs, strict=True)]
        assert same(places, wanted)


def test_a_quick_step_is_evaluated_once_at_the_center():
    """The parameters stand at nu, which is not mu."""
    model, optimizer = make({})
    train(model, optimizer, 0, 1)
    nu, mu, seen = centers(model, optimizer), values(model), []

    def closure() -> None:
        seen.append(values(model))
        closure_for(model, 1)()

    optimizer.step(closure)
    assert same(seen, [nu])
    assert not same(nu, mu)


def test_step_returns_the_loss_at_the_center_and_leaves_its_gradient():
    """Not that of a probe: the loss at nu, and g0 in p.grad."""
    model, optimizer = make({"quick_steps": 0})
    train(model, optimizer, 0, 2)
    twin = network()
    with torch.no_grad():
        for p, c in zip(twin.parameters(), centers(model, optimizer), strict=True):
            p.copy_(c)
    expected = loss_of(twin, 2)
    expected.backward()
    loss = optimizer.step(closure_for(model, 2))
    assert torch.equal(loss, expected.detach())
    assert same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_parameters_hold_mu_between_the_loop_and_the_step():
    """Logging, validation and checkpoints may sit there."""
    model, optimizer = make({})
    for index in range(4):
        mu = values(model)
        run_loop(model, optimizer, index)
        assert same(values(model), mu)
        optimizer.step()
        assert not same(values(model), mu)


def test_the_rest_point_is_mu_as_the_update_rule_has_it():
    """Phi of the step from the old mu, where nu takes omega of it."""
    model, optimizer = make({"step_fraction": 0.25, "lookahead": 1.0})
    for index in range(5):
        mu = values(model)
        train(model, optimizer, index, index + 1)
        for old, p in zip(mu, model.parameters(), strict=True):
            step = optimizer.state[p]["probe_center"] - old
            torch.testing.assert_close(p.detach() - old, 0.25 * step, rtol=1e-3, atol=1e-7)


# ---- exceptions -------------------------------------------------------------------------------


class Failing:
    """A closure that raises on its n-th call, after drawing random numbers and a backward."""

    def __init__(self, model: nn.Module, fail_at: int | None, error: type[BaseException]):
        self.model, self.fail_at, self.error, self.calls = model, fail_at, error, 0

    def __call__(self) -> None:
        self.calls += 1
        torch.rand(3)
        x, y = batch(0)
        nn.functional.mse_loss(self.model(x), y).backward()
        if self.calls == self.fail_at:
            raise self.error("stop here")


def noisy() -> nn.Sequential:
    """Buffers, random numbers and kinks."""
    body = network()
    return nn.Sequential(body[0], nn.BatchNorm1d(5), body[1], nn.Dropout(0.3), body[2])


def everything(model: nn.Module, optimizer: Alice) -> tuple:
    """Parameters, buffers, random state, optimizer state and counters."""
    buffers = [b.clone() for b in model.buffers()]
    return values(model), buffers, torch.get_rng_state(), memory(optimizer)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(("steps", "fail_at"), [(0, 1), (0, 2), (0, 3), (1, 1), (4, 1), (4, 3)])
def test_a_closure_that_raises_leaves_no_trace(error, steps, fail_at):
    """Bit for bit as before, gradients None; the next step is as if nothing had happened."""
    torch.manual_seed(5)
    model = noisy()
    optimizer = paper_alice(model.parameters(), lr=LR, model=model)
    for _ in range(steps):
        optimizer.step(Failing(model, None, error))
    before = everything(model, optimizer)
    with pytest.raises(error, match="stop here"):
        optimizer.step(Failing(model, fail_at, error))
    assert same(everything(model, optimizer), before)
    assert all(p.grad is None for p in model.parameters())

    optimizer.step(Failing(model, None, error))
    torch.manual_seed(5)
    twin = noisy()
    second = paper_alice(twin.parameters(), lr=LR, model=twin)
    for _ in range(steps + 1):
        second.step(Failing(twin, None, error))
    assert same(everything(model, optimizer), everything(twin, second))


# ---- loops left early -------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("way", ["break", "exception", "close", "delete"])
def test_a_loop_left_early_takes_the_step_back(way, rounds):
    """By break, by exception or by closing the generator: no trace, gradients None."""
    model = noisy()
    optimizer = paper_alice(model.parameters(), lr=LR, model=model)
    optimizer.step(Failing(model, None, ValueError))
    optimizer.param_groups[0]["cadence"] = 0  # the next step measures again
    before = everything(model, optimizer)
    leave_loop(way, rounds, model, optimizer)
    assert same(everything(model, optimizer), before)
    assert all(p.grad is None for p in model.parameters())
    assert optimizer.step() is None
    assert same(everything(model, optimizer), before)


def leave_loop(way: str, rounds: int, model: nn.Module, optimizer: Alice) -> None:
    """Run that many rounds of a loop, then leave in one of four ways."""
    backward = Failing(model, None, ValueError)
    if way == "break":
        for i in optimizer.evaluations():
            backward()
            if i + 1 == rounds:
                break
    elif way == "exception":
        backward = Failing(model, rounds, ValueError)
        with pytest.raises(ValueError, match="stop here"):  # noqa: PT012, the loop is the claim
            for _ in optimizer.evaluations():
                backward()
    else:
        loop = optimizer.evaluations()
        for _ in range(rounds):
            next(loop)
            backward()
        if way == "close":
            loop.close()
        del loop
        gc.collect()


PUT_RIGHT = {
    "step": lambda model, optimizer: optimizer.step(),
    "state_dict": lambda model, optimizer: optimizer.state_dict(),
    "evaluations": lambda model, optimizer: next(optimizer.evaluations()),
}


@pytest.mark.parametrize("way", PUT_RIGHT)
def test_a_loop_kept_in_a_variable_is_put_right_by_the_next_call(way):
    """While the abandoned generator is alive, step, state_dict and a new loop undo it."""
    model, optimizer = make({})
    train(model, optimizer, 0, 4)
    before = values(model)
    kept = optimizer.evaluations()
    for _ in kept:
        loss_of(model, 4).backward()
        break
    assert not same(values(model), before)
    PUT_RIGHT[way](model, optimizer)
    assert same(values(model), before)
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="given up"):
        next(kept)
    train(model, optimizer, 4, 5)
    twin, second = make({})
    train(twin, second, 0, 5)
    assert same(values(model), values(twin))


@few_cases
def test_step_inside_the_loop_is_an_error_that_helps(options):
    """The most likely slip: the message says where step() belongs; nothing moved or counted."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 4)
    before = values(model), memory(optimizer)
    with pytest.raises(RuntimeError, match=r"call optimizer\.step\(\) after the loop"):  # noqa: PT012
        for _ in optimizer.evaluations():
            loss_of(model, 4).backward()
            optimizer.step()
    assert same((values(model), memory(optimizer)), before)
    train(model, optimizer, 4, 5)
    twin, second = make(options)
    train(twin, second, 0, 5)
    assert same(values(model), values(twin))


def test_an_unused_generator_changes_nothing():
    """evaluations() does nothing before its first round."""
    model, optimizer = make({})
    before = values(model)
    optimizer.evaluations()
    assert same(values(model), before)


# ---- what users do around a step --------------------------------------------------------------


@few_cases
def test_accumulated_micro_batches_equal_the_full_batch(options):
    """Three micro-batches inside every round, as one batch of three times the size."""
    whole, first = make(options, dtype=torch.double)
    parts, second = make(options, dtype=torch.double)
    for index in range(5):
        train(whole, first, index, index + 1)
        x, y = batch(index, torch.double)
        for _ in second.evaluations():
            for xs, ys in zip(x.chunk(3), y.chunk(3), strict=True):
                (nn.functional.mse_loss(parts(xs), ys) / 3).backward()
        second.step()
    for p, q in zip(values(whole), values(parts), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_parameters_edited_between_steps_are_where_the_next_step_starts():
    """Loading weights re-reads mu; nu, from before the edit, is stale for one step."""
    model, optimizer = make({"step_fraction": 0.5, "lookahead": 1.0})
    train(model, optimizer, 0, 3)
    nu = centers(model, optimizer)
    model.load_state_dict(network(seed=9).state_dict())
    loaded, seen = values(model), []

    def closure() -> None:
        seen.append(values(model))
        closure_for(model, 3)()

    optimizer.step(closure)
    assert same(seen[-1], nu)
    for start, p in zip(loaded, model.parameters(), strict=True):
        center = optimizer.state[p]["probe_center"]
        torch.testing.assert_close(p.detach() - start, 0.5 * (center - start), rtol=1e-3, atol=1e-7)


def test_gradients_written_into_the_same_memory_each_time_are_kept_apart():
    """A closure may hand over its own buffer; overwriting it must not erase g+ and g-."""
    p = nn.Parameter(torch.ones(4, dtype=torch.double))
    buffer = torch.zeros(4, dtype=torch.double)
    optimizer = paper_alice([p], lr=LR)

    def closure() -> None:
        buffer.copy_(3.0 * p.detach())
        p.grad = buffer

    optimizer.step(closure)
    torch.testing.assert_close(topography(optimizer, p, "hess"), torch.full_like(buffer, 3.0))


class Checkpointed(nn.Module):
    """The same network with its activations recomputed in the backward pass."""

    def __init__(self, body: nn.Sequential):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


def dropout_net() -> nn.Sequential:
    body = network()
    return nn.Sequential(body[0], nn.Tanh(), nn.Dropout(0.3), body[2])


def run_six(model: nn.Module, optimizer: Alice) -> list[Tensor]:
    torch.manual_seed(11)
    train(model, optimizer, 0, 6)
    return values(model)


def test_activation_checkpointing_gives_the_same_trajectory():
    """Recomputed forwards draw the same dropout masks and change no number."""
    plain, other = dropout_net(), Checkpointed(dropout_net())
    first = paper_alice(plain.parameters(), lr=LR, model=plain)
    second = paper_alice(other.parameters(), lr=LR, model=other)
    assert same(run_six(plain, first), run_six(other, second))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_gives_the_same_trajectory(backend):
    """The compiled graph sees moved parameters and restored buffers without recompiling wrongly."""
    torch._dynamo.reset()
    plain, inner = noisy(), noisy()
    plain[3].p = inner[3].p = 0.0
    other = torch.compile(inner, backend=backend)
    first = paper_alice(plain.parameters(), lr=LR, model=plain)
    second = paper_alice(other.parameters(), lr=LR, model=other)
    for p, q in zip(run_six(plain, first), run_six(other, second), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain[1].running_mean, inner[1].running_mean)
    assert int(inner[1].num_batches_tracked) == 6
