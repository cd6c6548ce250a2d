"""Three ways to drive one engine: a closure, a loop over evaluations, or a plain backward.

A step is a `Probe`: parameters go to its points, gradients come back, the averages and positions
are updated, and the step is counted. Whatever goes wrong on the way, the parameters are at home
before anybody can look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from .capture import CapturedStep
from .kernels import Backends
from .options import (
    advanced,
    check_groups,
    has_curvature,
    is_due,
    prepare_gradients_,
    probe_radius,
    step_fraction,
)
from .probe import Probe, Spent, given
from .scaling import check_scaler, poison_center_, refuse_scaled, unscale_
from .site import Draw, Site, Sites
from .topography import Rates
from .warning import SLIPS, warn
from .watching import Watch, called_without_gradient

if TYPE_CHECKING:
    from .lookahead import LookAhead

__all__ = ["Driving"]


class Driving(Optimizer):
    """What `Alice` does when it is asked for a step; her own class says with which options."""

    # torch.amp.GradScaler then leaves the skipping to `step`, which can say what is wrong.
    _step_supports_amp_scaling = True
    found_inf: Tensor

    model: nn.Module | None
    sites: Sites
    watch: Watch
    _backends: Backends
    _probe: Probe | None
    _checked: list[Any]
    _warned: set[str]
    _spent: Spent | None
    _held: list[tuple[Tensor, Tensor]]
    _looked: bool  # ahead, since the last step
    looking_ahead: LookAhead

    def _shared(self, name: str) -> Any:
        return self.param_groups[0][name]

    @property
    def gradient_evaluations(self) -> int:
        """Gradients evaluated by the steps taken so far: three if it measured, one if quick."""
        counts = self._itself().param_groups[0]
        return int(3 * counts["measuring_count"] + counts["quick_count"])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step and return the closure's value at the probe center, or None.

        With ``closure``: evaluates it three times on a measuring step, once on a quick one, with
        gradients zeroed. Without: uses what a loop over `evaluations` collected; or, after a
        plain backward, takes a quick step from the gradient at hand. That was taken at nu if
        ``model`` was given (or `look_ahead` called), otherwise at the position itself.

        After a loop, a closure that makes no gradient is called once: frameworks put their hooks
        into one and pass it in any case.
        """
        scaled = hasattr(self, "found_inf")  # set by GradScaler.step around its call
        evaluated, loss = False, None
        captured = isinstance(closure, CapturedStep)
        if closure is not None and not captured and not scaled and self._is_evaluated():
            evaluated, loss = called_without_gradient(closure, self._params())
        if closure is not None and not evaluated:
            if scaled:
                self._spend(self._params())
                refuse_scaled(
                    self,
                    "GradScaler.step(optimizer, closure) would hand Alice scaled gradients: loop "
                    "over optimizer.evaluations(scaler=scaler), then scaler.step(optimizer)",
                )
            self._take_over()
            if isinstance(closure, CapturedStep):
                return closure.replay(self)
            return self._step_with(closure)
        if self._probe is not None and not self._probe.plain:
            self._probe.claimed = True
            self._bind() if self._probe.finished else self._drop_probe()
        if scaled or self._probe is not None:
            self._spend(self._params())  # also if they are refused
        check_scaler(self, self._probe, scaled=scaled)
        if scaled and bool(self.found_inf):
            self._drop_probe()
        else:
            self._apply(loss_scale=getattr(self, "grad_scale", None))
        return loss

    def _is_evaluated(self) -> bool:
        """Whether a loop has finished with gradients that no step has used."""
        probe = self._probe
        if probe is None or not probe.finished or probe.plain or probe.claimed:
            return False
        return bool(given(site.param for site in probe.sites))

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        loss = None
        rounds = self._rounds(None, settle=False)
        try:
            with contextlib.closing(rounds), torch.enable_grad():
                for _ in rounds:
                    loss = closure()
        except BaseException as error:
            self._drop_probe()
            if "modified by an inplace operation" in str(error):
                error.add_note("Alice moves the parameters: run the forward pass in the closure")
            raise
        self._apply()
        return loss

    def evaluations(self, scaler: Any = None) -> Iterator[int]:
        """Rounds of one step: in each, run forward and backward on the *same* batch.

        Draw the batch outside the loop; accumulate micro-batches inside it. With fp16 pass the
        GradScaler and step through it. Leaving the loop early takes the step back.
        """
        enabled = scaler is not None and scaler.is_enabled()
        rounds: Iterator[int] = self._itself()._rounds(scaler if enabled else None, settle=True)
        return rounds

    def _itself(self) -> Any:
        """The optimizer that a framework's wrapper, of a class derived from ours, was made for."""
        wrapped = self.__dict__.get("_optimizer")
        return wrapped if isinstance(wrapped, Driving) else self

    def _rounds(self, scaler: Any, *, settle: bool) -> Generator[int, None, None]:
        self._take_over()
        self._held = self._unspent()
        sites, measuring, draw = self._begin()
        trained = [site for site in sites if site.param.requires_grad]
        probe = self._probe = Probe(trained, draw, measuring, self._backends, self.model, scaler)
        probe.watch = self.watch.start() if measuring else None
        found = False
        try:
            for i, name in enumerate(probe.rounds):
                if self._held and name == "minus":
                    continue  # to the center, for its loss: nothing is measured
                probe.begin(name)
                yield i
                if self._probe is not probe:
                    raise RuntimeError(
                        "this loop over evaluations() was given up, because step(), state_dict() "
                        "or another loop ran inside it: call optimizer.step() after the loop"
                    )
                prepare_gradients_(self._params())
                found = self._found(probe)
                if not self._held:
                    probe.end(name)
            if self._held:
                return  # to a plain step with them
            if not found:
                self._drop_probe()
                self._say("no gradients")
                return
            if scaler is not None:
                poison_center_(probe.sites)
            # With a closure nothing comes between here and the update, which is asked for already.
            probe.claimed = not settle
            probe.finish(watching=settle)
        finally:
            if self._held:
                self._give_back(probe)
            if self._probe is probe and not probe.finished:
                self._drop_probe()
            elif self._probe is probe and settle:
                probe.settle()
            if probe.watch is not None:
                probe.watch.stop()

    def _found(self, probe: Probe) -> bool:
        """Whether a round has left gradients; those from before it are dropped then."""
        found = any(site.param.grad is not None for site in probe.sites)
        if found and self._held:
            self._held.clear()
            self._say("dropped")
        return found

    def _give_back(self, probe: Probe) -> None:
        """Take the step back, and have the gradients from before it in their places."""
        if self._probe is probe:
            self._drop_probe()
        for param, grad in self._held:
            param.grad = grad
        self._held = []

    def _unspent(self) -> list[tuple[Tensor, Tensor]]:
        """Gradients that somebody took after the last step, and that the next would drop.

        One of them, the smallest of the last step, tells of all. Zeroed in place they do not count.
        """
        if self._spent is not None and self._spent.is_still_there():
            return []
        held = given(self._params())
        sample = held
        if self._spent is not None and self._spent.param.grad is not None:
            sample = [(self._spent.param, self._spent.param.grad)]
        if not sample or not self.watch.is_worth_holding([grad for _, grad in sample]):
            return []
        return held

    def _take_over(self) -> None:
        """Begin anew, saying so if that drops the gradients of a loop that no step has used."""
        if self._is_evaluated():
            self._say("no step")
            self.zero_grad()
        self._drop_probe()

    def _say(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warn(SLIPS[what])

    def _params(self) -> list[nn.Parameter]:
        return [param for group in self.param_groups for param in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, also those of the last step's probes that are still held."""
        super().zero_grad(set_to_none)
        self._itself()._held.clear()  # by a closure: those who zero gradients know
        for site in self.sites if self._itself()._probe is None else ():
            site.plus = site.minus = None

    @property
    def _steps(self) -> int:
        return int(self._shared("measuring_count") + self._shared("quick_count"))

    def _is_all_look_ahead(self) -> bool:
        """Whether a gradient at mu loses something: no curvature is on, and nu is elsewhere."""
        groups = self.param_groups
        return not any(map(has_curvature, groups)) and any(
            step_fraction(group) != group["lookahead"] for group in groups
        )

    def _measuring_due(self) -> bool:
        return is_due(self.param_groups[0]) and any(map(has_curvature, self.param_groups))

    def _begin(self) -> tuple[Sites, bool, Draw]:
        """Every parameter's site ready for a step, whether it measures, and its directions.

        Options may have been edited since the last step: they are checked again.
        """
        self._checked = check_groups(self.param_groups, self._checked)
        radii = {id(group): probe_radius(group) for group in self.param_groups}
        measuring = self._measuring_due() and any(radius > 0 for radius in radii.values())
        self._bind()
        self.sites.begin(radii if measuring else {})
        return self.sites, measuring, Draw(self._shared("seed"), self._steps)

    def _bind(self) -> None:
        """Follow whatever was replaced, also since a loop whose step is yet to come."""
        if self.sites.is_bound(self.param_groups, self.state):
            return
        self.come_home()  # before those who know the way are forgotten
        self.sites.bind(self.param_groups, self.state)
        self._backends.forget()
        if self._probe is not None:
            self._probe.follow(self.sites)

    def look_ahead(self) -> None:
        """Take the parameters to nu, unless a step is under way; those without state stay.

        With ``model=`` its calls in training mode do so by themselves. What comes next is forward,
        backward and ``step()``; `come_home` takes it back.
        """
        self._looked = True
        if self._probe is None:
            self._bind()
            self.sites.begin({})
            ahead = [s for s in self.sites if s.param.requires_grad and "probe_center" in s.state]
            if ahead:
                backends, model = self._backends, self.model
                self._probe = Probe(ahead, Draw(0, 0), False, backends, model, plain=True)
                self._probe.begin("center")

    def come_home(self) -> None:
        """Put a plain loop's parameters back at mu, if they look ahead; its gradients stay."""
        if self._probe is not None and self._probe.plain:
            self._drop_probe()

    def __del__(self) -> None:
        """Nobody else knows the way home."""
        with contextlib.suppress(Exception):  # at the end of the process anything may be gone
            if self._itself() is self:
                self.come_home()

    def _drop_probe(self) -> None:
        """Give up an excursion that no step will use; one left in the middle is undone."""
        probe = self._probe
        if probe is not None:
            probe.settle() if probe.finished else probe.cancel()
            if probe.claimed:
                self._spend([site.param for site in probe.sites])
        self._probe = None  # last: an interrupted cancel is taken up again

    def _apply(self, loss_scale: Tensor | None = None) -> None:
        """Turn the gradients at hand into new averages and positions, and count the step."""
        probe = self._probe
        if probe is None or probe.plain:
            if not given(self._params()):
                self.come_home()
                return
            probe = self._plain_probe()
        try:
            if probe.is_center_edited():
                self._say("edited")
            if loss_scale is not None:
                self.sites.touch()
                unscale_(probe.sites, loss_scale)
            updating = [site for site in probe.sites if site.param.grad is not None]
            rates = self.sites.rates(updating, measuring=probe.measuring)
            probe.update(updating, rates, self._shared("max_grad_norm"))
        except BaseException:
            probe.cancel()
            self._probe = None
            self._spend(self._params())
            raise
        self._probe = None
        self._commit(updating, rates, measuring=probe.measuring)

    def _plain_probe(self) -> Probe:
        """After a plain backward: the gradients at hand were taken at nu, without model at mu."""
        prepare_gradients_(self._params())
        sites, _, _ = self._begin()
        wanted = any(group["lr"] > 0 and probe_radius(group) > 0 for group in self.param_groups)
        if wanted and self._shared("measuring_count") == 0:
            self._say("never measured")
        sites.begin({})
        ahead = self._probe
        if not self._looked and self._steps > 0 and self._is_all_look_ahead():
            self._say("no model" if self.model is None else "model not called")
        if ahead is not None and ahead.is_edited:
            ahead.settle()
        there = [site for site in sites if site.param.grad is not None]
        resting = ahead is None or ahead.at_rest
        if ahead is not None and not resting:
            there += [site for site in ahead.sites if site.param.grad is None]
        model, backends = self.model, self._backends
        return Probe(there, Draw(0, 0), False, backends, model, plain=True, at_rest=resting)

    def _commit(self, updated: Sequence[Site], rates: Sequence[Rates], *, measuring: bool) -> None:
        """Count a step that these sites were updated by."""
        missed = self._measuring_due() and not measuring
        overdue = self.sites.count_(updated, rates, self.state, self._steps + 1)
        counts = advanced(self.param_groups[0], measuring=measuring, missed=missed, overdue=overdue)
        for group in self.param_groups:
            group.update(counts)
        self._looked = False
        self._spend([site.param for site in updated])
        if self.looking_ahead.rival is not None:
            self.looking_ahead.claim()

    def _spend(self, params: Sequence[Tensor]) -> None:
        """Remember that a step has had these gradients, by the smallest."""
        param = self._spent.param if self._spent is not None else None
        if param is None or param.grad is None:
            param = min((p for p, _ in given(params)), key=Tensor.numel, default=None)
        if param is not None and param.grad is not None:
            self._spent = Spent.of(param, param.grad)

    def _settle(self) -> None:
        """Parameters at mu; what a finished loop found is kept for the step."""
        self.come_home()
        if self._probe is not None and self._probe.finished:
            self._probe.settle()
        else:
            self._drop_probe()
