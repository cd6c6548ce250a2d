"""Captured steps are the uncaptured ones to the bit, and everything around them goes on working."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aliceopt
from aliceopt import Alice

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


def network(dropout: float = 0.3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 40),
        nn.Dropout(dropout),
        nn.ReLU(),
        nn.Linear(40, 5),
    ).cuda()


def batches(count: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    images = torch.randn(count, 16, 3, 6, 6, generator=draws).cuda()
    return images, torch.randint(0, 5, (count, 16), generator=draws).cuda()


class Run:
    """A small training run, captured or not, with everything that tells two of them apart."""

    def __init__(self, captured: bool, **options: Any):
        self.model = network()
        given = {"lr": 0.01, "quick_steps": 2, "weight_decay": 0.1, "model": self.model}
        self.optimizer = Alice(self.model.parameters(), **{**given, **options})
        self.x, self.y = (t[0].clone() for t in batches(1))
        self.captured = captured
        self.step = self._capture() if captured else None
        self.losses: list[float] = []

    def _closure(self) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        return loss

    def _capture(self) -> aliceopt.CapturedStep:
        return aliceopt.capture(self.optimizer, self._closure, (self.x, self.y))

    def train(self, x: Tensor, y: Tensor, *, replay: bool = True) -> None:
        if self.step is not None and replay:
            loss = self.step(x, y)
        else:
            self.x.copy_(x)
            self.y.copy_(y)
            loss = self.optimizer.step(self._closure)
        self.losses.append(loss.item())

    def everything(self) -> list[Tensor]:
        states = [v for s in self.optimizer.state.values() for v in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *states]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [t.detach().clone() for t in (*tensors, *grads, torch.cuda.get_rng_state())]


@pytest.fixture
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hessian": "signed", "limit": "fixed", "max_grad_norm": 2.0},
        {"hessian": "none", "glass": False},
        {"quick_steps": 0, "hessian": "rms", "maximize": True},
    ],
    ids=str,
)
def test_captured_and_uncaptured_runs_are_equal_to_the_bit(options: dict[str, Any]) -> None:
    """Dropout, BatchNorm, a schedule from lr 0: losses, parameters, buffers, state, generator."""
    runs = [Run(captured, **options) for captured in (False, True)]
    for run in runs:
        torch.cuda.manual_seed(7)
        scheduler = torch.optim.lr_scheduler.LinearLR(run.optimizer, 1e-9, total_iters=6)
        for x, y in zip(*batches(14), strict=True):
            run.train(x, y)
            scheduler.step()
    assert runs[0].losses == runs[1].losses
    pairs = zip(runs[0].everything(), runs[1].everything(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert runs[0].optimizer.telemetry() == runs[1].optimizer.telemetry()


def intervene(run: Run, change: str, i: int) -> None:
    """Something a user may do before step ``i`` that the step before could not foresee."""
    groups = run.optimizer.param_groups
    if change == "a schedule":
        groups[0]["lr"] *= 0.9
    elif change == "another radius" and i in (3, 7):
        groups[0]["probe_radius"] = 0.02 * i
    elif change == "another seed" and i == 6:
        groups[0]["seed"] = 5
    elif change == "fewer quick steps" and i == 4:
        groups[0]["quick_steps"] = 0
    elif change == "an edited center" and i in (3, 6):
        run.optimizer.state[run.model[4].weight]["probe_center"].mul_(1.01)
    elif change == "an edited parameter" and i == 3:
        with torch.no_grad():
            run.model[4].weight.mul_(1.01)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("quick_steps", [0, 2])
@pytest.mark.parametrize(
    "change",
    [
        "nothing",
        "a schedule",
        "another radius",
        "another seed",
        "fewer quick steps",
        "an edited center",
        "an edited parameter",
        "uncaptured steps",
    ],
)
def test_what_no_step_could_foresee_is_followed(change: str, quick_steps: int) -> None:
    """The sides of a full step are written by the step before; captured runs stay bit-equal."""
    runs = [Run(captured, quick_steps=quick_steps) for captured in (False, True)]
    for run in runs:
        torch.cuda.manual_seed(7)
        for i, (x, y) in enumerate(zip(*batches(11), strict=True)):
            intervene(run, change, i)
            run.train(x, y, replay=change != "uncaptured steps" or i not in (2, 3, 6))
    assert runs[0].losses == runs[1].losses
    pairs = zip(runs[0].everything(), runs[1].everything(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("quick_steps", [0, 2])
def test_a_full_step_finds_its_sides_written(
    quick_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a steady radius only the first full step of all writes them; with a schedule, each."""
    run = Run(captured=True, quick_steps=quick_steps)
    assert run.step is not None
    written: list[int] = []
    monkeypatch.setattr(
        run.step._writer, "write_sides", lambda sites, draw: written.append(len(sites))
    )
    x, y = (t[0] for t in batches(1))
    for _ in range(3 * quick_steps + 3):
        run.step(x, y)
    everything = len(list(run.model.parameters()))
    assert written == [everything] + [0] * (3 * quick_steps + 2)
    for _ in range(quick_steps + 1):
        run.optimizer.param_groups[0]["lr"] *= 0.9
        run.step(x, y)
    assert written[3 * quick_steps + 3 :] == [everything] + [0] * quick_steps


