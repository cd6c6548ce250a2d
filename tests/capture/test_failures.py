"""Captures and replays that fail or are interrupted leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("captured steps proper are tested there", allow_module_level=True)
from aliceopt.kernels import triton_launch
from capture_cases import Idle, ReplayedStep, Run, assert_alike, assert_equal, both

# numpy, in the interpreter, warns of what a GPU does silently and the kernels then mask.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Marks:
    """Where a run stands: parameters with their memory, the generator, everybody's gradients."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.values = [p.detach().clone() for p in run.model.values()]
        self.places = [p.data_ptr() for p in run.model.values()]
        self.random = torch.get_rng_state()
        self.grad = run.other.grad
        self.grad_value = None if self.grad is None else self.grad.clone()

    def assert_kept(self) -> None:
        assert_equal(self.values, [p.detach() for p in self.run.model.values()])
        assert self.places == [p.data_ptr() for p in self.run.model.values()]
        assert torch.equal(self.random, torch.get_rng_state())
        assert all(p.grad is None for name, p in self.run.model.items() if name != "other")
        assert self.run.other.grad is self.grad
        if self.grad is not None:
            assert torch.equal(self.grad, self.grad_value)


@pytest.mark.parametrize("foreign", [False, True])
def test_capturing_leaves_no_trace(foreign: bool) -> None:
    """Parameters, generator, everybody's gradients; only the state made ready for a first step."""
    run = Run(captured=False)
    run.other.grad = torch.ones(8) if foreign else None
    marks = Marks(run)
    ReplayedStep(run.optimizer, run.closure)
    marks.assert_kept()


def test_a_capture_in_an_unfinished_loop_takes_the_parameters_home_first() -> None:
    """The loop is given up, as by any other step."""
    runs = both()
    marks = Marks(runs[0])
    loop = runs[0].optimizer.evaluations()
    next(loop)
    assert not torch.equal(runs[0].a.detach(), marks.values[0])
    runs[0].step = ReplayedStep(runs[0].optimizer, runs[0].closure)
    marks.assert_kept()
    loop.close()
    assert_alike(runs, 3, lambda run, i: None)


def test_a_closure_that_raises_while_captured_leaves_no_trace() -> None:
    """At each of its nine evaluations: the error arrives, all is where it was, and then it works.

    One finds out who gets gradients; each kind of step is rehearsed and recorded.
    """
    run, plain = Run(captured=False), Run(captured=False)
    run.other.grad, plain.other.grad = torch.ones(8), torch.ones(8)
    marks = Marks(run)
    for last in range(9):
        left = list(range(last))
        run.hook = lambda left=left: left.pop()  # type: ignore[misc]
        with pytest.raises(IndexError):
            ReplayedStep(run.optimizer, run.closure)
        marks.assert_kept()
    run.hook = lambda: None
    run.step = ReplayedStep(run.optimizer, run.closure)
    assert_alike([plain, run], 3, lambda run, i: None)


class Failing(Idle):
    """Of all launches of a name, one is interrupted."""

    def __init__(self, name: str, last: int) -> None:
        self._original, self._left = getattr(self, name), last
        setattr(self, name, self._launch)

    def _launch(self, *args: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            raise KeyboardInterrupt
        return self._original(*args, **options)


@pytest.mark.parametrize("name", ["move", "update", "square_sum"])
def test_a_launch_that_fails_mixes_up_no_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever launch it is, rehearsed or recorded; what launches do does not matter here."""
    run, plain = (Run(captured=False, wide=True, max_grad_norm=1.0) for _ in range(2))
    marks = Marks(run)
    for last in range(100):
        monkeypatch.setattr(triton_launch, "TritonKernels", lambda last=last: Failing(name, last))
        try:
            ReplayedStep(run.optimizer, run.closure)
            break
        except KeyboardInterrupt:
            marks.assert_kept()
    assert 4 <= last < 99
    monkeypatch.undo()
    run.step = ReplayedStep(run.optimizer, run.closure)
    assert_alike([plain, run], 2, lambda run, i: None)


def test_a_capture_that_failed_is_tried_again() -> None:
    """State is loaded, capturing anew runs out of memory, and the next call succeeds."""
    runs = both()

    def fail() -> None:
        raise torch.OutOfMemoryError("no room")

    def before(run: Run, i: int) -> None:
        if i == 1:
            run.optimizer.load_state_dict(run.optimizer.state_dict())
        if i == 1 and run.step is not None:
            run.hook = fail
            for _ in range(2):
                marks = Marks(run)
                marks.values[0] = run.a.detach().clone()
                with pytest.raises(torch.OutOfMemoryError):
                    run.train()
                marks.assert_kept()
            run.hook = lambda: None

    runs[0].other.grad, runs[1].other.grad = torch.ones(8), torch.ones(8)
    assert_alike(runs, 4, before)


@pytest.mark.parametrize("where", ["stage", "replay"])
def test_an_interrupted_step_is_no_step(where: str) -> None:
    """Before the graph has run: nothing counts, and the next call takes the step."""
    runs = both(quick_steps=0, probe_radius=0.05)

    def before(run: Run, i: int) -> None:
        if i != 2 or run.step is None:
            return
        recording, group = run.step._recordings[True], run.optimizer.param_groups[0]
        owner = {"stage": recording, "replay": recording.graph}[where]

        def fail(*args: Any) -> None:
            raise KeyboardInterrupt

        kept, grads = getattr(owner, where), [p.grad for p in run.model.values()]
        setattr(owner, where, fail)
        counts, random = run.optimizer.gradient_evaluations, torch.get_rng_state()
        group["probe_radius"] = 0.5
        with pytest.raises(KeyboardInterrupt):
            run.train()
        group["probe_radius"] = 0.05
        setattr(owner, where, kept)
        assert run.optimizer.gradient_evaluations == counts
        assert torch.equal(torch.get_rng_state(), random)
        assert all(p.grad is g for p, g in zip(run.model.values(), grads, strict=True))

    assert_alike(runs, 5, before)
