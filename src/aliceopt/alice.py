"""Alice: the torch optimizer. Groups, state, and the two ways to drive one engine.

The mathematics is elsewhere: `probe` evaluates, `topography` averages, `step` decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from . import checkpoint
from .capture import CapturedStep
from .kernels import IMPLEMENTATIONS, Backends
from .options import (
    OPTIONS,
    SHARED,
    check_choice,
    check_group,
    check_groups,
    check_holds,
    check_model,
    check_names,
    check_parameter,
    has_curvature,
    prepare_gradients_,
    probe_radius,
)
from .probe import BufferWatch, Probe
from .scaling import check_scaler, poison_center_, refuse_scaled, unscale_
from .sharding import check_seen, reshard
from .site import Draw, Site, Sites
from .telemetry import Blocks, Telemetry, measure
from .topography import Rates
from .warning import warn

__all__ = ["Alice"]


class Alice(Optimizer):
    """Diagonal quasi-Newton optimizer for the curvature of expectation.

    One step evaluates the gradient at the probe center nu and, every ``quick_steps + 1`` steps,
    at two points ``nu +- probe_radius t`` beside it. The differences give a Hessian diagonal
    ``h`` and a glass density ``rho`` averaged over that length. The step is ``|g| / hbar`` long,
    with Theorem 5's ``hbar`` for both, clamped between ``lr_min`` and ``lr`` times a unit.

    Between steps the parameters hold the position mu: there is no mode to switch for validation
    or checkpoints.

    Drive it with a closure, or with a loop::

        loss = optimizer.step(closure)        # closure: forward and backward

        for _ in optimizer.evaluations():     # 3 rounds on a full step, 1 on a quick one
            loss_fn(model(x), y).backward()
        optimizer.step()

    Args:
        params: parameters, named parameters or groups, as for any torch optimizer.
        lr: upper bound of the step, in units of ``limit``; any torch scheduler may drive it.
        lr_min: lower bound, in the same units; at or above ``lr`` both bounds are ``lr``.
        probe_radius: distance of the probes; None: half of ``lr``, but not for ``limit="sgd"``.
        betas: memory of the gradient, and of its square and the topography, in steps.
        eps: added to denominators.
        step_fraction: phi, how much of it the position takes; None: ``(1 - beta1) lookahead``.
        lookahead: omega, how much of the step the next probe center takes.
        limit: what the bounds multiply: "adam" (``|g|/sqrt(s)``), "fixed" (1) or "sgd" (``|g|``).
        hessian: "none", "abs", "rms" or "signed", the estimator of the Hessian diagonal.
        glass: whether glass density counts.
        quick_steps: steps with one gradient between two steps with three.
        weight_decay: decoupled, as in AdamW.
        max_grad_norm: clip all gradients of a step by the factor for the center one's norm.
        maximize: ascend instead.
        seed: of the probe directions; torch's random state is not used.
        model: the module whose buffers (BatchNorm statistics, counters) must not notice the
            probes; required for FSDP2.
        implementation: "auto", "triton", "compiled" or "eager"; all compute the same.
    """

    # torch.amp.GradScaler then leaves the skipping to `step`, which can say what is wrong.
    _step_supports_amp_scaling = True
    found_inf: Tensor

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        lr_min: float = 0.0,
        probe_radius: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        step_fraction: float | None = None,
        lookahead: float = 1.0,
        limit: str = "adam",
        hessian: str = "abs",
        glass: bool = True,
        quick_steps: int = 3,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        maximize: bool = False,
        seed: int = 0,
        model: nn.Module | None = None,
        implementation: str = "auto",
    ):
        check_choice("implementation", implementation, IMPLEMENTATIONS)
        check_model(model)
        defaults = {
            "lr": lr,
            "lr_min": lr_min,
            "probe_radius": probe_radius,
            "betas": betas,
            "eps": eps,
            "step_fraction": step_fraction,
            "lookahead": lookahead,
            "limit": limit,
            "hessian": hessian,
            "glass": glass,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "quick_steps": quick_steps,
            "seed": seed,
            "max_grad_norm": max_grad_norm,
            **dict.fromkeys(("cadence", "full_count", "quick_count"), 0),
        }
        self.model = model
        self.implementation = implementation
        self._backends = Backends(implementation)
        self._probe: Probe | None = None
        self._checked: list[Any] = []
        self._warned: set[str] = set()
        self.sites = Sites()
        super().__init__(params, defaults)
        check_holds(model, self._params())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, also in mid-training; per-optimizer options cannot differ by group."""
        self._drop_probe()
        shared = self.param_groups[0] if self.param_groups else self.defaults
        for name in SHARED:
            value = param_group.get(name, shared[name])
            if value is not shared[name] and value != shared[name]:
                raise ValueError(
                    f"{name} is one for the whole optimizer ({shared[name]!r}); a group cannot "
                    f"set it, got {param_group[name]!r}"
                )
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            group.update({name: shared[name] for name in SHARED})
            check_names(group)
            check_group(group)
            for i, param in enumerate(group["params"]):
                names = group.get("param_names")
                label = repr(names[i]) if names else f"parameter {i}"
                where = f"{label} of group {len(self.param_groups) - 1}"
                check_parameter(param, where, model=self.model)
            reshard(self.model)
            check_seen(group["params"], self.model)
        except ValueError:
            del self.param_groups[-1]
            raise

    def _shared(self, name: str) -> Any:
        return self.param_groups[0][name]

    @property
    def gradient_evaluations(self) -> int:
        """Gradients evaluated by the steps taken so far: three a full step, one a quick one."""
        return int(3 * self._shared("full_count") + self._shared("quick_count"))

    # ---- driving ------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step and return the closure's value at the probe center, or None.

        With ``closure``: evaluates it three times on a full step, once on a quick one, with
        gradients zeroed. Without: uses what a loop over `evaluations` collected; or, after a
        plain backward, takes a quick step from the gradient at the position itself.
        """
        scaled = hasattr(self, "found_inf")  # set by GradScaler.step around its call
        if closure is not None:
            if scaled:
                refuse_scaled(
                    self,
                    "GradScaler.step(optimizer, closure) would hand Alice scaled gradients: loop "
                    "over optimizer.evaluations(scaler=scaler), then scaler.step(optimizer)",
                )
            self._drop_probe()
            if isinstance(closure, CapturedStep):
                return closure.replay(self)
            return self._step_with(closure)
        if self._probe is not None:
            self._bind() if self._probe.finished else self._drop_probe()
        check_scaler(self, self._probe, scaled=scaled)
        if scaled and bool(self.found_inf):
            self._drop_probe()
        elif self._probe is not None or any(p.grad is not None for p in self._params()):
            self._apply(loss_scale=getattr(self, "grad_scale", None))
        return None

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        loss = None
        rounds = self._rounds(None, settle=False)
        try:
            with contextlib.closing(rounds), torch.enable_grad():
                for _ in rounds:
                    loss = closure()
        except BaseException:
            self._drop_probe()
            raise
        self._apply()
        return loss

    def evaluations(self, scaler: Any = None) -> Iterator[int]:
        """Rounds of one step: in each, run forward and backward on the *same* batch.

        Draw the batch outside the loop; accumulate micro-batches inside it. With fp16 pass the
        GradScaler and step through it. Leaving the loop early takes the step back.
        """
        self._drop_probe()
        enabled = scaler is not None and scaler.is_enabled()
        yield from self._rounds(scaler if enabled else None, settle=True)

    def _rounds(self, scaler: Any, *, settle: bool) -> Generator[int, None, None]:
        sites, full, draw = self._begin()
        trained = [site for site in sites if site.param.requires_grad]
        probe = self._probe = Probe(trained, draw, full, self._backends, self.model, scaler)
        watch = self._watch_buffers(probe)
        try:
            for i, name in enumerate(probe.rounds):
                probe.begin(name)
                yield i
                if self._probe is not probe:
                    raise RuntimeError(
                        "this loop over evaluations() was given up, because step(), state_dict() "
                        "or another loop ran inside it: call optimizer.step() after the loop"
                    )
                prepare_gradients_(self._params())
                probe.end(name)
            if scaler is not None:
                poison_center_(probe.sites)
            # With a closure nothing comes between here and the update.
            probe.finish(watching=settle)
        finally:
            if self._probe is probe and not probe.finished:
                self._drop_probe()
            elif self._probe is probe and settle:
                probe.settle()
            if watch is not None:
                watch.stop()

    def _params(self) -> list[nn.Parameter]:
        return [param for group in self.param_groups for param in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, also those of the last full step's probes that are still held."""
        super().zero_grad(set_to_none)
        for site in self.sites if self._probe is None else ():
            site.plus = site.minus = None

    def _full_due(self) -> bool:
        due = self._shared("cadence") % (self._shared("quick_steps") + 1) == 0
        return due and any(has_curvature(group) for group in self.param_groups)

    def _begin(self) -> tuple[Sites, bool, Draw]:
        """Every parameter's site ready for a step, whether it measures, and its directions.

        Options may have been edited since the last step: they are checked again.
        """
        self._checked = check_groups(self.param_groups, self._checked)
        radii = {id(group): probe_radius(group) for group in self.param_groups}
        full = self._full_due() and any(radius > 0 for radius in radii.values())
        self._bind()
        self.sites.begin(radii if full else {})
        steps = self._shared("full_count") + self._shared("quick_count")
        return self.sites, full, Draw(self._shared("seed"), steps)

    def _bind(self) -> None:
        """Follow whatever was replaced, also since a loop whose step is yet to come."""
        if self.sites.bind(self.param_groups, self.state):
            self._backends.forget()
            if self._probe is not None:
                self._probe.follow(self.sites)

    def _drop_probe(self) -> None:
        """Give up an excursion that no step will use; one left in the middle is undone."""
        if self._probe is not None:
            self._probe.settle() if self._probe.finished else self._probe.cancel()
        self._probe = None  # last: an interrupted cancel is taken up again

    def _watch_buffers(self, probe: Probe) -> BufferWatch | None:
        watching = probe.full and self.model is None and "buffers" not in self._warned
        self._warned.update({"buffers"} if watching else ())
        return BufferWatch() if watching else None

    def _apply(self, loss_scale: Tensor | None = None) -> None:
        """Turn the gradients at hand into new averages and positions, and count the step."""
        probe = self._probe or self._plain_probe()
        try:
            probe.check_center()
            if loss_scale is not None:
                self.sites.touch()
                unscale_(probe.sites, loss_scale)
            updating = [site for site in probe.sites if site.param.grad is not None]
            rates = self.sites.rates(updating, measuring=probe.full)
            probe.update(updating, rates, self._shared("max_grad_norm"))
        except BaseException:
            probe.cancel()
            self._probe = None
            raise
        self._probe = None
        self._commit(updating, rates, full=probe.full)

    def _plain_probe(self) -> Probe:
        """After a plain backward: the gradients at hand were taken at mu."""
        prepare_gradients_(self._params())
        sites, _, _ = self._begin()
        wanted = any(group["lr"] > 0 and probe_radius(group) > 0 for group in self.param_groups)
        if wanted and self._shared("full_count") == 0 and "never full" not in self._warned:
            self._warned.add("never full")
            warn(
                "no curvature has been measured: step() after a plain backward is a quick step. "
                "Pass a closure to step(), or loop over evaluations() before it"
            )
        sites.begin({})
        given = [site for site in sites if site.param.grad is not None]
        return Probe(given, Draw(0, 0), False, self._backends)

    def _commit(self, updated: Sequence[Site], rates: Sequence[Rates], *, full: bool) -> None:
        """Count a step that these sites were updated by."""
        self.sites.count_(updated, rates, self.state)
        cadence = self._shared("cadence")
        counts = {
            # A full step that was due but could not be taken stays due.
            "cadence": cadence if self._full_due() and not full else cadence + 1,
            "full_count": self._shared("full_count") + full,
            "quick_count": self._shared("quick_count") + (not full),
        }
        for group in self.param_groups:
            group.update(counts)

    # ---- citizenship --------------------------------------------------------------------------

    def telemetry(self, depth: int = 1, blocks: Blocks | None = None) -> Telemetry:
        """What the last step did, per group and per block; see `aliceopt.telemetry.measure`."""
        if self._probe is None or self._probe.at_rest:  # those of a step under way are bound
            self._bind()
        return measure(self, self.sites, depth=depth, blocks=blocks)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit for bit; puts the parameters back at mu first."""
        self._settle()
        self._bind()
        self.sites.publish()
        return super().state_dict()

    def _settle(self) -> None:
        """Parameters at mu; what a finished loop found is kept for the step."""
        if self._probe is not None and self._probe.finished:
            self._probe.settle()
        else:
            self._drop_probe()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`, in state precision on each parameter's device.

        Refused, with what differs, for other shapes, group counts or kinds of Hessian.
        """
        self._drop_probe()
        # Ours runs after every other hook before the load, and before every other one after it.
        before = self.register_load_state_dict_pre_hook(checkpoint.shield)
        after = self.register_load_state_dict_post_hook(checkpoint.unshield, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __repr__(self) -> str:
        return super().__repr__().replace("Alice (", f"Alice (  # {self._backends.describe()}", 1)

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        mine = {name: getattr(self, name) for name in ("model", "implementation", "_warned")}
        return {**super().__getstate__(), **mine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._probe, self._checked, self.sites = None, [], Sites()
        self._backends = Backends(self.implementation)
        for group in self.param_groups:
            for name in OPTIONS:
                group.setdefault(name, self.defaults[name])
