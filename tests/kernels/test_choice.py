"""Which backend serves which device, and what happens where it cannot run."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from torch import nn

import aliceopt.kernels.choice as choice
from aliceopt import Alice
from aliceopt.kernels import Backends, EagerBackend
from aliceopt.kernels.choice import WORTH_COMPILING
from aliceopt.site import Site

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler"
)
CUDA = torch.device("cuda", 0)


def sites(count: int) -> list[Site]:
    return [Site.of(nn.Parameter(torch.empty(count)), 0, {})]


def chosen(implementation: str, count: int) -> str:
    [(backend, _)] = Backends(implementation).split(sites(count))
    return f"{backend.name} {type(backend).__name__}"


@needs_compiler
def test_auto_compiles_for_many_coordinates_only() -> None:
    assert chosen("auto", WORTH_COMPILING) == "compiled CompiledBackend"
    assert chosen("auto", WORTH_COMPILING - 1) == "eager ChunkedBackend"
    assert chosen("eager", WORTH_COMPILING) == "eager ChunkedBackend"
    assert chosen("compiled", 10) == "compiled CompiledBackend"


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for is refused, naming what is missing; what was not is done another way."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert chosen("auto", WORTH_COMPILING) == "eager ChunkedBackend"
    with pytest.raises(RuntimeError, match=r"'compiled'.*no-such-compiler"):
        chosen("compiled", 10)


def test_compiled_is_for_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="'compiled' cannot run on cuda:0"):
        Backends("compiled")._make(CUDA, 10)


def test_triton_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="'triton' cannot run on cpu"):
        chosen("triton", 10)


@needs_compiler
def test_parameters_added_later_may_make_it_worth_while() -> None:
    backends = Backends("auto")
    few, many = sites(10), sites(WORTH_COMPILING)
    assert backends.describe() == "auto"
    for there, name in ((few, "eager"), (few + many, "compiled"), (few, "compiled")):
        [(backend, _)] = backends.split(there)
        assert backend.name == name
        assert backends.describe() == f"{name} on cpu"


def test_repr_says_what_was_picked() -> None:
    param = nn.Parameter(torch.ones(3))
    optimizer = Alice([param], hessian="none", glass=False)
    assert "# auto" in repr(optimizer)
    param.grad = torch.ones(3)
    optimizer.step()
    assert "# eager on cpu" in repr(optimizer)


def test_a_triton_that_does_not_work_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to choose, the optimizer goes on eagerly; asked for, Triton is refused."""
    pytest.importorskip("triton")

    def fail(device: torch.device) -> None:
        raise ImportError("libcuda.so.1: cannot open\nand more")

    monkeypatch.setattr(choice, "_launch", fail)
    choice._triton_failure.cache_clear()
    with pytest.warns(UserWarning, match=r"does not work.*libcuda.*'eager'") as caught:
        made = [Backends("auto")._make(CUDA, 10) for _ in range(2)]
    assert len(caught) == 1
    assert all(type(backend) is EagerBackend for backend in made)
    with pytest.raises(RuntimeError, match=r"'triton' cannot run on cuda:0.*libcuda"):
        Backends("triton")._make(CUDA, 10)
    choice._triton_failure.cache_clear()
