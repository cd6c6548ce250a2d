"""Parameters that point at their probe points stand where moved ones would, and come home."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt.displacement import displaced
from aliceopt.site import Draw, Site, signs_of
from interrupts import codes_of, interrupted

pytest.importorskip("triton")
from aliceopt.capture.pointing import PointingBackend, is_swappable
from aliceopt.kernels.triton_launch import TritonKernels
from capture_cases import Idle
from paper import paper_alice

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def parameters() -> list[nn.Parameter]:
    """Odd and even sizes, several chunks, channels_last, transposed and empty."""
    draws = torch.Generator().manual_seed(3)
    shapes = [(2100,), (37, 41), (), (0, 3), (5, 4, 3, 2), (6, 10)]
    tensors = [torch.randn(shape, generator=draws) for shape in shapes]
    tensors[4] = tensors[4].to(memory_format=torch.channels_last)
    tensors[5] = tensors[5].t()
    return [nn.Parameter(t.to(DEVICE)) for t in tensors]


class Run:
    """A few steps of the Triton form: plain, or pointed as a captured step points."""

    def __init__(self, pointed: bool, **options: Any):
        self.params = parameters()
        groups = [{"params": self.params[:4]}, {"params": self.params[4:], "lr": 0.03}]
        given = {"lr": 0.01, "quick_steps": 1, "seed": 11, **options}
        self.optimizer = paper_alice(groups, implementation="triton", **given)
        self.optimizer.step(self.closure)
        if pointed:
            self.backend = PointingBackend(TritonKernels(), list(self.optimizer.sites))
            self.optimizer._backends.serve(self.backend, self.params[0].device)

    def closure(self) -> Tensor:
        total = torch.zeros((), device=DEVICE, dtype=torch.float64)
        for i, p in enumerate(self.params):
            x = p.to(torch.float64)
            total = total + (x.abs() * (1 + i)).sum() + (x**2).sum() / 3 + x.sum() ** 2 / 100
        total.backward()
        return total

    def everything(self) -> list[Tensor]:
        states = [v for s in self.optimizer.state.values() for v in s.values()]
        return [t.detach().clone() for t in (*self.params, *states)]


def assert_equal(a: list[Tensor], b: list[Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("options", [{}, {"quick_steps": 0, "hessian": "signed"}], ids=str)
def test_a_pointed_run_is_the_plain_run_to_the_bit(options: dict[str, Any]) -> None:
    """Positions, averages and counters after three steps, at the addresses they had."""
    runs = [Run(pointed, **options) for pointed in (False, True)]
    for run in runs:
        places = [p.data_ptr() for p in run.params]
        for _ in range(3):
            run.optimizer.step(run.closure)
        assert places == [p.data_ptr() for p in run.params]
    assert_equal(runs[0].everything(), runs[1].everything())


def test_the_sides_are_where_the_oracle_has_them() -> None:
    """Both sides of every parameter, to the bit, and the center is nu itself."""
    run = Run(pointed=True, quick_steps=0)
    draw, sites = Draw(11, 1), [s for s in run.optimizer.sites if s.param.numel() > 0]
    assert all(site in run.backend._sides for site in sites)
    for i, _ in enumerate(run.optimizer.evaluations()):
        for site in sites:
            nu = site.state["probe_center"]
            signs = signs_of(site, draw)
            sides = [displaced(nu, nu.dtype, site.radius, signs, side=side) for side in (1, -1)]
            assert site.radius > 0
            assert torch.equal(site.param, (*sides, nu)[i])
            assert site.param.stride() == nu.stride()
            assert i < 2 or site.param.data_ptr() == nu.data_ptr()
        for p in run.params:
            p.grad = torch.zeros_like(p)


def test_a_coordinate_left_alone_is_probed_where_it_stayed() -> None:
    """Its old nu, not the one that was refused, is displaced in the next step."""
    param = nn.Parameter(torch.linspace(-1, 1, 1500, device=DEVICE))
    optimizer = paper_alice([param], implementation="triton", quick_steps=0, lr=0.01)
    optimizer.step(lambda: (param**2).sum().backward())
    backend = PointingBackend(TritonKernels(), list(optimizer.sites))
    optimizer._backends.serve(backend, param.device)
    old = optimizer.state[param]["probe_center"].clone()

    def closure() -> None:
        param.grad = param.detach().clone()
        param.grad[[3, 1200]] = torch.nan

    optimizer.step(closure)
    rounds = iter(optimizer.evaluations())
    next(rounds)
    moved = (param.detach() - old).abs()
    torch.testing.assert_close(moved[[3, 1200]], torch.full((2,), 0.005, device=DEVICE))
    assert ((moved[[2, 4, 1199]] - 0.005).abs() > 1e-4).all()  # as the others, which moved on


def test_whoever_watches_versions_sees_every_move() -> None:
    run = Run(pointed=True, quick_steps=0)
    versions = [run.params[0]._version]
    for _ in run.optimizer.evaluations():
        versions.append(run.params[0]._version)
        run.closure()
    run.optimizer.step()
    versions.append(run.params[0]._version)
    assert sorted(set(versions)) == versions


def test_only_parameters_with_memory_of_their_own_are_pointed() -> None:
    """Not low precision, not a part of a larger buffer, nor what no kernel can describe."""
    whole = torch.randn(40, device=DEVICE)
    tensors = {
        "own": torch.randn(6, device=DEVICE),
        "transposed": torch.randn(3, 4, device=DEVICE).t(),
        "part": whole[:20],
        "half": torch.randn(8, device=DEVICE).half(),
        "empty": torch.randn(0, 3, device=DEVICE),
        "six runs": torch.randn(2, 3, 2, 3, 2, 3, device=DEVICE).permute(5, 4, 3, 2, 1, 0),
        "overlapping": torch.randn(4, device=DEVICE).as_strided((2, 2), (1, 1)),
    }
    sites = {name: Site.of(nn.Parameter(t), i, {}) for i, (name, t) in enumerate(tensors.items())}
    assert [name for name, site in sites.items() if is_swappable(site)] == ["own", "transposed"]


def test_a_group_without_curvature_terms_needs_no_sides() -> None:
    """It points at nu in all evaluations of a measuring step."""
    params = [nn.Parameter(torch.randn(6, device=DEVICE)) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "glass": False, "hessian": "none"}]
    optimizer = paper_alice(groups, implementation="triton", quick_steps=0)

    def closure() -> None:
        sum((p**2).sum() for p in params).backward()  # type: ignore[union-attr]

    optimizer.step(closure)
    backend = PointingBackend(TritonKernels(), list(optimizer.sites))
    optimizer._backends.serve(backend, params[0].device)
    assert [backend.is_displaced(site) for site in optimizer.sites] == [True, False]
    nu = optimizer.state[params[1]]["probe_center"].data_ptr()
    for _ in optimizer.evaluations():
        assert params[1].data_ptr() == nu
        closure()


def test_an_interrupt_anywhere_leaves_every_parameter_at_home() -> None:
    """Before any one instruction of the pointing, in the evaluations or in the update.

    What launches do does not matter here; that they may be reached or not does.
    """
    tensors = [torch.randn(n, device=DEVICE) for n in (3, 4, 8)]
    params = [nn.Parameter(tensor[:4]) for tensor in tensors]  # the last one is a part
    optimizer = paper_alice(params, implementation="triton", quick_steps=0)

    def closure() -> None:
        for p in params:
            p.grad = torch.ones_like(p)

    optimizer.step(closure)
    backend = PointingBackend(Idle(), list(optimizer.sites))
    optimizer._backends.serve(backend, params[0].device)
    places, before = [p.data_ptr() for p in params], [p.detach().clone() for p in params]
    count, codes = 0, codes_of(PointingBackend)
    while interrupted(lambda: optimizer.step(closure), codes, count + 1):
        count += 1
        optimizer._drop_probe()
        assert [p.data_ptr() for p in params] == places
        assert_equal(before, [p.detach() for p in params])
    assert count > 300
