"""Which backend serves which device, and what happens where it cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aliceopt.kernels.choice as choice
import aliceopt.kernels.native as native
from aliceopt.kernels import Backends, EagerBackend, MultiTensorBackend
from aliceopt.kernels.choice import IMPLEMENTATIONS, WORTH_A_WARNING, make
from aliceopt.site import Site
from cpu_cases import everything, needs_compiler, quadratic
from paper import paper_alice

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(params=["no compiler", "a failing compiler", "no folder"])
def unbuildable(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A machine on which the kernels cannot be made; gives what should be said of it."""
    (tmp_path / "file").touch()
    variables, message = {
        "no compiler": ({"CXX": "no-such-compiler"}, "no-such-compiler"),
        "a failing compiler": ({"CXX": "false", "ALICEOPT_CACHE": str(tmp_path)}, "false"),
        "no folder": ({"ALICEOPT_CACHE": str(tmp_path / "file" / "x")}, "ALICEOPT_CACHE"),
    }[request.param]
    if request.param == "no folder" and not native_works():
        pytest.skip("needs a C++ compiler")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    native.library.cache_clear()
    choice._warn_once.cache_clear()
    yield message
    native.library.cache_clear()
    choice._warn_once.cache_clear()


def native_works() -> bool:
    try:
        native.library()
    except native.BuildError:
        return False
    return True


def run(implementation: str, size: int = 20) -> list[Tensor]:
    params = [nn.Parameter(torch.linspace(-1, 1, size))]
    optimizer = paper_alice(params, lr=0.01, quick_steps=1, implementation=implementation)
    for _ in range(3):
        optimizer.step(quadratic(params))
    return everything(optimizer)


@needs_compiler
@pytest.mark.parametrize("count", [1, WORTH_A_WARNING, 10**9])
def test_a_cpu_is_served_by_the_compiled_kernels(count: int) -> None:
    """However few coordinates; the oracle only if it is asked for."""
    for implementation in ("auto", "compiled"):
        backend = make(implementation, CPU, count)
        assert isinstance(backend, MultiTensorBackend)
        assert backend.name == "compiled"
    assert isinstance(make("eager", CPU, count), EagerBackend)


def test_without_kernels_a_small_model_is_served_silently(unbuildable: str) -> None:
    """By the oracle, with its results; warnings are errors here."""
    assert isinstance(make("auto", CPU, WORTH_A_WARNING - 1), EagerBackend)
    assert all(map(torch.equal, run("auto"), run("eager")))


def test_without_kernels_a_large_model_is_warned_of_once(unbuildable: str) -> None:
    with pytest.warns(UserWarning, match=f"{unbuildable}.*'eager'.*slower") as caught:
        made = [make("auto", CPU, WORTH_A_WARNING) for _ in range(3)]
    assert len(caught) == 1
    assert all(isinstance(backend, EagerBackend) for backend in made)


def test_asked_for_without_being_there_is_warned_of_once(unbuildable: str) -> None:
    """Whatever the size; the results are the same."""
    with pytest.warns(UserWarning, match=f"{unbuildable}.*'eager'.*slower") as caught:
        found = [run("compiled") for _ in range(2)]
    assert len(caught) == 1
    for tensors in found:
        assert all(map(torch.equal, tensors, run("eager")))


def test_the_warning_points_at_the_users_line(unbuildable: str) -> None:
    with pytest.warns(UserWarning, match="slower") as caught:
        run("compiled")
    assert caught[0].filename == __file__


def test_compiled_is_for_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="'compiled' cannot run on cuda:0"):
        make("compiled", CUDA, 10)


def test_triton_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="'triton' cannot run on cpu"):
        make("triton", CPU, 10)


def test_an_unknown_implementation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"implementation.*'auto', 'triton'.*'quick'"):
        paper_alice([nn.Parameter(torch.ones(3))], implementation="quick")
    assert IMPLEMENTATIONS == ("auto", "triton", "compiled", "eager")


def test_a_backend_is_made_once_for_a_device() -> None:
    """And asked for again by every later split, whichever sites it has."""
    backends = Backends("auto")
    sites = [Site.of(nn.Parameter(torch.ones(3)), i, {}) for i in range(3)]
    assert backends.describe() == "auto"
    [(first, there)] = backends.split(sites)
    assert there == sites
    [(second, there)] = backends.split(sites[1:])
    assert first is second
    assert there == sites[1:]
    assert backends.describe() == f"{first.name} on cpu"


def test_a_backend_handed_in_serves_from_the_first_step_on() -> None:
    """`serve` is the door for tests: what came through it stays when parameters are added."""
    params = [nn.Parameter(torch.linspace(-1, 1, 20)), nn.Parameter(torch.ones(3))]
    optimizer = paper_alice(params[:1], quick_steps=1)
    mine = EagerBackend()
    optimizer._backends.serve(mine)
    optimizer.step(quadratic(params[:1]))
    assert optimizer._backends.split(list(optimizer.sites))[0][0] is mine
    optimizer.add_param_group({"params": params[1:]})
    optimizer.step(quadratic(params))
    assert optimizer._backends.split(list(optimizer.sites))[0][0] is mine


def test_repr_says_what_was_picked() -> None:
    for implementation in ("auto", "eager"):
        param = nn.Parameter(torch.ones(3))
        optimizer = paper_alice([param], hessian="none", glass=False, implementation=implementation)
        assert f"# {implementation}" in repr(optimizer)
        param.grad = torch.ones(3)
        optimizer.step()
        picked = make(implementation, CPU, 3).name
        assert f"# {picked} on cpu" in repr(optimizer)


def test_a_triton_that_does_not_work_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to choose, the optimizer goes on eagerly; asked for, Triton is refused."""
    pytest.importorskip("triton")

    def fail(device: torch.device) -> None:
        raise ImportError("libcuda.so.1: cannot open\nand more")

    monkeypatch.setattr(choice, "_launch", fail)
    choice._triton_failure.cache_clear()
    with pytest.warns(UserWarning, match=r"does not work.*libcuda.*'eager'") as caught:
        made = [make("auto", CUDA, 10) for _ in range(2)]
    assert len(caught) == 1
    assert all(type(backend) is EagerBackend for backend in made)
    with pytest.raises(RuntimeError, match=r"'triton' cannot run on cuda:0.*libcuda"):
        make("triton", CUDA, 10)
    choice._triton_failure.cache_clear()
