"""Whole training steps as CUDA graphs: one for quick steps, one for full ones, sharing memory.

A graph replays fixed launches on fixed addresses, so whatever changes from step to step (lr, bias
corrections, probe radius, step count) is read from device memory, which the host refreshes before
each replay without waiting. Counters, schedules, checkpoints and telemetry therefore work as they
do without a graph, and the trajectory is the same to the bit.

Dropout must draw the same masks in the three evaluations of a full step. Inside a graph the
generator cannot be wound back; each evaluation instead draws from a generator state of its own,
registered with the graph, and the host sets all of them alike before a replay.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .graphs import GraphRandom, detached, gradients_aside, no_collection
from .kernels import Backend, Backends, Job
from .kernels.pointing import go_home
from .kernels.recording import Moment, Recorder, Rehearsal, Sender
from .kernels.sides import Sides
from .layout import is_dtensor, local
from .options import check_groups, has_curvature, probe_radius
from .ownership import kept
from .probe import Probe, RandomState
from .site import Draw, Site, position_of
from .state import COUNTERS, fit_, jobs_of

if TYPE_CHECKING:
    from .alice import Alice

__all__ = ["CapturedStep", "capture"]

_STRUCTURE = ("limit", "hessian", "glass", "maximize", "max_grad_norm")


def capture(
    optimizer: Alice, closure: Callable[[], Any], static_inputs: Sequence[Tensor] = ()
) -> CapturedStep:
    """Capture ``closure`` (forward and backward on ``static_inputs``) and Alice's step around it.

    Call the result with new inputs, which are copied into the static ones::

        step = aliceopt.capture(optimizer, closure, static_inputs=(x, y))
        for batch, labels in loader:
            loss = step(batch, labels)

    The closure must only use the device, with static shapes and no data-dependent control flow.
    The loss it returns, and ``.grad``, are overwritten by the next call. Needs CUDA and Triton;
    parameters must be plain tensors on one device. Nothing is trained by capturing.
    """
    return CapturedStep(optimizer, closure, static_inputs)


class _Serving(Backends):
    """One given Triton backend for all sites."""

    def __init__(self, sender: Sender, sides: Sides):
        super().__init__("triton")
        from .kernels.fused import TritonBackend

        self.backend = TritonBackend(sender, sides)

    def split(self, sites: Sequence[Site]) -> Iterator[tuple[Backend, list[Site]]]:
        """All sites, if any."""
        if sites:
            yield self.backend, list(sites)


@dataclass
class _Recording:
    """One captured kind of step. ``sides`` and ``grads`` keep the graph's memory alive."""

    graph: torch.cuda.CUDAGraph
    recorder: Recorder
    sites: list[Site]
    grads: list[Tensor | None]
    sides: list[tuple[Tensor | None, Tensor | None]]
    extra_states: list[torch.Generator]
    loss: Any


