"""The Triton kernels against the eager oracle: interpreted on the CPU, compiled on a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from paper import paper_alice

pytest.importorskip("triton")
# numpy, in the interpreter, warns of what a GPU does silently and the kernels then mask.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = [
    {"limit": limit, "hessian": hessian, "glass": glass}
    for limit, hessian, glass in itertools.product(
        ("adam", "fixed", "sgd"), ("none", "abs", "rms", "signed"), (True, False)
    )
]


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """Odd and even sizes, several chunks, channels_last, transposed, 0-dim and empty."""
    draws = torch.Generator().manual_seed(3)
    shapes = [(700,), (37, 41), (), (0, 3), (5, 4, 3, 2), (6, 10)]
    tensors = [torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes]
    tensors[4] = tensors[4].to(memory_format=torch.channels_last)
    tensors[5] = tensors[5].t()
    return [nn.Parameter(t.to(DEVICE, dtype)) for t in tensors]


def loss_of(params: list[nn.Parameter]) -> Tensor:
    """Kinks and curvature in every coordinate, coupled within a tensor."""
    total = torch.zeros((), device=DEVICE, dtype=torch.float64)
    for i, p in enumerate(params):
        x = p.to(torch.float64)
        total = total + (x.abs() * (1 + i)).sum() + (x**2).sum() / 3 + x.sum() ** 2 / 100
    return total


def run(
    implementation: str, steps: int, dtype: torch.dtype, **options: Any
) -> tuple[list[nn.Parameter], Alice]:
    params = parameters(dtype)
    given = {"lr": 0.01, "lr_min": 0.002, "probe_radius": 0.02, "quick_steps": 1, **options}
    optimizer = paper_alice(params, implementation=implementation, seed=11, **given)

    def closure() -> Tensor:
        loss = loss_of(params)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return params, optimizer


def assert_same(
    a: tuple[list[nn.Parameter], Alice], b: tuple[list[nn.Parameter], Alice], tolerance: float
) -> None:
    for p, q in zip(a[0], b[0], strict=True):
        pairs = [(p.detach(), q.detach())]
        mine, theirs = a[1].state.get(p, {}), b[1].state.get(q, {})
        assert mine.keys() == theirs.keys()
        pairs += [(mine[name], theirs[name]) for name in mine]
        for x, y in pairs:
            assert x.dtype == y.dtype
            assert x.stride() == y.stride()
            # Of a density that is zero, rounding may leave 1e-36.
            scale = max(y.abs().max().item(), 1e-20) if y.numel() else 0.0
            if x.numel():
                assert (x.double() - y.double()).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_every_combination_of_options_agrees_with_eager(options: dict[str, Any]) -> None:
    """Three steps, measuring, quick, measuring, in float64: all positions and averages to 1e-13."""
    triton = run("triton", 3, torch.float64, weight_decay=0.1, **options)
    assert_same(triton, run("eager", 3, torch.float64, weight_decay=0.1, **options), 1e-13)


@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 0.5},
        {"maximize": True},
        {"betas": (0.5, 0.9), "step_fraction": 0.7, "lookahead": 1.3},
        {"lr_min": 1.0, "hessian": "signed"},
        {"quick_steps": 0, "eps": 1e-3},
    ],
    ids=str,
)
def test_the_other_options_agree_with_eager(options: dict[str, Any]) -> None:
    """Clipping, ascent, betas, fractions, equal bounds, eps."""
    assert_same(
        run("triton", 3, torch.float64, **options), run("eager", 3, torch.float64, **options), 1e-13
    )


@pytest.mark.parametrize("hessian", ["abs", "signed"])
def test_float32_agrees_to_rounding(hessian: str) -> None:
    """One measuring and one quick step in float32, to 1e-4 of the largest entry."""
    triton = run("triton", 2, torch.float32, hessian=hessian)
    assert_same(triton, run("eager", 2, torch.float32, hessian=hessian), 1e-4)


def places(implementation: str, dtype: torch.dtype) -> list[Tensor]:
    """Where three measuring steps' evaluations find the parameters, with gradients of zero."""
    params, found = parameters(dtype), []
    optimizer = paper_alice(params, lr=0.1, implementation=implementation, quick_steps=0)
    for _ in range(3):
        for _ in optimizer.evaluations():
            found += [p.detach().clone() for p in params]
            for p in params:
                p.grad = torch.zeros_like(p)
        optimizer.step()
    return found


