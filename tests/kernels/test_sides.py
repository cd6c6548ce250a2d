"""Probe points written ahead stand where an unhurried step would have put them, or are redone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels.recording import Moment, Rows, Sender
from aliceopt.kernels.sides import Sides
from aliceopt.options import probe_radius
from aliceopt.site import Draw, Site, displaced

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
capture = importlib.import_module("aliceopt.capture")


class Foreseeing(Sender):
    """Sends numbers as a captured step stages them: with the radii of the step to come."""

    ahead: Mapping[int, float] | None = None

    def numbers(self, rows: Rows, moment: Moment, device: torch.device) -> Tensor:
        return super().numbers(rows, moment._replace(ahead=self.ahead), device)


def parameters() -> list[nn.Parameter]:
    """Odd and even sizes, several chunks, channels_last, transposed and empty."""
    draws = torch.Generator().manual_seed(3)
    shapes = [(2100,), (37, 41), (), (0, 3), (5, 4, 3, 2), (6, 10)]
    tensors = [torch.randn(shape, generator=draws) for shape in shapes]
    tensors[4] = tensors[4].to(memory_format=torch.channels_last)
    tensors[5] = tensors[5].t()
    return [nn.Parameter(t.to(DEVICE)) for t in tensors]


class Run:
    """A few steps of the Triton form: plain, or pointed at sides as a captured step points."""

    def __init__(self, pointed: bool, **options: Any):
        self.params = parameters()
        groups = [{"params": self.params[:4]}, {"params": self.params[4:], "lr": 0.03}]
        given = {"lr": 0.01, "quick_steps": 1, "seed": 11, **options}
        self.optimizer = Alice(groups, implementation="triton", **given)
        self.optimizer.step(self.closure)
        self.written: list[int] = []
        if pointed:
            self.sender = Foreseeing()
            self.sides = Sides(self.sites)
            self.serving = capture._Serving(self.sender, self.sides)
            self.optimizer._backends = self.serving
        self.pointed = pointed

    @property
    def sites(self) -> list[Site]:
        return self.optimizer._bound_sites()

    def closure(self) -> Tensor:
        total = torch.zeros((), device=DEVICE, dtype=torch.float64)
        for i, p in enumerate(self.params):
            x = p.to(torch.float64)
            total = total + (x.abs() * (1 + i)).sum() + (x**2).sum() / 3 + x.sum() ** 2 / 100
        total.backward()
        return total

    def step(self, foresee: bool = True) -> None:
        """One step; in a pointed run, what a captured step does around its graph."""
        optimizer = self.optimizer
        if not self.pointed:
            optimizer.step(self.closure)
            return
        draw, radii = optimizer._draw(), {id(g): probe_radius(g) for g in optimizer.param_groups}
        for site in self.sites:
            site.radius = radii[id(site.group)]
        if optimizer._full_due():
            missing = self.sides.missing(draw)
            self.written.append(len(missing))
            self.serving.backend.write_sides(missing, draw)
        cycle = optimizer.param_groups[0]["quick_steps"] + 1
        due = (optimizer.param_groups[0]["cadence"] + 1) % cycle == 0
        self.sender.ahead = radii if foresee and due else None
        optimizer.step(self.closure)
        self.sides.note(self.sites, Draw(draw.seed, draw.step + 1), self.sender.ahead or {})

    def everything(self) -> list[Tensor]:
        states = [v for s in self.optimizer.state.values() for v in s.values()]
        return [t.detach().clone() for t in (*self.params, *states)]


def assert_equal(a: Run, b: Run) -> None:
    pairs = zip(a.everything(), b.everything(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("quick_steps", [0, 1, 2])
@pytest.mark.parametrize("hessian", ["abs", "signed"])
def test_a_pointed_run_is_the_plain_run_to_the_bit(quick_steps: int, hessian: str) -> None:
    """Positions, averages and counters after six steps; sides foreseen are not written again."""
    runs = [Run(pointed, quick_steps=quick_steps, hessian=hessian) for pointed in (False, True)]
    for run in runs:
        for _ in range(6):
            run.step()
    assert_equal(*runs)
    first = 5 if quick_steps == 0 else 0  # the full step right after the plain one
    assert runs[1].written == [first] + [0] * (len(runs[1].written) - 1)
    assert len(runs[1].written) == 6 // (quick_steps + 1)


def test_without_foresight_every_full_step_writes_its_own_sides() -> None:
    runs = [Run(pointed) for pointed in (False, True)]
    for run in runs:
        for _ in range(4):
            run.step(foresee=False)
    assert_equal(*runs)
    assert runs[1].written == [5, 5]


def test_an_update_writes_the_next_points_where_the_oracle_has_them() -> None:
    """Both sides of every parameter, to the bit, from nu and the next step's directions."""
    run = Run(pointed=True, quick_steps=0)
    run.step()
    draw = run.optimizer._draw()
    for site in filter(run.sides.__contains__, run.sites):
        site.radius = probe_radius(site.group)
        plus, minus = displaced(site, site.signs(draw))
        assert torch.equal(run.sides.place(site, "plus"), plus)
        assert torch.equal(run.sides.place(site, "minus"), minus)
        assert run.sides.place(site, "center") is site.state["probe_center"]


