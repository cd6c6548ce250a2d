"""The oracle, slice by slice: the same as in one piece, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import aliceopt.kernels.eager as eager
from aliceopt.kernels.eager import in_slices
from cpu_cases import (
    DTYPES,
    NUMBERS,
    TERMS,
    assert_close,
    assert_equal,
    everything,
    quadratic,
    run,
)
from paper import paper_alice


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: Any) -> Iterator[int]:
    """How many threads there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch, threads: int) -> Any:
    """A run in slices of 4096 elements, and one in one piece."""

    def both(dtype: torch.dtype, **options: Any) -> list[Any]:
        runs = []
        for size in (1 << 30, 4096):
            monkeypatch.setattr(eager, "SLICE", size)
            runs.append(run("eager", dtype, **options))
        return runs

    return both


@pytest.mark.parametrize("options", TERMS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_slices_are_the_whole(sliced: Any, options: dict[str, Any]) -> None:
    """Whatever the options: same probe points, same results, same coordinates left alone."""
    assert_equal(*sliced(torch.float32, **options))


@pytest.mark.usefixtures("exact_roots")
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("hessian", ["abs", "signed"])
def test_in_every_precision(sliced: Any, dtype: torch.dtype, hessian: str) -> None:
    """Also where probes are rounded and master weights kept."""
    assert_equal(*sliced(dtype, hessian=hessian))


@pytest.mark.usefixtures("exact_roots")
@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("options", NUMBERS, ids=str)
def test_with_any_numbers(sliced: Any, options: dict[str, Any]) -> None:
    assert_equal(*sliced(torch.float32, **options))


def test_a_clip_that_binds_is_the_same(sliced: Any) -> None:
    """The norm is taken of whole tensors."""
    assert_close(*sliced(torch.float64, max_grad_norm=0.5), 1e-12)


def test_what_is_cut_into_slices(threads: int) -> None:
    """Large dense tensors, in memory order, every element once; nothing else."""
    size = eager.SLICE
    large = torch.arange(2.0 * size).view(2, size).t()
    found = in_slices(lambda start, part, none: (start, part, none), [large], None)
    assert [start for start, _, _ in found] == [0, size]
    parts = [part for _, part, _ in found]
    assert torch.equal(torch.cat(parts), torch.arange(2.0 * size))
    assert all(part.data_ptr() == large.data_ptr() + 4 * i * size for i, part in enumerate(parts))
    assert all(none is None for _, _, none in found)
    for whole in (torch.zeros(size), torch.zeros(4 * size)[::2]):
        [(start, part)] = in_slices(lambda *piece: piece, [whole])
        assert start == 0
        assert part is whole
    [(_, *pair)] = in_slices(lambda *piece: piece, [large, large.contiguous()])
    assert [part.shape for part in pair] == [large.shape] * 2


def test_gradients_with_a_graph_leave_none_behind(threads: int) -> None:
    """After ``backward(create_graph=True)``: no state or parameter becomes part of the graph."""
    param = nn.Parameter(torch.linspace(-1, 1, 2 * eager.SLICE))
    optimizer = paper_alice([param], lr=0.01, quick_steps=1, implementation="eager")

    def closure() -> None:
        (param.grad,) = torch.autograd.grad((param**3).sum(), [param], create_graph=True)

    for _ in range(3):
        optimizer.step(closure)
    assert param.is_leaf
    assert not any(value.requires_grad for value in optimizer.state[param].values())


def test_other_layouts_are_brought_to_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients laid out otherwise, in slices of another layout."""
    found = []
    for size in (1 << 30, 128):
        monkeypatch.setattr(eager, "SLICE", size)
        param = nn.Parameter(torch.linspace(-1, 1, 600).view(20, 30).t())
        optimizer = paper_alice([param], lr=0.01, quick_steps=1, implementation="eager")
        assert not param.is_contiguous()

        def closure(param: nn.Parameter = param) -> None:
            param.grad = (2 * param.detach()).contiguous()

        for _ in range(4):
            optimizer.step(closure)
        found.append(everything(optimizer))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", ["gaps", "turned"])
def test_what_is_written_is_never_a_copy(
    monkeypatch: pytest.MonkeyPatch, change: str, dtype: torch.dtype
) -> None:
    """Memory with gaps, and a parameter that is laid out unlike its state from the third step on:
    neither the parameter nor an average keeps its old values.
    """
    found = []
    for size in (1 << 30, 128):
        monkeypatch.setattr(eager, "SLICE", size)
        values = torch.linspace(-1, 1, 1200, dtype=dtype).view(20, 60)
        param = nn.Parameter(values[:, ::2] if change == "gaps" else values)
        optimizer = paper_alice([param], lr=0.01, quick_steps=1, implementation="eager")
        for step in range(6):
            if step == 2 and change == "turned":
                param.data = param.data.t().contiguous().t()
            optimizer.step(quadratic([param]))
        found.append(everything(optimizer))
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


def test_a_master_copy_follows_a_parameter_that_was_cast() -> None:
    """``model.float()`` in mid-training: the position in the state is where the parameter is."""
    param = nn.Parameter(torch.linspace(-1, 1, 30).bfloat16())
    optimizer = paper_alice([param], lr=0.01, quick_steps=1, implementation="eager")
    for step in range(5):
        if step == 2:
            param.grad, param.data = None, param.data.float()
        optimizer.step(quadratic([param]))
        position = optimizer.state[param]["position"]
        assert torch.equal(position.to(param.dtype), param.detach()), step
