"""Captured steps on the CPU: everything of `aliceopt.capture` but the CUDA graph itself.

A recorded step becomes one that is run again, with the numbers that were staged for it and the
random states that were set for it, as a graph would run it. Needs Triton's interpreter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.capture import CapturedStep
from aliceopt.capture.graphs import detached, gradients_aside
from aliceopt.capture.recording import NUMBERS, Recording, Rehearsal, Tables
from aliceopt.kernels.table import Goal, Launch, Row
from aliceopt.kernels.triton_launch import TritonKernels
from aliceopt.ownership import kept
from aliceopt.probe import BufferGuard, Probe
from aliceopt.site import Draw
from paper import paper_alice

LASTING = sorted(set(range(Row.ROWS)) - {*NUMBERS, Row.GRAD, Row.PLUS, Row.MINUS})
"""Rows that must be the same in every replay: all but numbers and where gradients happen to be."""


class Graph:
    """Something that can be replayed."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = run


class Replaying:
    """Sends the tables of a step that is run again, with the numbers that were staged."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.used = 0

    def send(self, array: np.ndarray, device: torch.device) -> Tensor:
        assert array.ndim == 2, "chunks are sent before, not during a capture"
        staged = self.tables.there[self.used].numpy()
        assert (array[:, LASTING] == staged[:, LASTING]).all(), "the graph would read elsewhere"
        array = array.copy()
        array[:, NUMBERS] = staged[:, NUMBERS]
        self.used += 1
        return torch.from_numpy(array)


class Idle(TritonKernels):
    """Launches nothing, as a capture does."""

    def move(self, launch: Launch, goal: Goal, *, depart: bool, swap: bool) -> None:
        pass

    def update(self, launch: Launch, clip: Tensor | None) -> None:
        pass

    def square_sum(self, launch: Launch) -> Tensor:
        return torch.zeros((), dtype=torch.float64)


class ReplayedStep(CapturedStep):
    """A captured step whose graphs are functions."""

    captures = 0

    def __init__(self, optimizer: Alice, closure: Callable[[], Any]) -> None:
        super().__init__(optimizer, closure, ())

    def _check(self) -> torch.device:
        return torch.device("cpu")

    def _new_stream(self) -> Any:
        return None

    def _beside(self) -> Any:
        return contextlib.nullcontext()

    @property
    def _generator(self) -> torch.Generator:
        return torch.default_generator

    def _record_kind(self, measuring: bool, rehearsal: Rehearsal) -> Recording:
        self.captures += 1
        plan = self._backend.plan(self._sites())
        tables = Tables(rehearsal.tables, plan.host.T.shape, self._device)
        backend, kernels, random = self._backend, self._backend.kernels, self._generator
        backend.send = tables.send
        backend.kernels = kernels if isinstance(kernels, Idle) else Idle()
        guard, before = BufferGuard(self.optimizer.model), random.get_state()
        try:
            with gradients_aside(self._foreign()):
                probe = self._probe(measuring)
                loss = detached(self._run(probe))
                foreign = [(p, p.grad) for p in self._foreign() if p.grad is not None]
        except BaseException:
            backend.abandon()
            raise
        finally:
            backend.kernels = kernels
            random.set_state(before)
            guard.restore()
        recording = Recording(
            graph=None,  # type: ignore[arg-type]
            plan=plan,
            tables=tables,
            sites=probe.sites,
            grads=[site.param.grad for site in probe.sites],
            updating=[site for site in probe.sites if site.param.grad is not None],
            foreign=foreign,
            states=[torch.Generator() for _ in probe.rounds],
            loss=loss,
        )
        radii = [site.radius for site in probe.sites]
        recording.graph = Graph(lambda: self._run_again(recording, measuring, radii))  # type: ignore[assignment]
        return recording

    def _run_again(self, recording: Recording, measuring: bool, radii: list[float]) -> None:
        sites, grads = recording.sites, [site.param.grad for site in recording.sites]
        wanted = [site.radius for site in sites]
        for site, radius in zip(sites, radii, strict=True):
            site.radius = radius
        replaying = Replaying(recording.tables)
        self._backend.send = replaying.send
        outside = self._generator.get_state()
        self._generator.set_state(recording.states[0].get_state())
        with gradients_aside(self._foreign()):
            model = self.optimizer.model
            loss = self._run(Probe(sites, Draw(0, 0), measuring, self._backends, model, keep=kept))
            for param, grad in recording.foreign:
                assert param.grad is not None
                grad.copy_(param.grad)
        for state in recording.states:
            state.set_state(self._generator.get_state())
        self._generator.set_state(outside)
        assert replaying.used == len(recording.tables.host)
        recording.loss.copy_(loss.detach())
        for site, grad, radius, mine in zip(sites, recording.grads, wanted, grads, strict=True):
            if grad is not None:
                grad.copy_(site.gradient)
            site.param.grad, site.radius = mine, radius


class Run:
    """A small problem with kinks, in two groups.

    One parameter is displaced but not trained, and one is trained by others. A wide run also has
    two that cannot be pointed: one in low precision, and one that is part of a larger buffer.
    """

    def __init__(self, captured: bool, *, wide: bool = False, **options: Any):
        torch.manual_seed(1)
        shapes: dict[str, tuple[int, ...]] = {"a": (8,), "b": (4,), "c": (), "idle": (8,)}
        self.model = nn.ParameterDict({name: torch.randn(n) for name, n in shapes.items()})
        if wide:
            self.model["low"] = nn.Parameter(torch.randn(4).half())
            self.model["part"] = nn.Parameter(torch.randn(12)[:4])
        mine = [p for name, p in self.model.items() if name != "c"]
        self.model["other"] = torch.randn(8)
        self.a, self.b, self.c, self.idle, self.other = (
            self.model[name] for name in ("a", "b", "c", "idle", "other")
        )
        groups = [{"params": mine}, {"params": [self.c], "lr": options.pop("lr_c", 0.03)}]
        given = {"lr": 0.01, "quick_steps": 1, "model": self.model, "implementation": "triton"}
        self.optimizer = paper_alice(groups, **{**given, **options})
        self.missing: tuple[str, ...] = ()
        self.hook: Callable[[], None] = lambda: None
        self.step: Any = ReplayedStep(self.optimizer, self.closure) if captured else None

    def closure(self) -> Tensor:
        self.hook()
        b = self._seen("b")
        x = self.a - self.idle.detach() + self.other
        loss = (x**4).sum() + b.abs().sum() * (1 + self.c**2) + (b**2).sum()
        loss = loss + nn.functional.dropout(self.a, 0.5).sum()
        if "part" in self.model:
            part, low = self._seen("part"), self.model["low"].float()
            loss = loss + (part * low - 1).abs().sum() + (part**2).sum()
        loss.backward()
        return loss

    def _seen(self, name: str) -> Tensor:
        return self.model[name].detach() if name in self.missing else self.model[name]

    def train(self, *, replay: bool = True) -> float:
        use = self.step if self.step is not None and replay else self.closure
        return float(self.optimizer.step(use).detach())

    def everything(self) -> list[Tensor]:
        states = [v for p in self.model.values() for _, v in sorted(self._state(p).items())]
        tensors = [*self.model.values(), *states, torch.get_rng_state()]
        tensors += [p.grad for p in self.model.values() if p.grad is not None]
        return [t.detach().clone() for t in tensors]

    def _state(self, param: nn.Parameter) -> dict[str, Tensor]:
        return self.optimizer.state.get(param, {})


def both(**options: Any) -> list[Run]:
    """An uncaptured run and a captured one."""
    return [Run(captured, **options) for captured in (False, True)]


def assert_equal(a: list[Tensor], b: list[Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def assert_alike(runs: list[Run], steps: int, before: Callable[[Run, int], Any]) -> None:
    """Trained with something done before every step, both runs are equal to the bit.

    What is done says whether a captured run replays that step.
    """
    losses = []
    for run in runs:
        torch.manual_seed(7)
        losses.append([run.train(replay=before(run, i) is not False) for i in range(steps)])
    assert losses[0] == losses[1]
    assert_equal(runs[0].everything(), runs[1].everything())