# The interpreter truncates where a GPU rounds to the nearest bf16, so that is for the GPU.
LOW = [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_low_precision_parameters_agree_with_eager(dtype: torch.dtype) -> None:
    """Where the probes stand, to the bit, and one step's parameters, masters and averages."""
    assert_same(run("triton", 1, dtype), run("eager", 1, dtype), 1e-4)
    seen = {name: places(name, dtype) for name in ("eager", "triton")}
    assert all(torch.equal(a, b) for a, b in zip(seen["eager"], seen["triton"], strict=True))


def test_probe_points_are_the_same_to_the_bit() -> None:
    """What every evaluation sees; with zero gradients no rounding of a step comes between."""
    seen = {name: places(name, torch.float32) for name in ("eager", "triton")}
    assert len(seen["eager"]) == 54
    assert all(torch.equal(a, b) for a, b in zip(seen["eager"], seen["triton"], strict=True))


@pytest.mark.parametrize("where", ["plus", "minus", "center"])
def test_coordinates_without_a_finite_gradient_are_left_alone(where: str) -> None:
    """NaN on a side or at the center: position, probe center and averages stay, and it counts."""
    params = [nn.Parameter(torch.linspace(-1, 1, 1500, device=DEVICE))]
    optimizer = paper_alice(params, implementation="triton", quick_steps=0)
    before = {}
    for step in range(2):
        rounds = ("plus", "minus", "center")
        for name, _ in zip(rounds, optimizer.evaluations(), strict=True):
            grad = params[0].detach().clone()
            if step == 1 and name == where:
                grad[[3, 1200]] = torch.tensor([torch.nan, torch.inf], device=DEVICE)
            params[0].grad = grad
        before = {k: v.clone() for k, v in optimizer.state[params[0]].items()} if step else before
        position = params[0].detach().clone()
        optimizer.step()
    after = optimizer.state[params[0]]
    for name in ("probe_center", "grad_avg", "grad_sq", "glass_density", "hess"):
        kept = after[name] == before[name]
        assert kept[[3, 1200]].all()
    assert (params[0].detach() == position)[[3, 1200]].all()
    assert (params[0].detach() != position).sum() > 1400
    assert optimizer.telemetry().groups[0].skipped_coordinates == 2


def test_a_probe_gradient_that_is_missing_counts_as_zero() -> None:
    """The same as handing over zeros."""
    ends = []
    for missing in (True, False):
        param = nn.Parameter(torch.linspace(-1, 1, 600, device=DEVICE, dtype=torch.float64))
        optimizer = paper_alice([param], implementation="triton", quick_steps=0)
        for name, _ in zip(("plus", "minus", "center"), optimizer.evaluations(), strict=True):
            zero = None if missing else torch.zeros_like(param)
            param.grad = zero if name == "plus" else param.detach().clone()
        optimizer.step()
        ends.append(param.detach())
    assert torch.equal(*ends)


def test_tables_follow_storage_that_moves() -> None:
    """Parameters given new memory between steps go on as if nothing had happened."""
    a, b = run("triton", 2, torch.float64), run("triton", 2, torch.float64)
    for p in b[0]:
        p.data = p.data.clone()
    for params, optimizer in (a, b):
        optimizer.step(lambda params=params: loss_of(params).backward())
    assert_same(a, b, 0.0)


def test_a_layout_changed_between_steps_is_followed() -> None:
    """Parameters made channels_last after a step go on as the eager form does."""
    ends = []
    for implementation in ("eager", "triton"):
        params, optimizer = run(implementation, 2, torch.float64, quick_steps=0)
        image = params[4]
        image.data = image.data.contiguous()
        for _ in range(2):
            optimizer.step(lambda params=params: loss_of(params).backward())
        ends.append([p.detach() for p in params])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(*ends, strict=True))


def test_state_replaced_by_the_user_is_the_state_that_is_updated() -> None:
    """Offloading and reloading state between steps changes its address, not the training."""
    ends = []
    for reload in (False, True):
        params, optimizer = run("triton", 2, torch.float64)
        if reload:
            for entries in optimizer.state.values():
                entries.update({name: value.clone() for name, value in entries.items()})
        optimizer.step(lambda params=params: loss_of(params).backward())
        ends.append([s["grad_avg"] for s in optimizer.state.values()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_running_out_of_memory_anywhere_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever allocation fails, parameters are as before, and the next step is the same step."""
    a, b = (run("triton", 1, torch.float32, quick_steps=0, max_grad_norm=1.0) for _ in range(2))
    (params, optimizer), empty = a, torch.empty
    before = [p.detach().clone() for p in params]
    for last in range(100):
        count = itertools.count()

        def failing(*args: Any, count: Any = count, last: int = last, **options: Any) -> Tensor:
            if next(count) == last:
                raise torch.OutOfMemoryError("no room")
            return empty(*args, **options)

        try:
            with monkeypatch.context() as patch:
                patch.setattr(torch, "empty", failing)
                optimizer.step(lambda: loss_of(params).backward())
            break
        except torch.OutOfMemoryError:
            assert all(map(torch.equal, params, before))
            assert all(p.grad is None for p in params)
    assert 0 < last < 99
    b[1].step(lambda: loss_of(b[0]).backward())
    assert_same(a, b, 0.0)
