"""Optimizers as the lab drives them: one way to step, count gradients, and set the rate.

A gradient evaluation is one forward and backward pass on a batch. A Hessian-vector product, which
differentiates that pass again, counts as two.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import aliceopt
from aliceopt import PAPER, Alice
from aliceopt.lab.models.blocks import blocks_of
from aliceopt.lab.optimizers.adahessian import AdaHessian
from aliceopt.lab.optimizers.both_derivatives import BothDerivatives
from aliceopt.lab.optimizers.captured import GraphStep, is_capturable
from aliceopt.lab.optimizers.muon import muon_and_adamw
from aliceopt.lab.typed import Positive, checked, whole
from aliceopt.options import has_curvature

__all__ = ["METHODS", "STEPS", "TERMS", "Method", "make_method", "mean_gradients", "planned"]

TERMS: dict[str, dict[str, Any]] = {
    "none": {"glass": False, "hessian": "none"},
    "glass": {"glass": True, "hessian": "none"},
    "abs": {"glass": False, "hessian": "abs"},
    "glass+abs": {"glass": True, "hessian": "abs"},
    "rms": {"glass": False, "hessian": "rms"},
    "signed": {"glass": False, "hessian": "signed"},
    "glass+signed": {"glass": True, "hessian": "signed"},
}
"""Curvature terms by the names the studies use."""

STEPS: dict[str, dict[str, Any]] = {
    "naq": dict(PAPER),
    "full": {**PAPER, "step_fraction": 1.0},
}
"""The paper's settings: Nesterov-accelerated quasi-Newton steps, and full quasi-Newton steps."""

LossOf = Callable[[Any, Any], Tensor]
Step = Callable[[Any, Any], Tensor]


class NotCompilable(RuntimeError):
    """Steps that cannot go through torch.compile, with the reason."""


class Method:
    """One or several optimizers that take a step together from one gradient.

    ``gradients`` counts evaluations so far. ``bind`` gives the function that the loop calls with
    every batch.
    """

    capturable = True
    averages = False
    """Whether the parameters evaluated are others than those trained."""
    max_grad_norm: float | None = None
    """Clip the gradient of all parameters before the update."""

    def __init__(self, model: nn.Module, *optimizers: Optimizer):
        self.model = model
        self.optimizers = optimizers
        self.gradients = 0
        self._cost = 1
        self._rates = [[float(group["lr"]) for group in o.param_groups] for o in optimizers]

    @property
    def rate(self) -> float:
        """The learning rate in use, of the first group."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def set_rate(self, factor: float) -> None:
        """Multiply every group's own learning rate by a factor of the schedule."""
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                if isinstance(group["lr"], Tensor):  # a graph reads it there
                    group["lr"].fill_(rate * factor)
                else:
                    group["lr"] = rate * factor

    def compiled(self, loss_of: LossOf, batch: tuple[Any, Any]) -> Callable[[Any], Any]:
        """What ``loss_of`` is to call in the place of the model, for steps through torch.compile.

        Where it cannot be had, `NotCompilable` says why, and all is as it was.
        """
        # Without the module's own hooks: Alice's would cut the graph in two.
        called: Callable[[Any], Any] = torch.compile(self.model.forward)
        return called

    def bind(self, loss_of: LossOf, batch: tuple[Any, Any], *, capture: bool) -> Step:
        """A step on a batch; with ``capture`` replayed from a CUDA graph.

        If a graph cannot hold the updates of all optimizers, it holds the gradient alone.
        """
        evaluate: Step = partial(self._gradient, loss_of)
        whole = False
        if capture and self.capturable:
            whole = all(map(is_capturable, self.optimizers))
            held = self.optimizers if whole else ()
            evaluate = GraphStep(self.model, evaluate, batch, held, self._update)

        def step(inputs: Any, targets: Any) -> Tensor:
            loss = evaluate(inputs, targets)
            if not whole:
                self._update()
            self.gradients += self._cost
            return loss

        return step

    def _gradient(self, loss_of: LossOf, inputs: Any, targets: Any) -> Tensor:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        self._cost = self._backward(loss)
        return loss.detach()

    def _backward(self, loss: Tensor) -> int:
        """Leave gradients; returns how many evaluations that took."""
        loss.backward()
        return 1

    def _update(self) -> None:
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within, the parameters are those to be evaluated."""
        yield

    def telemetry(self) -> dict[str, Any] | None:
        """What the optimizer says of its curvature, if it says anything."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"optimizers": states, "gradients": self.gradients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.gradients = state["gradients"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
            for group in optimizer.param_groups:  # what a graph needed is for the next graph to say
                group["lr"] = float(group["lr"])
                if "capturable" in group:
                    group["capturable"] = False


