"""The C++ kernels against the eager oracle, to the bit: positions, states, every probe point."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt.kernels import native
from aliceopt.kernels.backend import MultiTensorBackend
from aliceopt.kernels.native import CpuKernels
from aliceopt.sharding import Block
from aliceopt.signs import run_signs, sign_key
from aliceopt.site import Draw, Site
from cpu_cases import (
    DTYPES,
    NUMBERS,
    TERMS,
    assert_close,
    assert_equal,
    assert_same,
    everything,
    needs_compiler,
    run,
)
from paper import paper_alice

pytestmark = needs_compiler
bits = pytest.mark.usefixtures("exact_roots")
Drive = Callable[[str], list[Tensor]]


@bits
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", TERMS, ids=lambda o: "-".join(map(str, o.values())))
def test_every_kernel_is_the_oracle(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """All limits, Hessians and glass; all layouts; gradients that are not finite or not there."""
    assert_equal(run("eager", dtype, **options), run("compiled", dtype, **options))


@bits
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", NUMBERS, ids=str)
def test_numbers_do_not_change_that(dtype: torch.dtype, options: dict[str, Any]) -> None:
    assert_equal(run("eager", dtype, **options), run("compiled", dtype, **options))


@pytest.fixture(scope="module")
def past_the_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    """Kernels that take every tensor for a large one."""
    text = native.source()
    assert text.count("LARGE = 1 << 23") == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "source", lambda: text.replace("LARGE = 1 << 23", "LARGE = 0"))
        patch.setenv("ALICEOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield native.library.__wrapped__()


@bits
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [*TERMS[:3], *NUMBERS[:3]], ids=str)
def test_what_goes_past_the_caches_arrives(
    dtype: torch.dtype,
    options: dict[str, Any],
    past_the_caches: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large tensors are written by other instructions than small ones."""
    monkeypatch.setattr(native, "library", lambda: past_the_caches)
    assert_equal(run("eager", dtype, **options), run("compiled", dtype, **options))


@bits
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_clip_that_binds_agrees_to_rounding(dtype: torch.dtype) -> None:
    """The norm is a sum, taken in another order."""
    rtol = 1e-12 if dtype == torch.float64 else 2e-6
    runs = [run(name, dtype, max_grad_norm=0.5) for name in ("eager", "compiled")]
    assert_close(*runs, rtol)
    assert not torch.equal(runs[0].params[0], run("eager", dtype).params[0])


def test_with_torchs_own_roots_it_agrees_to_rounding() -> None:
    """Whoever computes them: MKL's are off in the last bit at some arguments."""
    assert_close(run("eager", torch.float32), run("compiled", torch.float32), 2e-6)
    assert_close(run("eager", torch.float64), run("compiled", torch.float64), 1e-14)


@bits
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("options", [*TERMS, {"eps": 0.0}, {"eps": 0.0, "lr_min": 1e-3}], ids=str)
def test_gradients_of_every_size_are_as_in_the_oracle(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """From the smallest numbers to the largest, zeros among them: averages may overflow."""
    info = torch.finfo(dtype)
    low, high = np.log2(info.tiny) - 20, np.log2(info.max)
    exponents = torch.linspace(low, high, 2001, dtype=torch.float64)

    def drive(name: str) -> list[Tensor]:
        draws = torch.Generator().manual_seed(1)
        param = nn.Parameter(torch.randn(2001, generator=draws, dtype=dtype))
        given = {"lr": 0.01, "probe_radius": 1e-3, "quick_steps": 1, **options}
        optimizer = paper_alice([param], implementation=name, **given)

        def closure() -> None:
            mantissa = torch.rand(2001, generator=draws, dtype=torch.float64) * 2 - 1
            mantissa[torch.rand(2001, generator=draws) < 0.1] = 0.0
            order = torch.randperm(2001, generator=draws) // 100 * 100  # mostly of similar sizes
            param.grad = (mantissa * 2 ** exponents[order]).to(dtype)

        for _ in range(5):
            optimizer.step(closure)
        return everything(optimizer)

    for x, y in zip(drive("eager"), drive("compiled"), strict=True):
        assert torch.equal(x.nan_to_num(7.0, 8.0, 9.0), y.nan_to_num(7.0, 8.0, 9.0))


@bits
def test_infinite_curvature_is_as_in_the_oracle() -> None:
    """Where gradients are finite and their difference quotient is not, the step is still right."""

    def drive(name: str) -> list[Tensor]:
        param = nn.Parameter(torch.zeros(200))
        optimizer = paper_alice(
            [param], lr=1e-2, probe_radius=1e-6, quick_steps=0, glass=False, implementation=name
        )
        values = iter([1e34, -1e34, 0.0] * 2)

        def closure() -> None:
            param.grad = torch.full_like(param, next(values))

        for _ in range(2):
            optimizer.step(closure)
        return everything(optimizer)

    assert_same(drive)


@pytest.mark.parametrize("first", [0, 12345, 2**31 - 50, 2**36 - 1000, 2**40 + 17])
def test_signs_are_the_oracles_beyond_32_bits(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of elements at any place of a tensor of any size, in any step of any parameter."""
    block = Block((2**41,), (first,), (2000,))
    monkeypatch.setattr("aliceopt.layout.block_of", lambda param: block)
    site = Site.of(nn.Parameter(torch.zeros(2000)), 5, {})
    site.state = {name: torch.zeros(2000) for name in ("probe_center", "grad_avg", "grad_sq")}
    site.radius, draw = 1.0, Draw(2**40 + 7, 2**33 + 3)
    backend = MultiTensorBackend(CpuKernels())
    key = sign_key(*draw, 5)
    with torch.no_grad():
        backend.depart([site], "plus", draw)
        assert torch.equal(site.param, run_signs(key, first, 2000, torch.float32, "cpu"))
        backend.move([site], "minus", draw)
        assert torch.equal(site.param, -run_signs(key, first, 2000, torch.float32, "cpu"))
        backend.rest([site])
        assert not site.param.any()
