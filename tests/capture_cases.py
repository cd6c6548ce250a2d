"""Captured steps on the CPU: everything of `aliceopt.capture` but the CUDA graph itself.

A recorded step becomes one that is run again, with the launch numbers that were staged for it,
as a graph would run it. Needs Triton's interpreter.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aliceopt import Alice
from aliceopt.kernels.recording import Moment, Recorder, Rehearsal, Rows, Sender
from aliceopt.probe import BufferGuard, Probe
from aliceopt.site import Draw, Site

capture = importlib.import_module("aliceopt.capture")
CPU = torch.device("cpu")


class Staged(Recorder):
    """Knows the numbers of the step to come, and the radii they are made with."""

    def __init__(self, sites: list[Site]) -> None:
        super().__init__(0, CPU)
        self._sites = sites
        self.moment: Moment | None = None
        self.radii: Mapping[Site, float] = {}

    def numbers(self, rows: Rows, moment: Moment, device: torch.device) -> Tensor:
        self._numbers.append((torch.empty(0), rows))
        return Sender.table(self, rows.made(moment), device)

    def table(self, array: Any, device: torch.device) -> Tensor:
        return Sender.table(self, array, device)

    def stage(self, moment: Moment) -> None:
        self.moment, self.radii = moment, {site: site.radius for site in self._sites}


class Replaying(Sender):
    """Sends what was staged, whatever the step itself would send."""

    def __init__(self, staged: Staged) -> None:
        self._staged = staged

    def numbers(self, rows: Rows, moment: Moment, device: torch.device) -> Tensor:
        assert self._staged.moment is not None
        with radii(self._staged.radii):
            return super().numbers(rows, self._staged.moment, device)


@contextlib.contextmanager
def radii(wanted: Mapping[Site, float]) -> Iterator[None]:
    before = {site: site.radius for site in wanted}
    for site, radius in wanted.items():
        site.radius = radius
    yield
    for site, radius in before.items():
        site.radius = radius


class Graph:
    """Something that can be replayed."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = run


class Dry(Rehearsal):
    """A rehearsal that also remembers, as a recorder does, who shares numbers."""

    def __init__(self, staged: Staged) -> None:
        super().__init__()
        self._staged = staged

    def numbers(self, rows: Rows, moment: Moment, device: torch.device) -> Tensor:
        self._staged.numbers(rows, moment, device)
        return super().numbers(rows, moment, device)


class ReplayedStep(capture.CapturedStep):
    """A captured step whose graphs are functions."""

    captures = 0

    def __init__(self, optimizer: Alice, closure: Callable[[], Any]) -> None:
        check = capture._check
        capture._check = lambda optimizer: CPU
        try:
            super().__init__(optimizer, closure, ())
        finally:
            capture._check = check

    def _side_stream(self) -> Any:
        return contextlib.nullcontext()

    def _record_kind(self, full: bool, nbytes: int) -> Any:
        self.captures += 1
        staged, guard = Staged(self._sites()), BufferGuard(self.optimizer.model)
        random = torch.get_rng_state()
        probe = self._probe(full, capture._Serving(Dry(staged), self._sides))
        with capture.gradients_aside(self._foreign()):
            loss = capture.detached(self._run(probe))  # every launch, and no effect
        torch.set_rng_state(random)
        guard.restore()
        grads = [site.param.grad for site in probe.sites]

        def replay() -> None:
            sites = probe.sites
            recorded = {site: site.radius for site in sites}
            for site in sites:
                site.reset()
                site.radius = recorded_radius[site]
            serving = capture._Serving(Replaying(staged), self._sides)
            again = Probe(sites, Draw(0, 0), full, serving, self.optimizer.model, keep=capture.kept)
            loss.copy_(self._run(again).detach())
            for site, grad in zip(sites, grads, strict=True):
                if grad is not None:
                    site.param.grad = grad.copy_(site.param.grad)
                site.radius = recorded[site]

        recorded_radius = {site: site.radius for site in probe.sites}
        return capture._Recording(
            graph=Graph(replay),
            recorder=staged,
            sites=[site for site in probe.sites if site.param.grad is not None],
            grads=grads,
            sides=[(site.plus, site.minus) for site in probe.sites],
            extra_states=[],
            loss=loss,
        )
