"""The table that kernels read: a step's own radii stand in it, whatever came before."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt.kernels.plan import Plan
from aliceopt.kernels.table import Row
from cpu_cases import everything, needs_compiler, quadratic
from paper import paper_alice

try:
    import triton
except ImportError:  # pragma: no cover
    triton = None

EVENTS = (
    *("", "", "", "storage", "storage", "", "no lr", "", "one group", "one group, no lr", "", ""),
    *("raises 2", "", "raises 1", "", "checkpoint", "raises 3", "", "storage", "", "no lr", ""),
)
"""What happens before or in a step; of those that are finished, about every third measures."""


class Driven:
    """Three groups of parameters: where they stood, and the radii in the table meanwhile."""

    def __init__(self, implementation: str) -> None:
        draws = torch.Generator().manual_seed(0)
        shapes = ((40, 30), (7,), (33,), (4, 6))
        self.params = [nn.Parameter(torch.randn(shape, generator=draws)) for shape in shapes]
        self.params[3].data = self.params[3].data.half()
        lasts = {"params": self.params[3:], "lr": 0.5}
        groups = [{"params": self.params[:2]}, {"params": self.params[2:3]}, lasts]
        given: dict[str, Any] = {"lr": 0.05, "quick_steps": 2, "implementation": implementation}
        self.optimizer = paper_alice(groups, **given)
        self.found: list[Tensor] = []

    @property
    def plan(self) -> Plan | None:
        """The plan of the kernels; none of the oracle."""
        (backend,) = self.optimizer._backends._made.values()
        return getattr(backend, "_plan", None)

    def step(self, event: str) -> list[list[float]]:
        """One step; the radii in the table at each of its evaluations."""
        optimizer, params, rounds = self.optimizer, self.params, itertools.count(1)
        radii: list[list[float]] = []
        optimizer.param_groups[1]["lr"] = 0.0 if "no lr" in event else 0.05
        if event == "storage":
            for p in params[::2]:
                p.data = p.data.clone() * 1.25
        if event == "checkpoint":
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

        def closure() -> None:
            self.found.extend(p.detach().clone() for p in params)
            quadratic(params[2:3] if "one group" in event else params)()
            if self.plan is not None:
                radii.append(self.plan.host.view(np.float64)[Row.RADIUS].tolist())
            if event == f"raises {next(rounds)}":
                raise KeyError

        optimizer.zero_grad()
        try:
            optimizer.step(closure)
        except KeyError:
            radii.clear()
        self.found += everything(optimizer)
        return radii


@pytest.mark.usefixtures("exact_roots")
@pytest.mark.parametrize(
    ("implementation", "events", "tolerance"),
    [
        pytest.param("compiled", EVENTS, 0.0, marks=needs_compiler),
        pytest.param(
            "triton",
            ("", "storage", "", "one group, no lr", "", "storage"),  # the interpreter is slow
            1e-6,
            marks=[
                pytest.mark.skipif(triton is None, reason="needs Triton"),
                # numpy, in the interpreter, warns of what a GPU does silently.
                pytest.mark.filterwarnings("ignore::RuntimeWarning"),
            ],
        ),
    ],
    ids=["compiled", "triton"],
)
def test_radii_are_those_of_the_step(
    implementation: str, events: tuple[str, ...], tolerance: float
) -> None:
    """Zero in a quick step, each group's own in one that measures, from the second step on; and
    everything is where it is in the oracle, which has no table, whatever happens in between.
    """
    oracle, kernels = Driven("eager"), Driven(implementation)
    measured = 0
    for number, event in enumerate(events):
        oracle.step(event)
        radii = kernels.step(event)
        own = [0.025, 0.025, 0.0 if "no lr" in event else 0.025, 0.25]
        expected = own if len(radii) == 3 else [0.0] * 4
        assert number == 0 or all(found == expected for found in radii), (number, event)
        measured += len(radii) == 3
    assert 2 <= measured <= len(events) // 2
    for x, y in zip(oracle.found, kernels.found, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@needs_compiler
def test_a_second_quick_step_writes_its_numbers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the update: the table has no radius left to take back before the departure."""
    written: list[int] = []
    write_numbers = Plan.write_numbers

    def counted(plan: Plan, sites: Any, columns: Any, draw: Any, rates: Any = ()) -> None:
        written[-1] += 1
        write_numbers(plan, sites, columns, draw, rates)

    monkeypatch.setattr(Plan, "write_numbers", counted)
    driven = Driven("compiled")
    for _ in range(7):
        written.append(0)
        driven.step("")
    assert written[3:] == [2, 2, 1, 2]