def test_a_coordinate_left_alone_is_probed_where_it_stayed() -> None:
    """Its old nu, not the one that was refused, is displaced for the next step."""
    param = nn.Parameter(torch.linspace(-1, 1, 1500, device=DEVICE))
    optimizer = Alice([param], implementation="triton", quick_steps=0)

    def closure() -> None:
        param.grad = param.detach().clone()
        param.grad[[3, 1200]] = torch.nan

    optimizer.step(closure)
    site = optimizer._bound_sites()[0]
    sender, sides = Foreseeing(), Sides([site])
    optimizer._backends = capture._Serving(sender, sides)
    sender.ahead = {id(site.group): 0.005}
    site.radius = 0.005
    optimizer._backends.backend.write_sides([site], optimizer._draw())
    optimizer.step(closure)
    site.radius = 0.005
    plus, _ = displaced(site, site.signs(optimizer._draw()))
    assert torch.equal(sides.place(site, "plus"), plus)


@pytest.mark.parametrize(
    "change",
    ["nothing", "radius", "seed", "step", "center in place", "center replaced"],
)
def test_whatever_was_not_foreseen_is_missing(change: str) -> None:
    """One site's radius or center, or everybody's directions; nothing else is written anew."""
    run = Run(pointed=True, quick_steps=0)
    run.step()
    draw, sites = run.optimizer._draw(), list(run.sides._places)
    for site in sites:
        site.radius = probe_radius(site.group)
    state = sites[1].state
    if change == "radius":
        sites[1].radius *= 2
    elif change == "seed":
        draw = draw._replace(seed=draw.seed + 1)
    elif change == "step":
        draw = draw._replace(step=draw.step + 1)
    elif change == "center in place":
        state["probe_center"].mul_(1.0)
    elif change == "center replaced":
        old = state["probe_center"]
        state["probe_center"] = old.clone()
        while state["probe_center"]._version < old._version:
            state["probe_center"].mul_(1.0)
        assert state["probe_center"]._version == old._version
    expected = {"nothing": [], "seed": sites, "step": sites}.get(change, sites[1:2])
    assert run.sides.missing(draw) == expected


def test_only_displaced_parameters_with_memory_of_their_own_have_sides() -> None:
    """Not low precision, not a part of a larger buffer, not a group without curvature terms."""
    whole = torch.randn(40, device=DEVICE)
    params = {
        "own": torch.randn(6, device=DEVICE),
        "part": whole[:20],
        "half": torch.randn(8, device=DEVICE).half(),
        "plain": torch.randn(6, device=DEVICE),
    }
    named = {name: nn.Parameter(value) for name, value in params.items()}
    groups = [
        {"params": [named["own"], named["part"], named["half"]]},
        {"params": [named["plain"]], "glass": False, "hessian": "none"},
    ]
    optimizer = Alice(groups, implementation="triton")
    for p in named.values():
        p.grad = torch.ones_like(p)
    with pytest.warns(UserWarning, match="no curvature"):
        optimizer.step()
    sides = Sides(optimizer._bound_sites())
    assert [site.param is named["own"] for site in optimizer._sites if site in sides] == [True]
    plain = optimizer._sites[3]
    assert sides.place(plain, "plus") is plain.state["probe_center"]
