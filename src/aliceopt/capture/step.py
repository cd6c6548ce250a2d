"""Whole training steps as CUDA graphs: one for quick steps, one for measuring ones, sharing memory.

A graph replays fixed launches on fixed addresses, so whatever changes from step to step (lr, bias
corrections, probe radius, step count) is read from device memory, which the host refreshes before
each replay without waiting. Counters, schedules, checkpoints and telemetry therefore work as they
do without a graph, and the trajectory is the same to the bit.

Dropout must draw the same masks in the three evaluations of a measuring step. Inside a graph the
generator cannot be wound back; each evaluation instead draws from a generator state of its own,
registered with the graph, and the host sets all of them alike before a replay. So do graphs that
are replayed at the same time not share one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..kernels import Backends
from ..kernels.table import DIMS
from ..options import has_curvature, prepare_gradients_
from ..ownership import kept
from ..probe import Probe, RandomState
from ..sharding import is_dtensor, local
from ..site import COUNTERS, Draw, Site
from .graphs import GraphRandom, detached, gradients_aside, no_collection
from .pointing import PointingBackend

if TYPE_CHECKING:
    from ..alice import Alice
    from ..driving import Driving
    from .recording import Recording, Rehearsal

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


class CapturedStep:
    """Alice's step with its evaluations, replayed from graphs; made by `capture`."""

    def __init__(
        self, optimizer: Alice, closure: Callable[[], Any], static_inputs: Sequence[Tensor]
    ):
        self.optimizer = optimizer
        self.closure = closure
        self.static_inputs = tuple(static_inputs)
        self._device = self._check()
        self._stream = self._new_stream()
        self._backend: PointingBackend
        self._recordings: dict[bool, Recording] = {}
        self._fingerprint: list[Any] | None = None
        self._untouched: list[Site] = []
        optimizer._drop_probe()
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
        for static, new in zip(self.static_inputs, inputs, strict=False):
            static.copy_(new, non_blocking=True)
        return self.optimizer.step(self)

    # ---- recording ----------------------------------------------------------------------------

    def _check(self) -> torch.device:
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        devices = {local(p).device for p in params}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            raise ValueError(f"capture needs all parameters on one CUDA device, got {devices}")
        if any(is_dtensor(p) for p in params):
            raise ValueError("capture needs plain tensors, got DTensor parameters")
        implementation = self.optimizer.implementation
        if implementation not in ("auto", "triton"):
            raise ValueError(
                f"capture needs implementation 'auto' or 'triton', got {implementation!r}"
            )
        return next(iter(devices))

    def _new_stream(self) -> torch.cuda.Stream:
        """A stream of its own: libraries keep a workspace for each, which graphs that run at the
        same time must not share.
        """
        return torch.cuda.Stream(self._device)

    def _record(self) -> None:
        if self._check() != self._device:
            raise ValueError(f"the parameters were captured on {self._device} and have left it")
        self._fingerprint = None  # if this fails, the next call tries again
        aside, paused = gradients_aside(self._foreign()), self.optimizer.looking_ahead.paused()
        with no_collection(), warnings.catch_warnings(), aside, paused:
            # Gradients accumulated on another stream than usual: that is what a capture does.
            warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream.*")
            try:
                with self._beside():
                    self._recordings.clear()
                    self._untouched = self._make_states()
                    self._new_backend()
                    rehearsals = {
                        measuring: self._rehearse(measuring) for measuring in self._kinds()
                    }
                for measuring, rehearsal in rehearsals.items():
                    self._recordings[measuring] = self._record_kind(measuring, rehearsal)
            finally:
                self.optimizer.sites.begin({})
                for site in self.optimizer.sites:
                    if site.param.requires_grad:
                        site.param.grad = None
        self._fingerprint = self._structure()

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Work on the step's own stream, while nothing else is going on."""
        torch.cuda.synchronize(self._device)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            torch.cuda.synchronize(self._device)

    def _foreign(self) -> list[nn.Parameter]:
        """Parameters of the model that others train."""
        mine = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        model = self.optimizer.model
        return [p for p in (model.parameters() if model is not None else ()) if id(p) not in mine]

    def _kinds(self) -> list[bool]:
        """Quick always; measuring where a curvature term is on."""
        return [False, True] if any(map(has_curvature, self.optimizer.param_groups)) else [False]

    def _sites(self) -> list[Site]:
        sites, _, _ = self.optimizer._begin()
        return [site for site in sites if site.param.requires_grad]

    def _make_states(self) -> list[Site]:
        """Evaluate once, leaving no trace, to see which parameters get gradients.

        Returns those that no step was taken with.
        """
        optimizer = self.optimizer
        probe = Probe(self._sites(), Draw(0, 0), False, Backends("eager"), optimizer.model)
        try:
            with torch.enable_grad():
                self.closure()
            given = [site for site in probe.sites if site.param.grad is not None]
            optimizer.sites.rates(given, measuring=False)  # makes the states fit
            optimizer.state.update({site.param: site.state for site in given})
        finally:
            probe.cancel()
        return [site for site in given if site.state["step"] == 0]

    def _new_backend(self) -> None:
        from ..kernels.triton_launch import TritonKernels

        sites = self._sites()
        if not sites:
            raise ValueError("capture needs a parameter that requires gradients, got none")
        self._backend = PointingBackend(TritonKernels(), sites)
        self._backends = Backends("triton")
        self._backends.serve(self._backend, self._device)
        plan = self._backend.plan(sites)  # of all sites from the start: chunks are cut only once
        for site, usable in zip(plan.sites, plan.usable, strict=True):
            if site.state and site.param.numel() > 0 and not usable:
                raise ValueError(
                    f"capture needs dense parameters of at most {DIMS} runs of memory, with states "
                    f"laid out alike, got one of shape {tuple(site.param.shape)} with strides "
                    f"{site.param.stride()}"
                )

    def _probe(self, measuring: bool, random: RandomState | None = None) -> Probe:
        sites = self._sites()
        self.optimizer.sites.touch()
        for site in sites:
            # Any positive number: what is recorded is that this site is displaced. One that has no
            # state and cannot be pointed would be displaced by that very number.
            ready = "probe_center" in site.state or self._backend.is_displaced(site)
            site.radius = 1.0 if measuring and has_curvature(site.group) and ready else 0.0
        model = self.optimizer.model
        return Probe(sites, Draw(0, 0), measuring, self._backends, model, random=random, keep=kept)

    def _rehearse(self, measuring: bool) -> Rehearsal:
        """A step with every launch but no effect: compiles kernels, cuts chunks, fills caches."""
        from .recording import Rehearsal

        rehearsal = Rehearsal(self._backend.kernels.send)
        self._backend.send = rehearsal.send
        probe = self._probe(measuring)
        watch = self.optimizer.watch.start() if measuring else None
        try:
            self._run(probe)
        finally:
            probe.cancel()
            if watch is not None:
                watch.stop()
        return rehearsal

    def _run(self, probe: Probe) -> Any:
        loss = None
        for name in probe.rounds:
            probe.begin(name)
            with torch.enable_grad():
                loss = self.closure()
            prepare_gradients_([site.param for site in probe.sites])
            probe.end(name)
        updating = [site for site in probe.sites if site.param.grad is not None]
        rates = self.optimizer.sites.rates(updating, measuring=probe.measuring)
        probe.update(updating, rates, self.optimizer.param_groups[0]["max_grad_norm"])
        return loss

    @property
    def _generator(self) -> torch.Generator:
        generator: torch.Generator = torch.cuda.default_generators[self._device.index or 0]
        return generator

    def _record_kind(self, measuring: bool, rehearsal: Rehearsal) -> Recording:
        from .recording import Recording, Tables

        graph, plan = torch.cuda.CUDAGraph(), self._backend.plan(self._sites())
        tables = Tables(rehearsal.tables, plan.host.T.shape, self._device)
        self._backend.send = tables.send
        pool = next((there.graph.pool() for there in self._recordings.values()), None)
        main = self._generator.graphsafe_get_state()
        states = [self._generator.clone_state() for _ in range(3 if measuring else 1)]
        for state in states:
            graph.register_generator_state(state)
        foreign = self._foreign()
        try:
            with gradients_aside(foreign):
                with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                    probe = self._probe(measuring, GraphRandom(self._generator, states))
                    loss = self._run(probe)
                others = [(param, grad) for param in foreign if (grad := param.grad) is not None]
        except BaseException:
            self._backend.abandon()
            raise
        finally:
            self._generator.graphsafe_set_state(main)
            # Torch set the states' seeds on the recording's stream. A graph that failed gives that
            # memory away, and one that is replayed sets them again on another stream.
            torch.cuda.synchronize(self._device)
        return Recording(
            graph=graph,
            plan=plan,
            tables=tables,
            sites=probe.sites,
            grads=[site.param.grad for site in probe.sites],
            updating=[site for site in probe.sites if site.param.grad is not None],
            foreign=others,
            states=states,
            loss=detached(loss),
        )

    # ---- replaying ----------------------------------------------------------------------------

    def _structure(self) -> list[Any]:
        """What a recording depends on: addresses, and options that shape the kernels."""
        optimizer = self.optimizer
        options = [tuple(group[name] for name in _STRUCTURE) for group in optimizer.param_groups]
        sites = list(optimizer.sites)
        params = [(site.param.data_ptr(), site.param.requires_grad) for site in sites]
        states = [
            [v.data_ptr() for name, v in site.state.items() if name not in COUNTERS]
            for site in sites
        ]
        return [sites, options, params, states]

    def replay(self, optimizer: Driving) -> Any:
        """Replay the step that is due; called by ``optimizer.step``."""
        if optimizer is not self.optimizer:
            raise ValueError("this step was captured with another optimizer")
        sites, measuring, draw = optimizer._begin()
        if self._structure() != self._fingerprint:
            self._record()
            sites, measuring, draw = optimizer._begin()
        recording = self._recordings[measuring]
        rates = sites.rates(recording.updating, measuring=measuring)
        self._begin_at_the_positions()
        now = self._generator.get_state()
        for state in recording.states:
            state.set_state(now)
        recording.stage(rates, draw)
        recording.graph.replay()
        self._generator.set_state(recording.states[-1].get_state())
        recording.hand_out()
        optimizer._commit(recording.updating, rates, measuring=measuring)
        return recording.loss

    @torch.no_grad()
    def _begin_at_the_positions(self) -> None:
        """A first step starts from the parameters as they are now, not as they were captured."""
        for site in self._untouched:
            if site.state.get("step", 1) == 0:
                for name in ("probe_center", "position"):
                    if name in site.state:
                        site.state[name].copy_(site.param)
        self._untouched = []
