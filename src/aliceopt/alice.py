"""Alice: the torch optimizer. Its options, groups and state; how it is driven is in `driving`.

The mathematics is elsewhere: `probe` evaluates, `topography` averages, `step` decides.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from . import checkpoint
from .driving import Driving
from .kernels import IMPLEMENTATIONS, Backends
from .lookahead import LookAhead
from .options import (
    COUNTS,
    OPTIONS,
    SHARED,
    check_added,
    check_choice,
    check_holds,
    check_model,
)
from .probe import Probe
from .sharding import check_seen, reshard
from .site import Sites
from .telemetry import Blocks, Telemetry, measure
from .watching import Watch

__all__ = ["Alice"]


class Alice(Driving):
    """Diagonal quasi-Newton optimizer for the curvature of expectation.

    By default AdamW that looks ahead: a step's gradient is taken at the probe center nu, half a
    step beyond the position mu. Put it in AdamW's place, with its learning rate and ``model=``::

        optimizer = Alice(model.parameters(), lr=1e-3, model=model)
        loss_fn(model(x), y).backward()       # at nu
        optimizer.step()

    After a step the parameters hold mu: there is no mode to switch for validation or checkpoints.

    With ``glass`` or ``hessian`` every ``quick_steps + 1``-th step also evaluates the gradient at
    two points ``nu +- probe_radius t``. The differences give a Hessian diagonal ``h`` and a glass
    density ``rho`` averaged over that length. The step is ``|g| / hbar`` long, with Theorem 5's
    ``hbar`` for both, clamped between ``lr_min`` and ``lr`` times a unit. Such steps need a
    closure, or a loop::

        loss = optimizer.step(closure)        # closure: forward and backward

        for _ in optimizer.evaluations():     # 3 rounds on a measuring step, 1 on a quick one
            loss_fn(model(x), y).backward()
        optimizer.step()

    ``Alice(params, **aliceopt.PAPER)`` has the settings of the paper.

    Args:
        params: parameters, named parameters or groups, as for any torch optimizer.
        lr: upper bound of the step, in units of ``limit``; any torch scheduler may drive it.
        lr_min: lower bound, in the same units; at or above ``lr`` both bounds are ``lr``.
        probe_radius: distance of the probes; None: half of ``lr``, but not for ``limit="sgd"``.
        betas: memory of the gradient, and of its square and the topography, in steps.
        eps: added to denominators.
        step_fraction: phi, how much of it the position takes; None: ``(1 - beta1) lookahead``.
        lookahead: omega, how much of it the next probe center takes; equal to ``step_fraction``:
            gradients are taken at the position.
        limit: what the bounds multiply: "adam" (``|g|/sqrt(s)``), "fixed" (1) or "sgd" (``|g|``).
        hessian: "none", "abs", "rms" or "signed", the estimator of the Hessian diagonal.
        glass: whether glass density counts.
        quick_steps: steps with one gradient between two steps with three.
        weight_decay: decoupled, as in AdamW.
        max_grad_norm: clip all gradients of a step by the factor for the center one's norm.
        maximize: ascend instead.
        seed: of the probe directions; torch's random state is not used.
        model: the module whose buffers (BatchNorm statistics, counters) must not notice the
            probes, and whose calls in training mode look ahead; required for FSDP2.
        implementation: "auto", "triton", "compiled" or "eager"; all compute the same.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        lr_min: float = 0.0,
        probe_radius: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        step_fraction: float | None = 1.0,
        lookahead: float = 1.5,
        limit: str = "adam",
        hessian: str = "none",
        glass: bool = False,
        quick_steps: int = 3,
        weight_decay: float = 0.01,
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
            **dict.fromkeys(COUNTS, 0),
        }
        self.model = model
        self.implementation = implementation
        self._backends = Backends(implementation)
        self._probe: Probe | None = None
        self._checked: list[Any] = []
        self._warned: set[str] = set()
        self._spent, self._held, self._looked = None, [], False
        self.watch = Watch(model)
        self.sites = Sites()
        super().__init__(params, defaults)
        check_holds(model, self._params())
        self.looking_ahead = LookAhead(self, model)
        self._spend(self._params())  # gradients from before our time

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
            check_added(group, len(self.param_groups) - 1, self.model)
            reshard(self.model)
            check_seen(group["params"], self.model)
        except ValueError:
            del self.param_groups[-1]
            raise

    # ---- citizenship --------------------------------------------------------------------------

    def telemetry(self, depth: int = 1, blocks: Blocks | None = None) -> Telemetry:
        """What the last step did, per group and per block; see `aliceopt.telemetry.measure`."""
        alice = self._itself()
        if alice._probe is None or alice._probe.at_rest:  # those of a step under way are bound
            alice._bind()
        return measure(alice, alice.sites, depth=depth, blocks=blocks)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit for bit; puts the parameters back at mu first."""
        alice = self._itself()
        alice._settle()
        alice._bind()
        alice.sites.publish()
        state: dict[str, Any] = super(Alice, alice).state_dict()
        return state

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
        self._spent, self._held = None, []
        if "model" in state:  # unpickled or copied, not loaded
            self._looked = False
            self.watch, self.looking_ahead = Watch(self.model), LookAhead(self, self.model)
        for group in self.param_groups:
            if "full_count" in group:  # its name in old checkpoints
                group["measuring_count"] = group.pop("full_count")
            for name in OPTIONS:
                group.setdefault(name, self.defaults[name])
        self._spend(self._params())
