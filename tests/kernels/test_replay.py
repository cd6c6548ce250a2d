"""Captured steps without a GPU: what they foresee, what they notice, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels import fused

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("captured steps proper are tested there", allow_module_level=True)
from capture_cases import ReplayedStep, capture

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Run:
    """A small problem with kinks: four parameters in two tables and two groups, one detached."""

    def __init__(self, captured: bool, **options: Any):
        torch.manual_seed(1)
        self.a, self.b, self.c, self.idle = (
            nn.Parameter(torch.randn(n)) for n in ((8,), (5,), (), (8,))
        )
        params = [self.a, self.b, self.idle]
        self.model = nn.ParameterDict({"a": self.a, "b": self.b, "c": self.c, "idle": self.idle})
        self.other = self.model["other"] = nn.Parameter(torch.randn(8))
        groups = [{"params": params}, {"params": [self.c], "lr": options.pop("lr_c", 0.03)}]
        given = {"lr": 0.01, "quick_steps": 1, "model": self.model, "implementation": "triton"}
        self.optimizer = Alice(groups, **{**given, **options})
        self.hook: Callable[[], None] = lambda: None
        self.step = ReplayedStep(self.optimizer, self.closure) if captured else None

    def closure(self) -> Tensor:
        self.hook()
        x = self.a - self.idle.detach() + self.other
        loss = (x**4).sum() + self.b.abs().sum() * (1 + self.c**2) + (self.b**2).sum()
        loss = loss + nn.functional.dropout(self.a, 0.5).sum()
        loss.backward()
        return loss

    def train(self, *, replay: bool = True) -> float:
        use = self.step if self.step is not None and replay else self.closure
        return float(self.optimizer.step(use).detach())

    def everything(self) -> list[Tensor]:
        states = [v for s in self.optimizer.state.values() for v in s.values()]
        return [t.detach().clone() for t in (*self.model.values(), *states, torch.get_rng_state())]


def assert_equal(a: list[Tensor], b: list[Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def intervene(run: Run, change: str, i: int) -> None:
    """Something a user may do before step ``i`` that the step before could not foresee."""
    group, state = run.optimizer.param_groups[0], run.optimizer.state
    if change == "a schedule":
        group["lr"] *= 0.9
    elif change == "another radius" and i in (3, 6):
        group["probe_radius"] = 0.02 * i
    elif change == "another seed" and i == 4:
        group["seed"] = 5
    elif change == "fewer quick steps" and i == 3:
        group["quick_steps"] = 0
    elif change == "an edited center" and i in (2, 3):
        state[run.a]["probe_center"].mul_(1.1)
    elif change == "an edited parameter" and i in (0, 3):
        with torch.no_grad():
            run.a.mul_(1.1)
            run.idle.mul_(1.1)
    elif change == "replaced state" and i == 3:
        for entries in (state[run.a], state[run.c]):
            entries.update({name: value.clone() for name, value in entries.items()})


CHANGES = [
    "nothing",
    "a schedule",
    "another radius",
    "another seed",
    "fewer quick steps",
    "an edited center",
    "an edited parameter",
    "replaced state",
    "uncaptured steps",
]


@pytest.mark.parametrize("quick_steps", [0, 1])
@pytest.mark.parametrize("change", CHANGES)
def test_replayed_and_uncaptured_runs_are_equal_to_the_bit(change: str, quick_steps: int) -> None:
    """Losses, parameters, state and generator, with a parameter that is displaced but not trained.

    Edits come before the first step too, and to a parameter that has no state.
    """
    runs = [Run(captured, quick_steps=quick_steps) for captured in (False, True)]
    losses = []
    for run in runs:
        torch.manual_seed(7)
        for i in range(7):
            intervene(run, change, i)
            losses.append(run.train(replay=change != "uncaptured steps" or i not in (2, 4)))
    assert losses[:7] == losses[7:]
    assert_equal(runs[0].everything(), runs[1].everything())


def test_a_group_that_stands_still_is_probed_at_its_center() -> None:
    """Radius zero beside a group with a positive one: its sides are written ahead as well."""
    runs = [Run(captured, quick_steps=0, lr_c=0.0) for captured in (False, True)]
    for run in runs:
        torch.manual_seed(7)
        for i in range(4):
            if i == 2:
                run.optimizer.state[run.c]["probe_center"].add_(1.0)
            run.train()
    assert_equal(runs[0].everything(), runs[1].everything())


def test_steady_steps_capture_once_and_write_no_sides_but_the_first() -> None:
    """Only the parameter without state, whom no update looks ahead for, is written each time."""
    run = Run(captured=True)
    assert run.step is not None
    written: list[int] = []
    write = run.step._writer.write_sides
    run.step._writer.write_sides = lambda sites, draw: (  # type: ignore[method-assign]
        written.append(len(sites)),
        write(sites, draw),
    )
    for _ in range(6):
        run.train()
    assert run.step.captures == 2
    assert written == [4, 0, 1, 0, 1, 0]


def test_nothing_is_written_ahead_while_a_schedule_changes_the_radius() -> None:
    """Nor before a quick step."""
    run = Run(captured=True, quick_steps=0)
    assert run.step is not None
    assert run.step._ahead(full=True) == run.step._radii_now()
    run.optimizer.param_groups[0]["lr"] *= 0.9
    assert run.step._ahead(full=True) is None
    assert run.step._ahead(full=True) == run.step._radii_now()
    run.optimizer.param_groups[0]["quick_steps"] = 1
    assert run.step._ahead(full=True) is None


def test_state_replaced_behind_a_capture_is_noticed_in_zero_dimensions_too() -> None:
    run = Run(captured=True)
    assert run.step is not None
    run.train()
    state = run.optimizer.state[run.c]
    state["grad_avg"] = state["grad_avg"].clone()
    run.train()
    assert run.step.captures == 4


def test_capturing_leaves_no_trace() -> None:
    """Parameters, generator, everybody's gradients; only the state made ready for a first step."""
    run = Run(captured=False)
    run.other.grad = torch.ones(8)
    mine, before = run.other.grad, [p.detach().clone() for p in run.model.values()]
    random = torch.get_rng_state()
    ReplayedStep(run.optimizer, run.closure)
    assert_equal(before, [p.detach() for p in run.model.values()])
    assert torch.equal(random, torch.get_rng_state())
    assert all(p.grad is None for name, p in run.model.items() if name != "other")
    assert run.other.grad is mine
    assert mine.eq(1).all()


