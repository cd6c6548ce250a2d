"""The compiled passes against the oracle: signs and moves to the bit, the rest to rounding."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
import torch
from torch import nn

import aliceopt.kernels.compiled as compiled
import aliceopt.kernels.staging as staging
from aliceopt import Alice
from aliceopt.kernels import EagerBackend
from aliceopt.kernels.compiled import CompilationError, CompiledBackend
from aliceopt.kernels.direct import _lengths, _plan
from cpu_cases import TOLERANCE, assert_agree, forget_passes, run

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler"
)
# Between them these have every limit, every Hessian, glass or none, and every other branch.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"limit": "fixed", "hessian": "rms", "weight_decay": 0.1, "lr_min": 1e-3},
    {"limit": "sgd", "hessian": "signed", "glass": False, "maximize": True},
    {"hessian": "none", "eps": 0.0},
    {"hessian": "none", "glass": False, "limit": "fixed"},
    {"hessian": "signed", "max_grad_norm": 1.0, "lookahead": 2.0},
]


@pytest.fixture(autouse=True)
def small_tensors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of thousands of elements count as large, so that both ways are taken."""
    monkeypatch.setattr(staging, "SMALL", 1000)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_passes_agree_with_the_oracle(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """In value to rounding; in what is left alone, and in the first probe points, exactly."""
    expected = run(EagerBackend(), dtype, **options)
    assert_agree(expected, run(CompiledBackend(strict=True), dtype, **options), dtype)


@pytest.mark.usefixtures("uncompiled")
def test_a_loop_and_a_plain_backward_agree_with_the_oracle() -> None:
    """Parameters are back at their positions before such a step begins."""

    def after(backend: EagerBackend) -> list[torch.Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(n)) for n in (3000, 20, 7)]
        optimizer = Alice(params, lr=1e-2, quick_steps=1)
        optimizer._backends._made[torch.device("cpu")] = backend
        for _ in range(4):
            for _ in optimizer.evaluations():
                sum((p**2).sum() for p in params).backward()
            optimizer.step()
        optimizer.zero_grad()
        sum((p**2).sum() for p in params).backward()
        optimizer.step()
        return [p.detach() for p in params]

    pairs = zip(after(EagerBackend()), after(CompiledBackend(strict=True)), strict=True)
    for x, y in pairs:
        torch.testing.assert_close(x, y)


@needs_compiler
def test_compiled_passes_agree_and_each_structure_is_compiled_once() -> None:
    """Many learning rates and sizes and a second optimizer: four graphs beside the hash's."""
    forget_passes()
    random_state = torch.get_rng_state()
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    expected = run(EagerBackend(), torch.float32)
    assert_agree(expected, run(CompiledBackend(strict=True), torch.float32), torch.float32)
    for size in (1500, 5000):
        params = [nn.Parameter(torch.ones(n)) for n in (size, 1, 7, size + 13, 300)]
        optimizer = Alice(params, lr=1e-3, quick_steps=1)
        optimizer._backends._made[torch.device("cpu")] = CompiledBackend(strict=True)

        def closure(params: list[nn.Parameter] = params) -> None:
            for p in params:
                p.grad = torch.full_like(p, 0.1)

        for step in range(4):
            optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1)
            optimizer.step(closure)
    assert (
        counters["unique_graphs"] - before == 5
    )  # hashing, displacing, swapping, full and quick update
    assert torch.equal(torch.get_rng_state(), random_state)  # compiling leaves it alone


@needs_compiler
def test_hashed_words_are_the_oracles() -> None:
    """The compiled hash gives the eager one's bits, also far beyond 32-bit word indices."""
    from aliceopt.kernels.words import Span, hash_span_
    from aliceopt.signs import sign_key

    backend, key = CompiledBackend(strict=True), sign_key(7, 2**40 + 3, 5)
    for first in (0, 12345, 2**31 - 50, 2**33 + 1):
        expected, found = (torch.empty(2000, dtype=torch.int32) for _ in range(2))
        hash_span_(expected, key, first)
        backend._hash_spans_([Span(found, key, first)])
        assert torch.equal(expected, found)


def test_a_failed_compilation_is_an_error_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Left to choose, the optimizer warns once and goes on as the oracle does."""

    def fail(*args: Any) -> None:
        raise RuntimeError("no such compiler\nand more")

    monkeypatch.setattr(compiled, "_displace_pass", lambda dtype: fail)
    monkeypatch.setattr(compiled, "_update_pass", lambda structure: fail)
    monkeypatch.setattr(compiled, "_hash_pass", lambda: fail)
    with pytest.raises(CompilationError, match="no such compiler"):
        run(CompiledBackend(strict=True), torch.float32)
    expected = run(EagerBackend(), torch.float32)
    with pytest.warns(UserWarning, match=r"no such compiler.*eager") as caught:
        found = run(CompiledBackend(), torch.float32)
    assert len(caught) == 1
    assert_agree(expected, found, torch.float32)
    assert found.optimizer._backends.describe() == "eager on cpu"


def test_a_failure_in_the_update_takes_up_where_moves_left_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parameters that are away when compilation fails are updated all the same."""

    def fail(*args: Any) -> None:
        raise RuntimeError("late")

    def copy_(shift: torch.Tensor, there: torch.Tensor, center: torch.Tensor, words: Any) -> None:
        compiled.displace_(shift, there, center, words)

    monkeypatch.setattr(compiled, "_displace_pass", lambda dtype: copy_)
    monkeypatch.setattr(compiled, "_update_pass", lambda structure: fail)
    with pytest.warns(UserWarning, match="late"):
        found = run(CompiledBackend(), torch.float32)
    expected = run(EagerBackend(), torch.float32)
    assert_agree(expected, found, torch.float32)


def test_equal_lengths_in_the_first_call_are_not_taken_for_a_rule() -> None:
    """Were numbers and columns once as long as one another, only torch may decide what fits."""
    numbers, column, words = torch.zeros(19), torch.zeros(500), torch.zeros(16, dtype=torch.int32)
    shift = torch.zeros(())
    assert _lengths([numbers, column, column.clone(), words]) == {19: 0, 500: 2, 16: 3}
    assert _lengths([shift, column, words]) == {500: 1, 16: 2}
    assert _lengths([numbers, numbers.clone()]) == {}
    assert _lengths([numbers, column, torch.zeros(19, dtype=torch.int32)]) == {}
    assert _lengths([numbers, column, torch.zeros(501)]) == {}
    assert _plan([500, column], [numbers, column]) == [(1, True), (1, False)]
    assert _plan([7, column], [numbers, column]) is None
    assert _plan([column.clone()], [numbers, column]) is None
