"""A run that can be interrupted in the same step again and again, and what that step does."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.kernels.backend import MultiTensorBackend
from aliceopt.kernels.eager import EagerBackend
from aliceopt.kernels.plan import HOME
from aliceopt.site import COUNTERS
from interrupts import interrupted
from paper import paper_alice

__all__ = ["Case", "Run", "same"]

KINDS = [(torch.float32, 40), (torch.bfloat16, 12), (torch.float64, 30)]
GROUP_COUNTS = ("cadence", "measuring_count", "quick_count")


class Run:
    """A quadratic after some steps; measuring and quick ones by turns, a measuring one first."""

    def __init__(self, implementation: str, steps: int, *, gaps: bool = True) -> None:
        torch.manual_seed(0)
        kinds = KINDS[:1] if implementation == "triton" else KINDS
        self.params = [nn.Parameter(torch.randn(n).to(dtype)) for dtype, n in kinds]
        if gaps and implementation != "triton":
            self.params.append(nn.Parameter(torch.randn(10)[::2]))  # for the oracle, by its gaps
        self.optimizer = paper_alice(
            self.params, lr=0.01, quick_steps=1, implementation=implementation
        )
        self.fail: type[BaseException] | None = None
        self.evaluations = 0
        for _ in range(steps):
            self.step()
        self.evaluations = 0

    def closure(self) -> None:
        self.evaluations += 1
        if self.fail is not None:
            raise self.fail
        for p in self.params:
            p.grad = 2 * p.detach()

    def step(self) -> None:
        self.optimizer.step(self.closure)

    def loop(self) -> None:
        for _ in self.optimizer.evaluations():
            self.closure()
        self.optimizer.step()

    @property
    def served(self) -> Any:
        """What serves the CPU."""
        self.optimizer._bind()
        return self.optimizer._backends.split(list(self.optimizer.sites))[0][0]

    @property
    def backend(self) -> MultiTensorBackend:
        assert isinstance(self.served, MultiTensorBackend)
        return self.served

    def tensors(self, *, counted: bool) -> list[list[Tensor]]:
        """Each parameter with its state, with or without what is counted."""
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        return [
            [p.data, *(v for k, v in state.items() if counted or k not in COUNTERS)]
            for p, state in zip(self.params, states, strict=True)
        ]

    def found(self, *, counted: bool = False) -> list[list[Tensor]]:
        return [[t.clone() for t in each] for each in self.tensors(counted=counted)]

    def assert_at_home(self, where: Any) -> None:
        """Nobody is away, or believed to be."""
        backend = self.served
        if isinstance(backend, EagerBackend):
            assert not backend.aside, where
            return
        assert not backend.eager.aside, where
        if backend._plan is not None:
            assert (backend._plan.modes == HOME).all(), where
            assert not backend._plan._away.any(), where

    def twin(self) -> Run:
        """Another optimizer at the same point."""
        other = Run(self.optimizer.implementation, 0, gaps=self.params[-1].stride() == (2,))
        for p, q in zip(other.params, self.params, strict=True):
            p.data.copy_(q.data)
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return other


def same(there: list[list[Tensor]], here: list[list[Tensor]]) -> bool:
    return [len(x) for x in there] == [len(x) for x in here] and all(
        torch.equal(x, y)
        for a, b in zip(there, here, strict=True)
        for x, y in zip(a, b, strict=True)
    )


class Case:
    """A run that is interrupted in the same step again and again, and what that step does."""

    def __init__(self, implementation: str, steps: int, *, gaps: bool = True) -> None:
        self.implementation, self.first = implementation, steps == 0
        self.run = Run(implementation, steps, gaps=gaps)
        self.before, self.saved = self.run.found(), self.run.found(counted=True)
        self.counts = {name: self.run.optimizer.param_groups[0][name] for name in GROUP_COUNTS}
        self.run.step()
        self.evaluations = self.run.evaluations
        self.after, self.counted = self.run.found(), self.run.found(counted=True)
        self.restore()

    def restore(self) -> None:
        """The run as before its step, made anew where it has not had any."""
        if self.first:
            self.run = Run(self.implementation, 0)
        for there, known in zip(self.run.tensors(counted=True), self.saved, strict=True):
            for tensor, value in zip(there, known, strict=True):
                tensor.copy_(value)
        self.run.optimizer.param_groups[0].update(self.counts)
        self.run.evaluations = 0
        self.run.fail = None

    def places(self, work: Any, codes: Any, event: str, armed: Any = lambda: True) -> list[int]:
        """What to interrupt it at: every instruction or line, between any two evaluations."""
        seen: list[tuple[Any, ...]] = []

        def note(frame: Any) -> None:
            at = frame.f_lasti if event == "opcode" else frame.f_lineno
            seen.append((frame.f_code, at, self.run.evaluations))

        for _ in range(2):  # Python 3.12 counts instructions only the second time
            seen.clear()
            with contextlib.suppress(KeyError):
                interrupted(work or self.run.step, codes, 0, event=event, armed=armed, note=note)
            self.restore()
        turns: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(seen, 1):
            turns.setdefault(key, []).append(i)
        # Not every turn of a loop: the first and, where it does not take too long, the last.
        ends = slice(1) if self.implementation == "triton" else slice(None)
        return sorted({i for at in turns.values() for i in (at[0], at[-1])[ends]})

    def check(self, place: Any) -> bool:
        """Each parameter is as before or, once all gradients were there, as after: whether any."""
        self.run.assert_at_home(place)
        ahead = False
        for there, old, new in zip(self.run.found(), self.before, self.after, strict=True):
            if self.first:  # the first state is the optimizer's only when it is counted
                there, old, new = there[:1], old[:1], new[:1]
            if not same([there], [old]):
                assert self.run.evaluations == self.evaluations, place
                assert same([there], [new]), place
                ahead = True
        return ahead

    def assert_goes_on(self, ahead: bool, place: Any) -> None:
        """One more ordinary step is that of an uninterrupted run from here."""
        run, expected = self.run, self.counted
        if ahead and not self.first:
            twin = run.twin()
            twin.step()
            expected = twin.found(counted=True)
        run.step()
        if ahead and self.first:
            assert all(p.isfinite().all() for p in run.params), place
        else:
            assert same(run.found(counted=True), expected), place
