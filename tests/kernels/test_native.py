"""One call for many tensors: what it computes, where it cannot be had, and Ctrl-C around it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import aliceopt.kernels.compiled as compiled
import aliceopt.kernels.exchange as exchange
import aliceopt.kernels.native as native
import aliceopt.kernels.together as together
from aliceopt import Alice
from aliceopt.kernels import EagerBackend
from aliceopt.kernels.compiled import CompiledBackend
from aliceopt.kernels.direct import DirectPass, examples
from aliceopt.kernels.native import COUNT, LENGTH, Kernel, kernel_of, pieces
from cpu_cases import TOLERANCE, assert_agree, forget_passes, run
from interrupts import interrupted

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler"
)
OPTIONS = {"hessian": "signed", "weight_decay": 0.1, "lr_min": 1e-3}
CASES = [*((dtype, OPTIONS) for dtype in TOLERANCE), (torch.float32, {"max_grad_norm": 1.0})]


@pytest.fixture(autouse=True)
def passes() -> Iterator[None]:
    """None that another test has put in their place."""
    forget_passes()
    yield
    forget_passes()


@pytest.mark.parametrize(("dtype", "options"), CASES, ids=str)
def test_one_call_for_all_agrees_with_the_oracle(
    dtype: torch.dtype, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any layout, size and precision, in many pieces, by several threads."""
    monkeypatch.setattr(together, "pieces", lambda lengths, most=64: pieces(lengths, 64))
    calls = _counted(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = run(CompiledBackend(strict=True), dtype, **options)
    finally:
        torch.set_num_threads(threads)
    assert_agree(run(EagerBackend(), dtype, **options), found, dtype)
    assert calls


def test_a_pass_is_one_call_whatever_the_number_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quick step swaps and updates; a full one takes aside, hashes, moves thrice and updates."""
    for count in (1, 30):
        params = [nn.Parameter(torch.randn(50 + i)) for i in range(count)]
        optimizer = _alice(params, quick_steps=1)
        for _ in range(2):
            optimizer.step(_closure(params))
        calls = _counted(monkeypatch)
        optimizer.step(_closure(params))
        assert len(calls) == 6
        optimizer.step(_closure(params))
        assert len(calls) == 8


def test_threads_may_change_between_steps() -> None:
    """What was compiled for one thread is called by any number of them, and nothing else."""
    params = [nn.Parameter(torch.randn(3000)) for _ in range(3)]
    optimizer, threads = _alice(params), torch.get_num_threads()
    graphs = torch._dynamo.utils.counters["stats"]
    optimizer.step(_closure(params))
    optimizer.step(_closure(params))
    before = graphs["unique_graphs"]
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            optimizer.step(_closure(params))
    finally:
        torch.set_num_threads(threads)
    assert graphs["unique_graphs"] == before


@pytest.mark.parametrize("missing", ["loop", "_namespace", "_address"])
def test_without_a_kernel_passes_are_called_one_by_one(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever torch hides, the results stay the same."""
    import aliceopt.kernels.direct as direct

    where = direct if missing == "loop" else native
    monkeypatch.setattr(where, missing, lambda *args: {} if missing == "_namespace" else None)
    calls = _counted(monkeypatch)
    found = run(CompiledBackend(strict=True), torch.float32)
    assert_agree(run(EagerBackend(), torch.float32), found, torch.float32)
    assert not [kernel for kernel in calls if len(kernel.plan) > 3]


def test_a_kernel_that_does_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked up is tried out first."""
    import aliceopt.kernels.direct as direct

    def wrong(*args: Any) -> Kernel | None:
        kernel = kernel_of(*args)
        other = {1: 2, 2: 1}
        return kernel and kernel._replace(plan=tuple(other.get(i, i) for i in kernel.plan))

    monkeypatch.setattr(direct, "kernel_of", wrong)
    assert compiled._displace_kernel(torch.float32) is None


def test_arguments_that_are_in_doubt_are_refused() -> None:
    """Two calls, an unknown tensor, an unknown number: nothing is guessed."""
    given = examples([torch.float32] * 3, 5)
    result = torch.zeros((), dtype=torch.int64)
    swap = DirectPass(compiled.swap_, "swap")
    kernel = swap.kernel([torch.bool, torch.float32, torch.float32], None)
    assert kernel is not None
    assert set(kernel.plan) == {0, 1, 2, LENGTH}

    def plan(*arguments: Any, times: int = 1) -> Kernel | None:
        return kernel_of([(_InLibc(), arguments)] * times, given, result)

    found = plan(given[2], given[0], result, 544)
    assert found is not None
    assert found.plan == (2, 0, COUNT, LENGTH)
    assert plan(given[2], times=2) is None
    assert plan(torch.zeros(3)) is None
    assert plan(given[2], 543) is None
    assert plan(given[2], "544") is None


class _InLibc:
    """Stands for a function of a library that is certainly there."""

    __name__, __self__ = "memcpy", type("Module", (), {"__file__": "libc.so.6"})


def test_pieces_are_every_element_once() -> None:
    """In order, none longer than asked for, each beginning with a word of signs."""
    there = pieces((1, 64, 65, 200), 64)
    assert there.owner.tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    assert there.start.tolist() == [0, 0, 0, 64, 0, 64, 128, 192]
    assert there.length.tolist() == [1, 64, 64, 1, 64, 64, 64, 8]


@pytest.mark.parametrize("stream", [False, True])
def test_copies_of_any_alignment(stream: bool) -> None:
    """Past the caches or not: all bytes, and no others."""
    kernel, source = native.copy_kernel(stream=stream), torch.arange(999, dtype=torch.uint8)
    assert kernel is not None
    for first, size in ((0, 999), (1, 500), (16, 130), (3, 64), (7, 0)):
        there = torch.full((999,), 77, dtype=torch.uint8)
        expected = there.clone()
        expected[first : first + size] = source[first : first + size]
        at = [np.asarray([t.data_ptr() + first]) for t in (there, source)]
        native.Rows(kernel, pieces((size,), 128), 0, at, [8, 8]).run()
        assert torch.equal(there, expected)


def test_a_parameter_of_another_size_is_refused() -> None:
    """Before anything is written beyond its end."""
    params = [nn.Parameter(torch.randn(600)) for _ in range(2)]
    optimizer = _alice(params, quick_steps=9)
    optimizer.step(_closure(params))
    params[1].data = torch.randn(300)
    with pytest.raises(RuntimeError, match="another size"):
        optimizer.step(_closure(params))


NATIVE = (
    exchange.noted_all,
    exchange._mark,
    native.Rows.__init__,
    native.Rows.run,
    together.swap_all,
    together.update_all,
    together._rows,
    CompiledBackend._swap,
    CompiledBackend._swap_pack,
    CompiledBackend._update_pack,
    CompiledBackend._be_swapped,
    CompiledBackend._take_back,
)


@pytest.mark.parametrize("loop", [False, True])
def test_a_step_can_be_interrupted_anywhere(loop: bool) -> None:
    """Every parameter has the mu and nu of before, or those of after, and all have the same."""
    params, other = ([nn.Parameter(torch.linspace(i, 2, 40)) for i in range(3)] for _ in range(2))
    optimizer, done = _alice(params, quick_steps=99), _alice(other, quick_steps=99)
    for each, mine in ((optimizer, params), (done, other)):
        each.step(_closure(mine))
        each.step(_closure(mine))  # compiles what quick steps need
    saved, before = [t.clone() for t in _tensors(optimizer)], _pairs(optimizer)
    done.step(_closure(other))
    after = _pairs(done)

    def work() -> None:
        if loop:
            for _ in optimizer.evaluations():
                _closure(params)()
            optimizer.step()
        else:
            optimizer.step(_closure(params))

    interrupted(work, NATIVE, 10**9)  # Python 3.12 counts instructions only the second time
    instruction = 0
    while True:
        instruction += 1
        for tensor, value in zip(_tensors(optimizer), saved, strict=True):
            tensor.copy_(value)
        if not interrupted(work, NATIVE, instruction):
            break
        optimizer.state_dict()  # puts back what a finished loop left away
        now = _pairs(optimizer)
        assert any(all(map(torch.equal, now, known)) for known in (before, after)), instruction
        assert not any(site.swapped for site in optimizer._sites)
    assert instruction > 500


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Kernels as they are run from now on."""
    calls: list[Kernel] = []
    run_ = native.Rows.run

    def counting(rows: native.Rows) -> None:
        calls.append(rows._kernel)
        run_(rows)

    monkeypatch.setattr(native.Rows, "run", counting)
    return calls


def _alice(params: list[nn.Parameter], **options: Any) -> Alice:
    optimizer = Alice(params, lr=0.01, **options)
    optimizer._backends._made[torch.device("cpu")] = CompiledBackend(strict=True)
    return optimizer


def _closure(params: list[nn.Parameter]) -> Callable[[], None]:
    def closure() -> None:
        for p in params:
            p.grad = 2 * p.detach()

    return closure


def _tensors(optimizer: Alice) -> list[Tensor]:
    params = optimizer.param_groups[0]["params"]
    states = [v for p in params for v in optimizer.state[p].values()]
    return [*(p.detach() for p in params), *states]


def _pairs(optimizer: Alice) -> list[Tensor]:
    """Mu and nu of every parameter."""
    params = optimizer.param_groups[0]["params"]
    centers = [optimizer.state[p]["probe_center"] for p in params]
    return [t.detach().clone() for t in (*params, *centers)]
