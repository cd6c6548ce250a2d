"""Where an element of memory stands in the whole tensor, as the Triton source finds it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from aliceopt.kernels.plan import Plan
from aliceopt.kernels.table import DIMS, Row

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from aliceopt.kernels.triton_kernels import _global_index  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK = 1024


@triton.jit
def told_kernel(column, start, out, RUNS: tl.constexpr, BLOCK: tl.constexpr):
    """The indices of a chunk."""
    within = tl.arange(0, BLOCK)
    tl.store(out + within, _global_index(column, tl.load(start), within, RUNS))


def told(sizes: list[int], strides: list[int], start: int, runs: int, first: int = 0) -> np.ndarray:
    """By the kernel's function, of a column with these runs."""
    column = np.zeros(Row.ROWS, dtype=np.int64)
    pad = DIMS - len(sizes)
    column[Row.SIZES : Row.SIZES + DIMS] = [1] * pad + sizes
    column[Row.STRIDES : Row.STRIDES + DIMS] = [0] * pad + strides
    column[Row.FIRST] = first
    out = torch.zeros(BLOCK, dtype=torch.int64, device=DEVICE)
    begin = torch.tensor([start], device=DEVICE)  # as kernels have it, in 64 bits
    told_kernel[(1,)](torch.from_numpy(column).to(DEVICE), begin, out, runs, BLOCK)
    return out.cpu().numpy()


def expected(sizes: list[int], strides: list[int], start: int, first: int = 0) -> np.ndarray:
    """By Python's whole numbers, which have no width."""
    found = []
    for place in range(start, start + BLOCK):
        index = first
        for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
            place, digit = divmod(place, size)
            index += digit * stride
        found.append(index)
    return np.asarray(found)


@pytest.mark.parametrize("runs", [1, 3, 5])
@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_channels_last_and_other_orders_are_told_from_memory(runs: int, chunk: int) -> None:
    """Of tensors in any order of dimensions, also beside others with more runs."""
    shape, order = (7, 5, 3, 4, 11), {1: (0, 1, 2, 3, 4), 3: (0, 2, 3, 1, 4), 5: (4, 3, 2, 1, 0)}
    strides = [math.prod(shape[d + 1 :]) for d in range(5)]
    numbers = torch.arange(math.prod(shape)).reshape(shape).permute(order[runs])
    memory = numbers.reshape(-1).numpy()[chunk * BLOCK : (chunk + 1) * BLOCK]
    sizes = [shape[d] for d in order[runs]]
    steps = [strides[d] for d in order[runs]]
    for most in {5, runs}:
        if most < 5:  # merged, as the plan has them
            sizes, steps = _merged(sizes, steps)
        found = told(sizes, steps, chunk * BLOCK, max(most, len(sizes)))
        assert np.array_equal(found[: len(memory)], memory)


def _merged(sizes: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
    merged: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return [size for size, _ in merged], [stride for _, stride in merged]


@pytest.mark.parametrize("start", [2**31 - 512, 2**32 - 512, 2**33 + 7, 3 * 2**40])
def test_places_beyond_32_bits_are_right(start: int) -> None:
    """A chunk begins anywhere in 64 bits; only its runs must be shorter than 2^31."""
    for sizes in ([2**20, 3, 2**20], [2**11, 2**31 - 1, 2], [2**31 - 1, 1000]):
        strides = [math.prod(sizes[:d]) for d in range(len(sizes))]  # transposed
        found = told(sizes, strides, start, len(sizes), first=5)
        wanted = expected(sizes, strides, start, first=5)
        assert np.array_equal(found, wanted)


def test_longer_runs_than_kernels_divide_by_are_left_to_the_eager_form() -> None:
    """Where anything is out of row-major order, also of tensors that are in it."""
    long = torch.empty(2, 2**31, device="meta")  # a shape and strides, but no memory
    plan = object.__new__(Plan)
    for others, wanted in (([], [True]), ([torch.empty(3, 4, device="meta").t()], [False, True])):
        params = [long, *others]
        plan.sites = [type("S", (), {"param": p})() for p in params]  # type: ignore[misc]
        plan.host = np.zeros((Row.ROWS, len(params)), dtype=np.int64)
        assert plan._describe(params)[0] == wanted
