"""However a step is driven, kernels do as the oracle does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels.backend import MultiTensorBackend
from aliceopt.kernels.native import CpuKernels
from cpu_cases import DTYPES, assert_same, everything, needs_compiler, quadratic, run
from paper import paper_alice

pytestmark = needs_compiler
bits = pytest.mark.usefixtures("exact_roots")


@bits
def test_loops_and_plain_backwards_are_as_in_the_oracle() -> None:
    """Parameters are back at their positions before such a step begins."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(n)) for n in (3000, 20, 7)]
        optimizer = paper_alice(params, lr=1e-2, quick_steps=1, implementation=name)
        for _ in range(4):
            for _ in optimizer.evaluations():
                sum((p**2).sum() for p in params).backward()
            optimizer.step()
        for _ in range(2):
            optimizer.zero_grad()
            sum((p**2).sum() for p in params).backward()
            optimizer.step()
        return everything(optimizer)

    assert_same(drive)


@bits
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scaled_gradients_are_as_in_the_oracle(dtype: torch.dtype) -> None:
    """Those of half precision are unscaled in float32: three dtypes in one update."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(40).to(dtype)) for _ in range(2)]
        optimizer = paper_alice(params, lr=1e-2, quick_steps=1, implementation=name)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in range(4):
            for _ in optimizer.evaluations(scaler=scaler):
                scaler.scale(sum((p.float() ** 4).sum() for p in params)).backward()
            scaler.step(optimizer)
            scaler.update()
        return everything(optimizer)

    assert_same(drive)


@bits
def test_groups_with_options_of_their_own_and_groups_that_come_later() -> None:
    """Everything that kernels are compiled for differs between them, in one launch each."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(30 + i)) for i in range(12)]
        groups = [
            {"params": params[0:2], "limit": "fixed", "hessian": "rms"},
            {"params": params[2:4], "glass": False, "maximize": True, "lr": 0.3},
            {"params": params[4:6], "hessian": "none", "glass": False},
            {"params": params[6:8], "lr": 0.02, "weight_decay": 0.1},
        ]
        optimizer = paper_alice(groups, lr=1e-2, quick_steps=1, implementation=name)
        for step in range(6):
            if step == 3:
                optimizer.add_param_group({"params": params[8:10], "hessian": "signed"})
            if step == 4:
                optimizer.param_groups[0]["params"].append(params[10])
            if step == 5:
                optimizer.param_groups[0]["hessian"] = "abs"
            optimizer.step(quadratic(params[:11]))
        return everything(optimizer)

    assert_same(drive)