def test_a_closure_that_raises_while_captured_leaves_no_trace() -> None:
    """At its first, second, ... evaluation: the error arrives, and all is where it was."""
    run = Run(captured=False)
    before = [p.detach().clone() for p in run.model.values()]
    random, addresses = torch.get_rng_state(), [p.data_ptr() for p in run.model.values()]
    for last in range(5):
        left = list(range(last))
        run.hook = lambda left=left: left.pop()  # type: ignore[misc]
        with pytest.raises(IndexError):
            ReplayedStep(run.optimizer, run.closure)
        assert_equal(before, [p.detach() for p in run.model.values()])
        assert addresses == [p.data_ptr() for p in run.model.values()]
        assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("launch", [1, 2, 3])
def test_a_launch_that_fails_mixes_up_no_memory(
    launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some parameters are home again and others are not when an update is interrupted."""
    run = Run(captured=False)
    before = [p.detach().clone() for p in run.model.values()]
    addresses = [p.data_ptr() for p in run.model.values()]
    original, count = fused.TritonBackend._launch_update, [0]

    def failing(self: Any, *args: Any) -> None:
        count[0] += 1
        if count[0] == launch:
            raise KeyboardInterrupt
        original(self, *args)

    monkeypatch.setattr(fused.TritonBackend, "_launch_update", failing)
    with pytest.raises(KeyboardInterrupt):
        ReplayedStep(run.optimizer, run.closure)
    assert addresses == [p.data_ptr() for p in run.model.values()]
    assert_equal(before, [p.detach() for p in run.model.values()])


def test_a_capture_that_failed_is_tried_again() -> None:
    """State is loaded, capturing anew runs out of memory, and the next call succeeds."""
    run, plain = Run(captured=True), Run(captured=False)
    for each in (run, plain):
        torch.manual_seed(7)
        each.train()
        each.optimizer.load_state_dict(each.optimizer.state_dict())
    generator = torch.get_rng_state()

    def fail() -> None:
        raise torch.OutOfMemoryError("no room")

    run.hook = fail
    with pytest.raises(torch.OutOfMemoryError):
        run.train()
    run.hook = lambda: None
    for each in (run, plain):
        torch.set_rng_state(generator)
        each.train()
    assert_equal(run.everything(), plain.everything())


@pytest.mark.parametrize("where", ["stage", "replay", "after"])
def test_an_interrupted_step_leaves_no_points_that_pass_for_written(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written for another radius, or overwritten by the update: they are written again."""
    run = Run(captured=True, quick_steps=0, probe_radius=0.05)
    assert run.step is not None
    run.train()
    group, step = run.optimizer.param_groups[0], run.step
    recording = step._recordings[True]
    owner, name = {
        "stage": (recording.recorder, "stage"),
        "replay": (recording.graph, "replay"),
        "after": (step._sides, "note"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        group["probe_radius"] = 0.5
        with pytest.raises(KeyboardInterrupt):
            run.train()
    group["probe_radius"] = 0.05
    step._sites()
    for site in run.optimizer._sites:
        site.radius = capture.probe_radius(site.group)
    draw = run.optimizer._draw()
    assert len(step._sides.missing(draw)) == 4
