"""Models with parameters of several dtypes: none is ever held in less than its precision."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from cpu_cases import needs_compiler
from paper import paper_alice

SIZES = (
    (10, torch.float32),
    (77, torch.float64),
    (5, torch.bfloat16),
    (3000, torch.float64),
    (2500, torch.float32),
    (31, torch.float64),
    (300, torch.float16),
)
both = pytest.mark.parametrize(
    "implementation", ["eager", pytest.param("compiled", marks=needs_compiler)]
)
bits = pytest.mark.usefixtures("exact_roots")


class Run:
    """A quadratic, some of whose parameters may go without gradients."""

    def __init__(self, implementation: str) -> None:
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(n).to(dtype)) for n, dtype in SIZES]
        self.optimizer = paper_alice(
            self.params, lr=0.02, quick_steps=3, implementation=implementation
        )
        self.idle: set[int] = set()

    def closure(self) -> None:
        for i, p in enumerate(self.params):
            if i not in self.idle:
                ((p - 0.1) ** 2).sum().backward()

    def failing(self) -> None:
        self.closure()
        raise KeyError("closure")

    def loop(self) -> None:
        for _ in self.optimizer.evaluations():
            self.closure()

    def found(self) -> list[list[Tensor]]:
        """Each parameter with its state."""
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        pairs = zip(self.params, states, strict=True)
        return [[p.detach().clone(), *(v.clone() for v in s.values())] for p, s in pairs]


def same(there: list[list[Tensor]], here: list[list[Tensor]]) -> bool:
    pairs = zip(there, here, strict=True)
    return all(len(x) == len(y) and all(map(torch.equal, x, y)) for x, y in pairs)


@both
def test_an_interrupted_closure_leaves_no_trace(implementation: str) -> None:
    """And what follows is the uninterrupted run, to the bit."""
    run, plain = Run(implementation), Run(implementation)
    for _ in range(6):
        run.optimizer.step(run.closure)
        plain.optimizer.step(plain.closure)
        before = run.found()
        with pytest.raises(KeyError):
            run.optimizer.step(run.failing)
        assert same(before, run.found())
    assert same(run.found(), plain.found())


@both
def test_a_loop_that_is_left_leaves_no_trace(implementation: str) -> None:
    run = Run(implementation)
    for _ in range(6):
        run.loop()
        run.optimizer.step()
        before = run.found()
        for _ in run.optimizer.evaluations():
            run.closure()
            break
        assert same(before, run.found())


@bits
@both
def test_loops_agree_with_closures_and_with_the_oracle(implementation: str) -> None:
    """A loop's step brings every parameter back to its position before the update."""
    run, plain, oracle = Run(implementation), Run(implementation), Run("eager")
    for _ in range(6):
        run.loop()
        run.optimizer.step()
        for other in (plain, oracle):
            other.optimizer.step(other.closure)
        assert same(run.found(), plain.found())
        assert same(run.found(), oracle.found())


@bits
@both
def test_idle_parameters_stay_as_they_are(implementation: str) -> None:
    """Without a gradient at the center: mu, nu and averages to the bit. The others go on."""
    run, oracle = Run(implementation), Run("eager")
    for idle in (set(), {0, 1, 2, 3}, {1, 4, 5}, set(), {0, 3, 5, 6}, {2}):
        before = run.found()
        for each in (run, oracle):
            each.idle = idle
            each.optimizer.step(each.closure)
        after = run.found()
        for i in range(len(SIZES)):
            assert same(before[i : i + 1], after[i : i + 1]) == (i in idle)
        assert same(after, oracle.found())


@both
def test_no_precision_is_lost(implementation: str) -> None:
    """In float64 a step far below what float32 resolves at 1 still shows, in every parameter."""
    params = [nn.Parameter(torch.ones(n, dtype=dtype)) for n, dtype in SIZES]
    optimizer = paper_alice(
        params, lr=1e-11, limit="fixed", quick_steps=1, implementation=implementation
    )

    def closure() -> None:
        for p in params:
            p.grad = torch.ones_like(p)

    found = []
    for _ in range(3):
        optimizer.step(closure)
        found.append([p.detach().clone() for p in params])
    for old, new in pairwise(found):
        for before, after in zip(old, new, strict=True):
            assert torch.equal(before, after) == (after.dtype != torch.float64)