class AliceMethod(Method):
    """Alice, which asks for gradients itself."""

    def __init__(self, model: nn.Module, optimizer: Alice):
        super().__init__(model, optimizer)
        self.alice = optimizer

    def bind(self, loss_of: LossOf, batch: tuple[Any, Any], *, capture: bool) -> Step:
        """A step on a batch; with ``capture`` as CUDA graphs of whole steps."""

        def gradient(inputs: Any, targets: Any) -> Tensor:
            loss = loss_of(inputs, targets)
            loss.backward()
            return loss.detach()

        captured = None
        if capture:
            static = tuple(part.clone() for part in batch)
            captured = aliceopt.capture(self.alice, lambda: gradient(*static), static)

        def step(inputs: Any, targets: Any) -> Tensor:
            if captured is None:
                loss: Tensor = self.alice.step(lambda: gradient(inputs, targets))
            else:
                loss = captured(inputs, targets)
            self.gradients = self.alice.gradient_evaluations
            return loss

        return step

    def telemetry(self) -> dict[str, Any] | None:
        """Shares, densities and norms by group, and by the model's own blocks if it names them."""
        report = self.alice.telemetry(blocks=blocks_of(self.model)).as_dict()
        return {"groups": report["groups"], "blocks": report["blocks"]}


class AdaHessianMethod(Method):
    """AdaHessian differentiates twice by itself, or is given what `BothDerivatives` has compiled.

    A graph can hold it if it differentiates twice at every step.
    """

    def __init__(self, model: nn.Module, optimizer: AdaHessian):
        super().__init__(model, optimizer)
        self.adahessian = optimizer
        self.capturable = optimizer.update_period == 1
        self._both: BothDerivatives | None = None

    def compiled(self, loss_of: LossOf, batch: tuple[Any, Any]) -> Callable[[Any], Any]:
        """The model itself: it is gradient and diagonal together that are compiled."""
        if self.adahessian.num_samples > 1 or self.adahessian.update_period > 1:
            raise NotCompilable("it does not draw one diagonal at every step")
        try:
            self._both = BothDerivatives(self.model, loss_of, batch)
        except Exception as error:  # whatever it is: without, the run may well go on
            text = " ".join(str(error).split("\n")[:2]).strip()  # the first may say who raised it
            raise NotCompilable(f"{type(error).__name__}: {text}") from error
        return self.model

    def _gradient(self, loss_of: LossOf, inputs: Any, targets: Any) -> Tensor:
        if self._both is None or not self._both.fits(inputs, targets):
            return super()._gradient(loss_of, inputs, targets)
        loss, grads, diagonals = self._both(loss_of, inputs, targets)
        self._cost = self.adahessian.receive(grads, diagonals)
        return loss

    def _backward(self, loss: Tensor) -> int:
        return self.adahessian.backward(loss)


