"""Ctrl-C at any point of a move or an update: mu and nu are each in their own place afterwards."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aliceopt.kernels.compiled as compiled
import aliceopt.kernels.exchange as exchange
import aliceopt.kernels.staging as staging
from aliceopt import Alice
from aliceopt.kernels.compiled import CompiledBackend
from aliceopt.kernels.exchange import Witness, Witnesses
from aliceopt.site import Site
from interrupts import interrupted

SIZES = ((2000, torch.float32), (30, torch.float64), (20, torch.float32), (7, torch.float64))
EXCHANGING = (exchange.exchange_, exchange.noted, exchange.completed, exchange._mark)
MOVING = (
    *EXCHANGING,
    Witness.__init__,
    Witnesses.of,
    CompiledBackend._swap,
    CompiledBackend._swap_pack,
    CompiledBackend._call,
    CompiledBackend._take_back,
    CompiledBackend._not_swapped,
    CompiledBackend.rest,
    staging.Stage.gather,
)
UPDATING = (
    *EXCHANGING,
    CompiledBackend._update_pack,
    CompiledBackend._hand_out,
    CompiledBackend._be_swapped,
    CompiledBackend._swap_pack,
    CompiledBackend._call,
    staging.Stage.scatter.__func__,  # type: ignore[attr-defined]
)


@pytest.fixture(autouse=True)
def both_ways(monkeypatch: pytest.MonkeyPatch, uncompiled: None) -> None:
    """The first parameter counts as large, and passes are Python's, of which none is entered."""
    monkeypatch.setattr(staging, "SMALL", 1000)


class Run:
    """A quadratic, after its one full step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(n, dtype=dtype)) for n, dtype in SIZES]
        self.optimizer = Alice(self.params, lr=0.01, quick_steps=9)
        self.optimizer._backends._made[torch.device("cpu")] = CompiledBackend(strict=True)
        self.optimizer.step(self.closure)

    def closure(self) -> None:
        for p in self.params:
            (p**2).sum().backward()

    def loop(self) -> None:
        """The evaluations of a step."""
        for _ in self.optimizer.evaluations():
            self.closure()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Mu and nu of each parameter."""
        states = [self.optimizer.state[p] for p in self.params]
        return [
            (p.detach().clone(), state["probe_center"].clone())
            for p, state in zip(self.params, states, strict=True)
        ]

    def tensors(self) -> list[Tensor]:
        states = [v for p in self.params for v in self.optimizer.state[p].values()]
        return [*(p.detach() for p in self.params), *states]

    def everything(self) -> list[Tensor]:
        return [t.clone() for t in self.tensors()]


