"""Models with float32 and float64 parameters: neither is ever held in the other's precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels import Backend, EagerBackend, staging
from aliceopt.kernels.chunks import ChunkedBackend
from aliceopt.kernels.compiled import CompiledBackend
from aliceopt.site import Site

SIZES = (
    (10, torch.float32),
    (77, torch.float64),
    (5, torch.float32),
    (3000, torch.float64),
    (2500, torch.float32),
    (31, torch.float64),
)
BACKENDS = [lambda: ChunkedBackend(64), lambda: CompiledBackend(strict=True)]


@pytest.fixture(autouse=True)
def both_ways(monkeypatch: pytest.MonkeyPatch, uncompiled: None) -> None:
    """Tensors of thousands of elements count as large."""
    monkeypatch.setattr(staging, "SMALL", 1000)


class Run:
    """A quadratic whose second half of parameters may go without gradients."""

    def __init__(self, backend: Backend):
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(n, dtype=dtype)) for n, dtype in SIZES]
        self.optimizer = Alice(self.params, lr=0.02, quick_steps=3, implementation="eager")
        self.optimizer._backends._made[torch.device("cpu")] = backend
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

    def everything(self) -> list[Tensor]:
        states = [v for p in self.params for v in self.optimizer.state[p].values()]
        return [t.detach().clone() for t in (*self.params, *states)]


@pytest.mark.parametrize("make", BACKENDS, ids=["chunked", "compiled"])
def test_an_interrupted_closure_leaves_no_trace(make: type[Backend]) -> None:
    """And what follows is the uninterrupted run, to the bit."""
    run, plain = Run(make()), Run(make())
    for _ in range(6):
        run.optimizer.step(run.closure)
        plain.optimizer.step(plain.closure)
        before = run.everything()
        with pytest.raises(KeyError):
            run.optimizer.step(run.failing)
        assert all(map(torch.equal, before, run.everything()))
    assert all(map(torch.equal, run.everything(), plain.everything()))


@pytest.mark.parametrize("make", BACKENDS, ids=["chunked", "compiled"])
def test_a_loop_that_is_left_leaves_no_trace(make: type[Backend]) -> None:
    run = Run(make())
    for _ in range(6):
        run.loop()
        run.optimizer.step()
        before = run.everything()
        for _ in run.optimizer.evaluations():
            run.closure()
            break
        assert all(map(torch.equal, before, run.everything()))


@pytest.mark.parametrize("make", BACKENDS, ids=["chunked", "compiled"])
def test_loops_agree_with_closures_and_with_the_oracle(make: type[Backend]) -> None:
    """A loop's quick step brings every parameter back to its position before the update."""
    run, plain, oracle = Run(make()), Run(make()), Run(EagerBackend())
    for _ in range(6):
        run.loop()
        run.optimizer.step()
        for other in (plain, oracle):
            other.optimizer.step(other.closure)
    assert all(map(torch.equal, run.everything(), plain.everything()))
    _assert_close(run, oracle)


@pytest.mark.parametrize("make", BACKENDS, ids=["chunked", "compiled"])
def test_idle_parameters_stay_as_they_are(make: type[Backend]) -> None:
    """Without a gradient at the center: mu, nu and averages to the bit. The others go on."""
    run, oracle = Run(make()), Run(EagerBackend())
    for idle in (set(), {0, 1, 2, 3}, {1, 4, 5}, set(), {0, 3, 5}):
        before = [[p.detach().clone(), *_state(run, p)] for p in run.params]
        for each in (run, oracle):
            each.idle = idle
            each.optimizer.step(each.closure)
        for i in idle:
            after = [run.params[i].detach(), *_state(run, run.params[i])]
            assert all(map(torch.equal, before[i], after))
    _assert_close(run, oracle)


def test_a_pack_has_one_dtype() -> None:
    """A large tensor alone, small ones with others of their kind, every index once."""
    params = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n, dtype in SIZES]
    sites = [Site.of(p, i, {}) for i, p in enumerate(params)]
    assert sorted(staging.packs(sites)) == [[0, 2], [1, 5], [3], [4]]


def test_a_pack_is_not_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dtype counts its own elements."""
    monkeypatch.setattr(staging, "PACK", 100)
    dtypes = [torch.float32, torch.float64] * 4
    sites = [Site.of(nn.Parameter(torch.zeros(40, dtype=d)), i, {}) for i, d in enumerate(dtypes)]
    assert sorted(staging.packs(sites)) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert list(staging.packs([])) == []


def test_rows_of_two_dtypes_are_refused() -> None:
    """torch.cat would round without a word."""
    stage = staging.Stage()
    with pytest.raises(AssertionError):
        stage.gather("x", [torch.zeros(2), torch.zeros(2, dtype=torch.float64)])


def _state(run: Run, param: Tensor) -> list[Tensor]:
    state = run.optimizer.state.get(param, {})
    return [value.clone() for name, value in state.items()]


def _assert_close(run: Run, oracle: Run) -> None:
    for x, y in zip(run.everything(), oracle.everything(), strict=True):
        rtol = 1e-11 if x.dtype == torch.float64 else 1e-4
        torch.testing.assert_close(x, y, rtol=rtol, atol=rtol / 10)