@bits
@pytest.mark.parametrize("quick_steps", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_terms_may_be_switched_on_and_off_in_mid_training(
    dtype: torch.dtype, quick_steps: int
) -> None:
    """A state gets its new entries between departure and update: both must know."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(50).to(dtype)) for _ in range(3)]
        options = {"hessian": "none", "glass": False, "quick_steps": quick_steps}
        optimizer = paper_alice(params, lr=1e-2, implementation=name, **options)
        found = []
        for change in ({}, {"hessian": "abs"}, {"glass": True}, {"hessian": "none"}):
            optimizer.param_groups[0].update(change)
            for _ in range(quick_steps + 2):
                optimizer.step(quadratic(params))
            found += everything(optimizer)
        return found

    assert_same(drive)


def test_a_pass_is_one_call_whatever_the_number_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A measuring step departs, moves twice and updates; a quick one departs and updates."""
    calls: list[str] = []
    for name in ("move", "update"):
        original = getattr(CpuKernels, name)

        def counting(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> None:
            calls.append(name)
            original(*args, **kwargs)

        monkeypatch.setattr(CpuKernels, name, counting)
    for count in (1, 30):
        params = [nn.Parameter(torch.randn(48 + 4 * i)) for i in range(count)]
        optimizer = paper_alice(params, lr=0.01, quick_steps=1, implementation="compiled")
        for _ in range(2):
            optimizer.step(quadratic(params))
        calls.clear()
        optimizer.step(quadratic(params))
        assert calls == ["move", "move", "move", "update"]
        calls.clear()
        optimizer.step(quadratic(params))
        assert calls == ["move", "update"]


@bits
def test_any_number_of_threads_gives_the_same_bits() -> None:
    """Also if it changes between steps."""
    threads, found = torch.get_num_threads(), []
    try:
        for numbers in ([1] * 5, [3] * 5, [1, 2, 3, 4, 2]):
            params = [nn.Parameter(torch.linspace(-1, 1, n)) for n in (70_000, 100, 40_001)]
            optimizer = paper_alice(params, lr=0.01, quick_steps=1, implementation="compiled")
            for number in numbers:
                torch.set_num_threads(number)
                optimizer.step(quadratic(params))
            found.append(everything(optimizer))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_the_random_state_is_neither_read_nor_changed() -> None:
    """By making the kernels and by running them."""
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        params = [nn.Parameter(torch.linspace(-1, 1, 50))]
        optimizer = paper_alice(params, lr=0.01, quick_steps=1, implementation="compiled")
        for _ in range(3):
            optimizer.step(quadratic(params))
        assert torch.equal(torch.get_rng_state(), before)
        found.append(params[0].detach())
    assert torch.equal(*found)


def test_the_kernels_really_ran() -> None:
    """So that the tests above compare two things."""
    run_ = run("compiled", torch.float32, 2)
    backend = run_.optimizer._backends.split(list(run_.optimizer.sites))[0][0]
    assert isinstance(backend, MultiTensorBackend)
    assert isinstance(backend.kernels, CpuKernels)
    plan = backend.plan(run_.optimizer.sites)
    # Left to the oracle: the empty one, six runs of memory, gaps.
    assert [i for i, usable in enumerate(plan.usable) if not usable] == [6, 11, 12]


# ---- what was wrong once -----------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["compiled", "eager"])
@pytest.mark.parametrize(
    ("option", "value"), [("lr", float("nan")), ("betas", (1, 0.9)), ("eps", -1.0)], ids=str
)
def test_a_step_after_a_plain_backward_checks_edited_options(
    implementation: str, option: str, value: Any
) -> None:
    """As one with a closure does: refused, and nothing has changed but back with the option."""
    params = [nn.Parameter(torch.linspace(-1, 1, 20))]
    optimizer = paper_alice(params, quick_steps=1, implementation=implementation)
    for _ in range(2):
        optimizer.step(quadratic(params))
    before, group = everything(optimizer), optimizer.param_groups[0]
    counts = [group[name] for name in ("cadence", "measuring_count", "quick_count")]
    good, group[option] = group[option], value
    quadratic(params)()
    with pytest.raises(ValueError, match=option):
        optimizer.step()
    assert all(map(torch.equal, before, everything(optimizer)))
    assert counts == [group[name] for name in ("cadence", "measuring_count", "quick_count")]
    group[option] = good
    quadratic(params)()
    optimizer.step()
    assert all(t.isfinite().all() for t in everything(optimizer))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in Triton's interpreter
@pytest.mark.parametrize("implementation", ["eager", "compiled", "triton"])
@pytest.mark.parametrize("size", [1e36, 1e37, 1e38, 3e38])
def test_the_signed_hessian_stays_finite(implementation: str, size: float) -> None:
    """Gradients near the largest number, of alternating sign: infinities would add up to NaN."""
    if implementation == "triton":
        pytest.importorskip("triton")
    param = nn.Parameter(torch.linspace(-1, 1, 12))
    optimizer = paper_alice(
        [param], lr=0.01, quick_steps=0, hessian="signed", implementation=implementation
    )
    signs = torch.tensor([1.0, -1.0] * 6)
    values = iter([size, -size, 0.0, -size, size, 0.0, size, -size, 0.0])

    def closure() -> None:
        param.grad = next(values) * signs

    for _ in range(3):
        optimizer.step(closure)
        assert param.isfinite().all()
        assert optimizer.state[param]["hess"].isfinite().all()
        assert optimizer.state[param]["probe_center"].isfinite().all()


LARGEST = torch.finfo(torch.float32).max


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in Triton's interpreter
@pytest.mark.parametrize("implementation", ["eager", "compiled", "triton"])
def test_no_gradient_is_too_large_for_the_glass(implementation: str) -> None:
    """Sums of gradients beyond half the largest number overflow, and infinities cancel to NaN."""
    if implementation == "triton":
        pytest.importorskip("triton")
    sizes = torch.tensor([0.0, 0.3, 0.6, 1.0])
    signed = torch.cat([-sizes, sizes]) * LARGEST
    plus, minus, center = torch.cartesian_prod(signed, signed, signed).t().contiguous()
    param = nn.Parameter(torch.zeros(len(plus)))
    optimizer = paper_alice([param], 0.01, quick_steps=0, implementation=implementation)
    values = iter([plus, minus, center])

    def closure() -> None:
        param.grad = next(values)

    optimizer.step(closure)
    sample = 2 / 0.005 * ((plus.double() + minus.double()) / 2 - center.double()) ** 2
    expected = (1 - 0.999) * sample.clamp(max=LARGEST)
    torch.testing.assert_close(optimizer.state[param]["glass_density"], expected.float())
    assert param.isfinite().all()
    assert optimizer.state[param]["probe_center"].isfinite().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("implementation", ["eager", "compiled", "triton"])
@pytest.mark.parametrize("beta1", [0.5, 0.7, 0.9, 0.95])
def test_the_largest_gradient_is_no_more_than_for_adamw(implementation: str, beta1: float) -> None:
    """What ``nan_to_num_`` makes of an infinite one: divided by its weight it may overflow."""
    if implementation == "triton":
        pytest.importorskip("triton")
    mine, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    options: Any = {"lr": 1e-3, "betas": (beta1, 0.999), "weight_decay": 0.1}
    alice = Alice([mine], lookahead=1.0, implementation=implementation, **options)
    adamw = torch.optim.AdamW([theirs], **options)
    for _ in range(3):
        for param in (mine, theirs):
            param.grad = torch.tensor([torch.inf, -torch.inf, 1.0]).nan_to_num_()
        alice.step()
        adamw.step()
    torch.testing.assert_close(mine, theirs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("implementation", ["eager", "compiled", "triton"])
def test_gradients_whose_squares_overflow_are_clipped(implementation: str) -> None:
    """An infinite norm would make a factor of zero, and a step of zero, without a word."""
    if implementation == "triton":
        pytest.importorskip("triton")
    param = nn.Parameter(torch.ones(4))
    options: Any = {"lr": 0.1, "lookahead": 1.0, "weight_decay": 0.0, "max_grad_norm": 1.0}
    optimizer = Alice([param], implementation=implementation, **options)
    param.grad = torch.full((4,), 1e20)
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full((4,), 0.9))
    torch.testing.assert_close(optimizer.state[param]["grad_avg"], torch.full((4,), 0.05))