class ScheduleFreeMethod(Method):
    """Schedule-free optimizers evaluate at an average of the parameters they train."""

    averages = True

    def __init__(self, model: nn.Module, *optimizers: Any):
        super().__init__(model, *optimizers)
        for optimizer in optimizers:
            optimizer.train()

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within, the parameters are the average."""
        optimizers: tuple[Any, ...] = self.optimizers
        for optimizer in optimizers:
            optimizer.eval()
        try:
            yield
        finally:
            for optimizer in optimizers:
                optimizer.train()


OPTIMIZERS = {
    "alice": ("aliceopt", "Alice"),
    "adam": ("torch.optim", "Adam"),
    "adamw": ("torch.optim", "AdamW"),
    "nadamw": ("torch.optim", "NAdam"),
    "sgd": ("torch.optim", "SGD"),
    "adahessian": ("aliceopt.lab.optimizers.adahessian", "AdaHessian"),
    "schedule-free": ("schedulefree", "AdamWScheduleFree"),
    "muon": ("torch.optim", "Muon"),
}
"""Module and class by the names that plans use; a package may be missing."""
METHODS = tuple(OPTIMIZERS)
"""The optimizers a plan may name."""
_DRIVEN = {"adahessian": AdaHessianMethod, "schedule-free": ScheduleFreeMethod}
_USUAL: dict[str, dict[str, Any]] = {
    **{name: {"fused": True} for name in ("adam", "adamw", "sgd")},
    "nadamw": {"decoupled_weight_decay": True},
}
"""What the lab gives to an optimizer unless a plan says otherwise."""
_EXTRA: dict[str, set[str]] = {
    **{name: {"max_grad_norm"} for name in METHODS},
    "alice": {"terms", "step"},
    "muon": {"max_grad_norm", "kernels", "adam_lr", "adam_betas", "adam_weight_decay"},
}
"""What a plan may give beside the optimizer's own."""


def make_method(name: str, model: nn.Module, options: Mapping[str, Any], *, seed: int) -> Method:
    """The method of this name for a model, with the options of its optimizer and no others."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(METHODS)}; got {name!r}")
    try:
        optimizer = optimizer_class(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"optimizer {name!r} needs the package {error.name}: pip install 'aliceopt[lab]'"
        ) from error
    own = set(inspect.signature(optimizer).parameters) - {"params", "model", "kwargs"}
    known = sorted(own | _EXTRA[name])
    for option in options:
        if option not in known:
            raise ValueError(
                f"optimizer {name!r} has no option {option!r}; it has {', '.join(known)}"
            )
    norm = None if name == "alice" else options.get("max_grad_norm")  # Alice clips by itself
    if norm is not None:
        checked(Positive, norm, "max_grad_norm")
    method: Method
    given = arguments(name, options)
    if name == "alice":
        given = {"seed": seed, **given}
        method = AliceMethod(model, Alice(model.named_parameters(), model=model, **given))
    elif name == "muon":
        method = Method(model, *muon_and_adamw(model, given))
    else:
        method = _DRIVEN.get(name, Method)(model, optimizer(model.parameters(), **given))
    method.max_grad_norm = norm
    return method


def optimizer_class(name: str) -> Any:
    """The class that a plan calls by this name."""
    module, kind = OPTIMIZERS[name]
    return getattr(import_module(module), kind)


def arguments(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the optimizer is made with: a plan's options over the lab's usual ones.

    Alice's own go over those that ``terms`` and ``step`` stand for; with a ``step`` everything else
    starts from the paper's settings, without from the defaults.
    """
    chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    if name != "alice":
        chosen.pop("max_grad_norm", None)
        return chosen | {k: v for k, v in _USUAL.get(name, {}).items() if k not in chosen}
    found: dict[str, Any] = {}
    for option, known in (("step", STEPS), ("terms", TERMS)):
        value = chosen.pop(option, None)
        if value is not None:
            if value not in known:
                raise ValueError(f"{option} must be one of {', '.join(known)}; got {value!r}")
            found |= known[value]
    return found | chosen


def mean_gradients(name: str, options: Mapping[str, Any]) -> float:
    """Gradient evaluations a step in the long run: ``(q + 3) / (q + 1)`` for Alice that probes."""
    extra, period = _extra_gradients(name, options)
    return 1 + extra / period


def planned(name: str, options: Mapping[str, Any], steps: int) -> int:
    """Gradient evaluations of this many steps; the first is one of those that take more."""
    extra, period = _extra_gradients(name, options)
    return steps + extra * -(-steps // period)


def period(name: str, options: Mapping[str, Any]) -> int:
    """Every how many steps a method takes its dearest one."""
    return _extra_gradients(name, options)[1]


def _extra_gradients(name: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """Gradients beyond one a step, and every how many steps they are taken."""
    if name == "adahessian":
        return 2 * int(options.get("num_samples", 1)), int(options.get("update_period", 1))
    if name == "alice":
        chosen = {**TERMS["none"], "quick_steps": 3, **arguments(name, options)}
        if has_curvature(chosen):
            return 2, 1 + int(checked(whole(0), chosen["quick_steps"], "quick_steps"))
    return 0, 1