class CapturedStep:
    """Alice's step with its evaluations, replayed from graphs; made by `capture`."""

    def __init__(
        self, optimizer: Alice, closure: Callable[[], Any], static_inputs: Sequence[Tensor]
    ):
        self.optimizer = optimizer
        self.closure = closure
        self.static_inputs = tuple(static_inputs)
        self._device = _check(optimizer)
        self._recordings: dict[bool, _Recording] = {}
        self._fingerprint: list[Any] | None = None
        self._untouched: list[Site] = []
        self._record()

    def __call__(self, *inputs: Tensor) -> Any:
        """One training step on these inputs, or on the static ones as they are."""
        if inputs and len(inputs) != len(self.static_inputs):
            raise ValueError(
                f"captured with {len(self.static_inputs)} static inputs, called with {len(inputs)}"
            )
        for i, (static, new) in enumerate(zip(self.static_inputs, inputs, strict=False)):
            if static.shape != new.shape:
                raise ValueError(
                    f"input {i} was captured with shape {tuple(static.shape)}, got "
                    f"{tuple(new.shape)}: capture again, or drop the last smaller batch"
                )
            static.copy_(new, non_blocking=True)
        return self.optimizer.step(self)

    # ---- recording ----------------------------------------------------------------------------

    def _record(self) -> None:
        with no_collection(), warnings.catch_warnings():
            # Gradients accumulated on another stream than usual: that is what a capture does.
            warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream.*")
            self._record_all()

    def _record_all(self) -> None:
        self._recordings.clear()
        self._fingerprint = None  # if this fails, the next call tries again
        self._set_sides(())
        with self._side_stream(), gradients_aside(self._foreign()):
            self._untouched += self._make_states()
            self._set_sides(self._sites())
            self._radii = self._radii_now()
            sizes = {full: self._rehearse(full) for full in self._kinds()}
        for full, nbytes in sizes.items():
            self._recordings[full] = self._record_kind(full, nbytes)
        for site in self._sites():
            site.reset()
            site.param.grad = None
        self._fingerprint = self._structure()

    @contextlib.contextmanager
    def _side_stream(self) -> Iterator[None]:
        here, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            yield
        here.wait_stream(side)

    def _set_sides(self, sites: Sequence[Site]) -> None:
        self._sides = Sides(sites)
        self._writer = _Serving(Sender(), self._sides).backend

    def _foreign(self) -> list[nn.Parameter]:
        """Parameters of the model that others train."""
        mine = set(map(id, self.optimizer._params()))
        model = self.optimizer.model
        return [p for p in (model.parameters() if model is not None else ()) if id(p) not in mine]

    def _kinds(self) -> list[bool]:
        """Quick always; full where a curvature term is on."""
        return [False, True] if any(map(has_curvature, self.optimizer.param_groups)) else [False]

    def _sites(self) -> list[Site]:
        return [site for site in self.optimizer._fresh_sites() if site.param.requires_grad]

    def _probe(self, full: bool, backends: Backends, random: RandomState | None = None) -> Probe:
        sites = self._sites()
        for site in sites:
            # Any positive number: what is recorded is that this site is displaced. One that has no
            # state and cannot be pointed would be displaced by that very number.
            displaced = full and has_curvature(site.group) and (site.ready or site in self._sides)
            site.radius = 1.0 if displaced else 0.0
        model = self.optimizer.model
        return Probe(sites, Draw(0, 0), full, backends, model, random=random, keep=kept)

    def _make_states(self) -> list[Site]:
        """Evaluate once, leaving no trace, to see which parameters get gradients.

        Returns those that had no state before.
        """
        optimizer = self.optimizer
        probe = self._probe(False, optimizer._backends)
        made = []
        try:
            with torch.enable_grad():
                self.closure()
            with torch.no_grad():
                for site in probe.sites:
                    if site.param.grad is not None:
                        made += [] if site.state else [site]
                        site.position = position_of(site)
                        fit_(site)
                        optimizer.state[site.param] = site.state
        finally:
            probe.cancel()
        self._check_layouts(probe.sites)
        return made

    def _check_layouts(self, sites: Sequence[Site]) -> None:
        from .kernels.fused import TritonBackend

        backend = TritonBackend()
        for site in sites:
            if site.state and site.numel and not backend._can(site):
                raise ValueError(
                    f"capture needs dense parameters, got one of shape {tuple(site.param.shape)} "
                    f"with strides {site.param.stride()}"
                )

    def _rehearse(self, full: bool) -> int:
        """A step with every launch but no effect: compiles kernels and fills library caches.

        Returns the bytes of launch tables and numbers it needed.
        """
        rehearsal = Rehearsal()
        probe = self._probe(full, _Serving(rehearsal, self._sides))
        watch = self.optimizer._watch_buffers(probe)
        try:
            self._run(probe)
        finally:
            probe.cancel()
            if watch is not None:
                watch.stop()
        return rehearsal.nbytes

    def _run(self, probe: Probe) -> Any:
        loss = None
        for name in probe.rounds:
            probe.begin(name)
            with torch.enable_grad():
                loss = self.closure()
            probe.end(name)
        with torch.no_grad():
            jobs = jobs_of(probe.sites, full=probe.full)
            probe.update(jobs, self.optimizer._shared("max_grad_norm"))
        return loss

    @property
    def _generator(self) -> torch.Generator:
        generator: torch.Generator = torch.cuda.default_generators[self._device.index or 0]
        return generator

    def _record_kind(self, full: bool, nbytes: int) -> _Recording:
        graph, recorder = torch.cuda.CUDAGraph(), Recorder(nbytes, self._device)
        pool = next((there.graph.pool() for there in self._recordings.values()), None)
        main = self._generator.graphsafe_get_state()
        extra = [self._generator.clone_state() for _ in range(2 if full else 0)]
        for state in extra:
            graph.register_generator_state(state)
        try:
            with torch.cuda.graph(graph, pool=pool):
                random = GraphRandom(self._generator, [*extra, main])
                probe = self._probe(full, _Serving(recorder, self._sides), random)
                loss = self._run(probe)
        except BaseException:
            # Nothing has run, so nothing needs undoing but where parameters point.
            go_home([site for site in self.optimizer._sites if site.home is not None])
            raise
        finally:
            self._generator.graphsafe_set_state(main)
        recorder.flush()
        return _Recording(
            graph=graph,
            recorder=recorder,
            sites=[site for site in probe.sites if site.param.grad is not None],
            grads=[site.param.grad for site in probe.sites],
            sides=[(site.plus, site.minus) for site in probe.sites],
            extra_states=extra,
            loss=detached(loss),
        )

    # ---- replaying ----------------------------------------------------------------------------

    def _structure(self) -> list[Any]:
        """What a recording depends on: addresses, and options that shape the kernels."""
        optimizer = self.optimizer
        options = [tuple(group[name] for name in _STRUCTURE) for group in optimizer.param_groups]
        params = [(p.data_ptr(), p.requires_grad) for p in optimizer._params()]
        states = [
            [v.data_ptr() for name, v in site.state.items() if name not in COUNTERS]
            for site in optimizer._sites
        ]
        return [optimizer._sites, options, params, states]

    def replay(self, optimizer: Alice) -> Any:
        """Replay the step that is due; called by ``optimizer.step``."""
        if optimizer is not self.optimizer:
            raise ValueError("this step was captured with another optimizer")
        check_groups(optimizer.param_groups)
        sites = self._sites()
        if self._structure() != self._fingerprint:
            self._record()
            sites = self._sites()
        full = optimizer._full_due() and any(
            probe_radius(group) > 0 for group in optimizer.param_groups
        )
        jobs = self._jobs(sites, full)
        if not self._recordings[full].recorder.fits({job.site: job.rates for job in jobs}):
            self._record()  # parameters that shared their numbers have been updated unequally since
            jobs = self._jobs(self._sites(), full)
        self._replay(self._recordings[full], jobs, full)
        optimizer._count(jobs, full)
        return self._recordings[full].loss

    def _replay(self, recording: _Recording, jobs: list[Job], full: bool) -> None:
        draw, ahead = self.optimizer._draw(), self._ahead(full)
        self._begin_at_the_positions()
        missing = self._sides.missing(draw) if full else []
        self._sides.forget()  # an interrupt may come anywhere from here to the note
        self._writer.write_sides(missing, draw)
        for state in recording.extra_states:
            state.set_state(self._generator.get_state())
        recording.recorder.stage(Moment(draw, {job.site: job.rates for job in jobs}, ahead))
        recording.graph.replay()
        self._sides.note(recording.sites, draw._replace(step=draw.step + 1), ahead or {})

    @torch.no_grad()
    def _begin_at_the_positions(self) -> None:
        """A first step starts from the parameters as they are now, not as they were captured."""
        for site in self._untouched:
            if site.state.get("step", 1) == 0:
                site.state["probe_center"].copy_(site.param)
        self._untouched = []

    def _radii_now(self) -> dict[int, float]:
        return {id(group): probe_radius(group) for group in self.optimizer.param_groups}

    def _ahead(self, full: bool) -> dict[int, float] | None:
        """The next step's radii, if it is a full one and no schedule is seen to change them."""
        optimizer = self.optimizer
        before, self._radii = self._radii, self._radii_now()
        advances = full or not optimizer._full_due()  # else this one's full step stays due
        due = (optimizer._shared("cadence") + 1) % (optimizer._shared("quick_steps") + 1) == 0
        return self._radii if advances and due and self._radii == before else None

    def _jobs(self, sites: list[Site], full: bool) -> list[Job]:
        """The updates of the recorded step, with radii and gradients as they will be."""
        recording = self._recordings[full]
        for site in sites:
            site.radius = probe_radius(site.group) if full else 0.0
        for site, grad in zip(sites, recording.grads, strict=True):
            site.param.grad = grad
        return jobs_of(recording.sites, full=full)


def _check(optimizer: Alice) -> torch.device:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    devices = {local(p).device for p in params}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        raise ValueError(f"capture needs all parameters on one CUDA device, got {devices}")
    if any(is_dtensor(p) for p in params):
        raise ValueError("capture needs plain tensors, got DTensor parameters")
    if optimizer.implementation not in ("auto", "triton"):
        raise ValueError(
            f"capture needs implementation 'auto' or 'triton', got {optimizer.implementation!r}"
        )
    return next(iter(devices))