@pytest.mark.gpu
@needs_cuda
def test_steps_replay_what_was_captured_and_return_a_plain_loss() -> None:
    """Nothing is captured twice, and no autograd graph of the capture is left behind."""
    run = Run(captured=True)
    assert run.step is not None
    graphs = [recording.graph for recording in run.step._recordings.values()]
    x, y = (t[0] for t in batches(1))
    losses = [run.step(x, y) for _ in range(4)]
    after = [recording.graph for recording in run.step._recordings.values()]
    assert all(a is b for a, b in zip(graphs, after, strict=True))
    assert all(loss.grad_fn is None for loss in losses)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("deterministic")
def test_capturing_trains_nothing() -> None:
    """Parameters, buffers, counters and generator are the same before and after."""
    run = Run(captured=False)
    before, state = run.everything(), copy.deepcopy(run.optimizer.state_dict()["param_groups"])
    run._capture()
    run.optimizer.state.clear()
    assert all(torch.equal(a, b) for a, b in zip(before, run.everything(), strict=True))
    assert run.optimizer.state_dict()["param_groups"] == state


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("deterministic")
def test_a_checkpoint_loaded_into_a_captured_run_continues_it() -> None:
    """State tensors change address; the step is captured anew and goes on to the bit."""
    images, labels = batches(10)
    through, resumed = Run(captured=True), Run(captured=True)
    for i in range(5):
        through.train(images[i], labels[i])
    saved = copy.deepcopy((through.model.state_dict(), through.optimizer.state_dict()))
    generator = torch.cuda.get_rng_state()
    for i in range(5, 10):
        through.train(images[i], labels[i])
    resumed.model.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    torch.cuda.set_rng_state(generator)
    for i in range(5, 10):
        resumed.train(images[i], labels[i])
    assert through.losses[5:] == resumed.losses
    assert all(
        torch.equal(a, b) for a, b in zip(through.everything(), resumed.everything(), strict=True)
    )


@pytest.mark.gpu
@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_twenty_steps_never_wait_for_the_device() -> None:
    """Eager and captured steps of the Triton form run under sync debug mode "error"."""
    for captured in (False, True):
        run = Run(captured)
        x, y = (t[0] for t in batches(1))
        run.train(x, y)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                if captured:
                    run.step(x, y)
                else:
                    run.optimizer.step(run._closure)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@needs_cuda
def test_wrong_inputs_are_refused_by_number_and_shape() -> None:
    """Another count or shape than captured raises before anything is copied."""
    run = Run(captured=True)
    x, y = (t[0] for t in batches(1))
    with pytest.raises(ValueError, match="2 static inputs, called with 1"):
        run.step(x)
    with pytest.raises(
        ValueError, match=r"input 0 was captured with shape \(16, 3, 6, 6\), got \(8"
    ):
        run.step(x[:8], y[:8])


def test_capture_on_the_cpu_is_refused() -> None:
    """The error names the devices found."""
    optimizer = Alice([nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match=r"one CUDA device, got .*cpu"):
        aliceopt.capture(optimizer, lambda: None)
