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
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .kernels import Backend, Backends, Job
from .kernels.pointing import go_home
from .kernels.recording import Moment, Recorder, Rehearsal, Sender
from .kernels.sides import Sides
from .layout import is_dtensor, local
from .options import check_groups, has_curvature, probe_radius
from .ownership import kept
from .probe import Probe, RandomState
from .site import Draw, Site, position_of
from .state import fit_, jobs_of

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


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now and not for a while.

    A graph that dies while another is captured takes the random generator's state along.
    """
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _GraphRandom(RandomState):
    """Gives every evaluation of a step its own state of the default generator."""

    def __init__(self, generator: torch.Generator, states: Sequence[torch.Generator]):
        self._generator = generator
        self._states = iter(states)
        self.restore()

    def restore(self) -> None:
        """On to the next evaluation's state."""
        self._generator.graphsafe_set_state(next(self._states))


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
        self._generator = torch.cuda.default_generators[self._device.index or 0]
        self._recordings: dict[bool, _Recording] = {}
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
        with _no_collection(), warnings.catch_warnings():
            # Gradients accumulated on another stream than usual: that is what a capture does.
            warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream.*")
            self._record_all()

    def _record_all(self) -> None:
        self._recordings.clear()
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            self._make_states()
            self._fingerprint, self._known_sites = self._structure(), self.optimizer._sites
            self._sides = Sides(self._sites())
            self._writer = _Serving(Sender(), self._sides).backend
            self._radii = self._radii_now()
            sizes = {full: self._rehearse(full) for full in self._kinds()}
        torch.cuda.current_stream(self._device).wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        for full, nbytes in sizes.items():
            self._recordings[full] = self._record_kind(full, nbytes, pool)
        for site in self._sites():
            site.reset()
            site.param.grad = None

    def _kinds(self) -> list[bool]:
        """Quick always; full where a curvature term is on."""
        return [False, True] if any(map(has_curvature, self.optimizer.param_groups)) else [False]

    def _sites(self) -> list[Site]:
        return [site for site in self.optimizer._fresh_sites() if site.param.requires_grad]

    def _probe(self, full: bool, backends: Backends, random: RandomState | None = None) -> Probe:
        sites = self._sites()
        for site in sites:
            # Any positive number: what is recorded is that this site is displaced.
            site.radius = 1.0 if full and has_curvature(site.group) else 0.0
        model = self.optimizer.model
        return Probe(sites, Draw(0, 0), full, backends, model, random=random, keep=kept)

    def _make_states(self) -> None:
        """Evaluate once, leaving no trace, to see which parameters get gradients."""
        optimizer = self.optimizer
        probe = self._probe(False, optimizer._backends)
        with torch.enable_grad():
            self.closure()
        with torch.no_grad():
            for site in probe.sites:
                if site.param.grad is not None:
                    site.position = position_of(site)
                    fit_(site)
                    optimizer.state[site.param] = site.state
        probe.cancel()
        from .kernels.fused import TritonBackend

        backend = TritonBackend()
        for site in probe.sites:
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

    def _record_kind(self, full: bool, nbytes: int, pool: Any) -> _Recording:
        graph, recorder = torch.cuda.CUDAGraph(), Recorder(nbytes, self._device)
        main = self._generator.graphsafe_get_state()
        extra = [self._generator.clone_state() for _ in range(2 if full else 0)]
        for state in extra:
            graph.register_generator_state(state)
        try:
            with torch.cuda.graph(graph, pool=pool):
                random = _GraphRandom(self._generator, [*extra, main])
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
            loss=tree_map(_detached, loss),
        )

    # ---- replaying ----------------------------------------------------------------------------

    def _structure(self) -> list[Any]:
        """What a recording depends on: addresses, and options that shape the kernels."""
        optimizer = self.optimizer
        options = [tuple(group[name] for name in _STRUCTURE) for group in optimizer.param_groups]
        params = [(p.data_ptr(), p.requires_grad) for p in optimizer._params()]
        states = [
            [v.data_ptr() for v in site.state.values() if v.dim()] for site in optimizer._sites
        ]
        return [options, params, states]

    def replay(self, optimizer: Alice) -> Any:
        """Replay the step that is due; called by ``optimizer.step``."""
        if optimizer is not self.optimizer:
            raise ValueError("this step was captured with another optimizer")
        check_groups(optimizer.param_groups)
        sites = self._sites()
        moved = optimizer._sites is not self._known_sites
        if moved or self._structure() != self._fingerprint:
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
        if full:
            self._writer.write_sides(self._sides.missing(draw), draw)
        for state in recording.extra_states:
            state.set_state(self._generator.get_state())
        recording.recorder.stage(Moment(draw, {job.site: job.rates for job in jobs}, ahead))
        self._sides.forget()  # first: an interrupt may come between the replay and the note
        recording.graph.replay()
        self._sides.note(recording.sites, draw._replace(step=draw.step + 1), ahead or {})

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


def _detached(value: Any) -> Any:
    """Without its autograd graph, which would keep nodes alive that belong to the capture."""
    return value.detach() if isinstance(value, Tensor) else value


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