def instructions(work: Callable[[int], bool], *, at_least: int) -> Iterator[int]:
    """Every instruction, until ``work`` is no longer interrupted."""
    count = 1
    while work(count):
        yield count
        count += 1
    assert count > at_least


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("call", range(4))
def test_an_interrupted_copy_is_undone(
    call: int, afterwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each of the copies of a swap: two for each dtype."""
    run = Run()
    before, copy, calls = run.everything(), torch._foreach_copy_, 0

    def copy_(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls != call + 1:
            copy(*args)
            return
        if afterwards:
            copy(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_copy_", copy_)
    with pytest.raises(KeyboardInterrupt):
        run.optimizer.step(run.closure)
    assert calls > call
    assert all(map(torch.equal, before, run.everything()))


@pytest.mark.parametrize("afterwards", [False, True])
def test_an_interrupt_around_a_pass_is_told_by_what_memory_holds(
    afterwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass either ran or did not, and nothing was noted yet."""
    run = Run()
    before, swap_ = run.everything(), compiled.swap_
    fails = [True]

    def swap(*args: Tensor) -> None:
        if afterwards or not fails:
            swap_(*args)
        if fails:
            raise fails.pop() and KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_swap_pass", lambda dtype: swap)
        with pytest.raises(KeyboardInterrupt):
            run.optimizer.step(run.closure)
    assert all(map(torch.equal, before, run.everything()))


@pytest.mark.parametrize("loop", [False, True])
def test_a_move_can_be_interrupted_anywhere(loop: bool) -> None:
    """There, or back after a loop: before each single instruction. Nothing is changed by it."""
    run = Run()
    before = run.everything()

    def work(instruction: int) -> bool:
        def closure() -> None:
            sys.settrace(None)  # the way back is dealing with an exception already
            raise KeyError

        step = run.loop if loop else lambda: run.optimizer.step(closure)
        with contextlib.suppress(KeyError):
            return interrupted(step, MOVING, instruction)
        return False

    for instruction in instructions(work, at_least=300):
        run.optimizer.state_dict()  # puts back what a finished loop left away
        assert all(map(torch.equal, before, run.everything())), instruction
        assert not any(site.swapped for site in run.optimizer._sites)


@pytest.mark.parametrize("loop", [False, True])
def test_an_update_can_be_interrupted_anywhere(loop: bool) -> None:
    """Every parameter has the mu and nu of before, or those of after."""
    run, done = Run(), Run()
    done.optimizer.step(done.closure)
    before, after, saved = run.pairs(), done.pairs(), run.everything()

    def work(instruction: int) -> bool:
        for tensor, value in zip(run.tensors(), saved, strict=True):
            tensor.copy_(value)
        if loop:
            run.loop()
            return interrupted(run.optimizer.step, UPDATING, instruction)
        for _ in run.optimizer._rounds(None, settle=False):
            run.closure()
        return interrupted(run.optimizer._apply, UPDATING, instruction)

    for instruction in instructions(work, at_least=300):
        for there, *known in zip(run.pairs(), before, after, strict=True):
            assert any(all(map(torch.equal, there, pair)) for pair in known), instruction
        assert not any(site.swapped for site in run.optimizer._sites)


def test_a_move_after_an_interrupted_return_finds_the_position() -> None:
    """Two interrupts, the second while the first is dealt with: the next step sets it right."""
    run, other = Run(), Run()
    backend = run.optimizer._backends._made[torch.device("cpu")]
    run.optimizer._new_probe(None)._go("center")
    assert all(site.swapped for site in run.optimizer._sites)
    assert isinstance(backend, CompiledBackend)
    run.optimizer.step(run.closure)
    other.optimizer.step(other.closure)
    assert all(map(torch.equal, run.everything(), other.everything()))


@pytest.mark.parametrize(
    ("place", "values"),
    [(0, (1.0, 2.0)), (150_000, (0.0, -0.0)), (70_000, (float("nan"), 1.0)), (199_999, (1.0, 3.0))],
)
def test_a_witness_is_found_wherever_bits_differ(place: int, values: tuple[float, float]) -> None:
    for dtype in (torch.float32, torch.float64):
        first, second = torch.zeros(2, 200_000, dtype=dtype).unbind()
        first[place], second[place] = values
        witness = Witness(first.numpy(), second.numpy())
        assert witness.found
        assert not witness.changed()
        compiled.swap_(torch.tensor(True), first, second)
        assert witness.changed()


def test_equal_tensors_have_no_witness_and_need_none() -> None:
    """Not even where all is NaN."""
    nans = torch.full((5,), float("nan"))
    witness = Witness(nans.numpy(), nans.clone().numpy())
    assert not witness.found
    assert not witness.changed()


@pytest.mark.parametrize("ran", [False, True])
def test_an_update_of_equal_mu_and_nu_needs_no_witness(ran: bool) -> None:
    """The two are as good as not swapped, before the pass and after it."""
    param = nn.Parameter(torch.ones(5))
    site = Site.of(param, 0, {})
    site.swapped = True
    pair = param.detach(), torch.ones(5)

    def work() -> None:
        if ran:
            pair[0].fill_(2.0)
            pair[1].fill_(3.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exchange.noted(site, Witnesses().of(site, *pair), work, swapped=False)
    assert not site.swapped


def test_witnesses_follow_memory_that_moves() -> None:
    """Other tensors for the same site: what is looked at is theirs."""
    site, witnesses = Site.of(nn.Parameter(torch.ones(5)), 0, {}), Witnesses()
    for _ in range(2):
        param, center = torch.zeros(5), torch.ones(5)
        for _ in range(2):
            witness = witnesses.of(site, param, center)
            assert not witness.changed()
            compiled.swap_(torch.tensor(True), param, center)
            assert witness.changed()
