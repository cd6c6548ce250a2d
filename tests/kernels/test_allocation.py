"""Out of memory at any point of a step: nothing has changed, and the next step works."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt.site import COUNTERS
from cpu_cases import everything, needs_compiler
from paper import paper_alice

IMPLEMENTATIONS = [
    "eager",
    pytest.param("compiled", marks=needs_compiler),
    pytest.param("triton", marks=pytest.mark.filterwarnings("ignore::RuntimeWarning")),
]
ALLOCATING = [(torch, "empty"), (torch, "zeros"), (torch, "zeros_like"), (torch, "empty_like")]
ALLOCATING += [(Tensor, "clone"), (Tensor, "new_zeros")]


@contextmanager
def failing(call: int, error: type[Exception]) -> Iterator[list[str]]:
    """Have that allocation by the package fail; gives a list of those that were asked for."""
    asked: list[str] = []

    def wrapped(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def allocate(*args: Any, **kwargs: Any) -> Any:
            module = sys._getframe(1).f_globals.get("__name__", "")
            if module.startswith("aliceopt."):
                asked.append(f"{name} in {module}, line {sys._getframe(1).f_lineno}")
                if len(asked) == call:
                    raise error("no memory")
            return original(*args, **kwargs)

        return allocate

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ALLOCATING:
            patch.setattr(owner, name, wrapped(getattr(owner, name), name))
        yield asked


class Run:
    """Steps in which everything is allocated that may be.

    All kinds of parameters, a clip, a missing side, gradients of other layouts; ``gaps`` are in the
    memory of one parameter, which the oracle serves.
    """

    def __init__(self, implementation: str, steps: int, *, gaps: bool = False) -> None:
        torch.manual_seed(0)
        tensors = [torch.randn(6, 7), torch.randn(5).half()]
        if implementation != "triton":
            tensors += [torch.randn(6, 7).t(), torch.randn(9, dtype=torch.float64), torch.randn(())]
        if gaps:
            tensors.append(torch.randn(20)[::2])
        self.params = [nn.Parameter(t) for t in tensors]
        self.optimizer = paper_alice(
            self.params,
            lr=0.01,
            quick_steps=1,
            hessian="signed",
            max_grad_norm=0.5,
            implementation=implementation,
        )
        self.shared = [torch.empty(p.shape, dtype=p.dtype) for p in self.params]
        self.evaluations = 0
        for _ in range(steps):
            self.step()

    def closure(self) -> None:
        self.evaluations += 1
        for p, shared in zip(self.params, self.shared, strict=True):
            p.grad = shared.copy_(2 * p.detach())  # of its own layout, and not to be kept
        if self.evaluations == 1:
            self.params[0].grad = None

    def step(self) -> None:
        self.evaluations = 0
        self.optimizer.step(self.closure)

    def found(self) -> list[list[Tensor]]:
        """Each parameter with its state, but for what is counted when all are done."""
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        return [
            [p.detach().clone(), *(v.clone() for k, v in state.items() if k not in COUNTERS)]
            for p, state in zip(self.params, states, strict=True)
        ]


def same(there: list[Tensor], here: list[Tensor]) -> bool:
    return len(there) == len(here) and all(map(torch.equal, there, here))


def failures(run: Callable[[], Run]) -> Iterator[tuple[Run, str]]:
    """Runs whose step has failed, each at one allocation more, until it is made."""
    for call in itertools.count(1):
        failed = run()
        with failing(call, (MemoryError, torch.OutOfMemoryError)[call % 2]) as asked:
            try:
                failed.step()
            except (MemoryError, torch.OutOfMemoryError):
                pass
            else:
                assert len(asked) < call
                return
        yield failed, asked[-1]


STEPS = pytest.mark.parametrize("steps", [0, 1, 2], ids=["first", "quick", "measuring"])


@STEPS
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
def test_a_step_that_runs_out_of_memory_changes_nothing(implementation: str, steps: int) -> None:
    """Whichever allocation fails; and the step after it is that of an undisturbed run."""
    before = everything(Run(implementation, steps).optimizer)
    expected = everything(Run(implementation, steps + 1).optimizer)
    for run, where in failures(lambda: Run(implementation, steps)):
        assert same(everything(run.optimizer), before), where
        run.step()
        assert same(everything(run.optimizer), expected), where


@STEPS
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:2])
def test_one_parameter_after_the_other_runs_out_of_memory(implementation: str, steps: int) -> None:
    """Where the oracle updates: those that had their turn are updated, each with all its state."""
    before, after = (Run(implementation, n, gaps=True).found() for n in (steps, steps + 1))
    for run, where in failures(lambda: Run(implementation, steps, gaps=True)):
        for there, old, new in zip(run.found(), before, after, strict=True):
            size = 1 if steps == 0 else None  # the first state comes with the count
            assert same(there[:size], old[:size]) or same(there[:size], new[:size]), where
        untouched = all(same(*pair) for pair in zip(run.found(), before, strict=True))
        run.step()
        if untouched:
            assert all(same(*pair) for pair in zip(run.found(), after, strict=True)), where


@needs_compiler
def test_memory_may_be_short_for_many_steps() -> None:
    """One failure after the other in one and the same optimizer, in each of its first steps."""
    run = Run("compiled", 0)
    for steps in range(4):
        before = everything(run.optimizer)
        for _, where in failures(lambda: run):
            assert same(everything(run.optimizer), before), where
        assert same(everything(run.optimizer), everything(Run("compiled", steps + 1).optimizer))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:2])
def test_new_terms_that_find_no_memory_are_made_later(implementation: str) -> None:
    """An option switched on in mid-training: the step that can be taken is the undisturbed one."""

    def switched(steps: int) -> Run:
        run = Run(implementation, 0)
        run.optimizer.param_groups[0]["glass"] = False
        for _ in range(2):
            run.step()
        run.optimizer.param_groups[0]["glass"] = True
        for _ in range(steps):
            run.step()
        return run

    before, after = switched(0), everything(switched(1).optimizer)
    tried = 0
    for run, where in failures(lambda: switched(0)):
        tried += "aliceopt.site" in where
        if "aliceopt.site" in where:
            now = [p.detach() for p in run.params]
            assert same(now, [p.detach() for p in before.params]), where
            run.step()
            assert same(everything(run.optimizer), after), where
    assert tried >= len(before.params)
