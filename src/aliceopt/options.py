"""Alice's options: which there are, what they may be, and what they come to in a given step."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .sharding import align_gradients_, block_of, is_dtensor
from .topography import Rates

__all__ = [
    "COUNTS",
    "OPTIONS",
    "PAPER",
    "SHARED",
    "advanced",
    "check_added",
    "check_choice",
    "check_group",
    "check_groups",
    "check_holds",
    "check_model",
    "check_names",
    "check_parameter",
    "has_curvature",
    "is_due",
    "number",
    "prepare_gradients_",
    "probe_radius",
    "rates",
    "step_fraction",
]

COUNTS = ("cadence", "measuring_count", "quick_count", "owed_from", "owed_until")
"""Steps in the cycle, measuring and quick steps taken, and when what is owed is paid."""

SHARED = ("quick_steps", "seed", "max_grad_norm", *COUNTS)
"""Per optimizer, not per group. Kept in every group, because that is what checkpoints carry."""

OPTIONS = (
    "lr",
    "lr_min",
    "probe_radius",
    "betas",
    "eps",
    "step_fraction",
    "lookahead",
    "limit",
    "hessian",
    "glass",
    "weight_decay",
    "maximize",
    *SHARED,
)
"""What a group holds of Alice's, in the order of the constructor."""

PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "lr": 1e-2,
        "lr_min": 0.0,
        "probe_radius": None,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "step_fraction": None,
        "lookahead": 1.0,
        "limit": "adam",
        "hessian": "abs",
        "glass": True,
        "quick_steps": 3,
        "weight_decay": 0.0,
    }
)
"""The settings of "Curvature in the Looking-Glass": ``Alice(params, **PAPER)``."""

_EDITABLE = OPTIONS[: -len(COUNTS)]
"""All but the counts."""

LIMITS = ("adam", "fixed", "sgd")
HESSIANS = ("none", "abs", "rms", "signed")

_FSDP1 = "is flattened by FullyShardedDataParallel, so its place is unknown: use FSDP2, fully_shard"


def number(value: float | Tensor) -> float:
    """A plain number from a number or a 0-dim (or one-element) tensor."""
    return float(value)


def has_curvature(group: dict[str, Any]) -> bool:
    """Whether any curvature term is on in this group."""
    return bool(group["glass"]) or group["hessian"] != "none"


def probe_radius(group: dict[str, Any]) -> float:
    """``lambda`` now: the given number, else half the current lr; zero with no curvature term."""
    if not has_curvature(group):
        return 0.0
    radius = group["probe_radius"]
    if radius is not None:
        return number(radius)
    if group["limit"] == "sgd":
        raise ValueError(
            "probe_radius must be given when limit is 'sgd' and a curvature term is on, got None: "
            "there lr is a rate, not a length"
        )
    return number(group["lr"]) / 2


def step_fraction(group: dict[str, Any]) -> float:
    """``phi`` now: the given number, else ``(1 - beta1) lookahead``, Theorem 6's."""
    phi = group["step_fraction"]
    return float((1 - group["betas"][0]) * group["lookahead"] if phi is None else phi)


def is_due(shared: dict[str, Any]) -> bool:
    """Whether the next step should measure, if anything can be measured.

    Every ``quick_steps + 1``-th should. But what is trained now and then (one of several heads,
    say) may miss every one of these. A parameter that is updated without having been measured for
    longer than ``quick_steps`` of its own updates is owed a measurement: one step more measures,
    as far ahead as its last use lies back.
    """
    step = shared["measuring_count"] + shared["quick_count"] + 1
    owed = shared["owed_from"] <= step <= shared["owed_until"]
    return bool(owed or shared["cadence"] % (shared["quick_steps"] + 1) == 0)


def advanced(
    shared: dict[str, Any], *, measuring: bool, missed: bool, overdue: int | None
) -> dict[str, int]:
    """The counts after a step.

    ``missed``: it was due to measure and could not. ``overdue``: None, unless among those updated
    were some that had waited too long to be measured; a ``measuring`` step has paid that, and else
    they are likely to be used again after so many steps, 0 for the first or the second from now.
    """
    step = shared["measuring_count"] + shared["quick_count"] + 1
    owed = shared["owed_from"], shared["owed_until"]
    if overdue is not None and measuring:
        owed = 0, 0
    elif overdue is not None and owed[1] <= step:  # one debt at a time
        owed = (step + overdue, step + overdue) if overdue else (step + 1, step + 2)
    return {
        "cadence": shared["cadence"] + (not missed),  # what could not be taken stays due
        "measuring_count": shared["measuring_count"] + measuring,
        "quick_count": shared["quick_count"] + (not measuring),
        "owed_from": owed[0],
        "owed_until": owed[1],
    }


def rates(group: dict[str, Any], count: int, weight: float, *, measuring: bool) -> Rates:
    """The numbers of update ``count`` (from 1), given the topography's weight before it.

    The topography's memory, in steps, does not depend on how often it is measured.
    """
    beta1, beta2 = map(number, group["betas"])
    beta_topo = beta2 ** (group["quick_steps"] + 1)
    return Rates(
        beta1=beta1,
        beta2=beta2,
        beta_topo=beta_topo,
        grad_weight=1 - beta1**count,
        sq_weight=1 - beta2**count,
        topo_weight=beta_topo * weight + (1 - beta_topo) if measuring else weight,
        lr=number(group["lr"]),
        lr_min=number(group["lr_min"]),
        eps=number(group["eps"]),
        step_fraction=step_fraction(group),
        lookahead=number(group["lookahead"]),
        weight_decay=number(group["weight_decay"]),
        limit=group["limit"],
        hessian=group["hessian"],
        glass=group["glass"],
        measuring=measuring,
        maximize=group["maximize"],
    )


def check_names(group: dict[str, Any]) -> None:
    """Keys that are no options pass, as they do in torch, unless they look like a slip."""
    for key in set(group) - set(OPTIONS):
        meant = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.85)
        if meant:
            raise ValueError(f"{key!r} is no option of a group: did you mean {meant[0]!r}?")


def check_group(group: dict[str, Any]) -> None:
    """Raise ``ValueError`` for the first option out of range, naming option, value and range."""
    for name in ("lr", "lr_min", "weight_decay", "eps"):
        _check_number(name, group[name], minimum=0.0)
    if group["probe_radius"] is not None:
        _check_number("probe_radius", group["probe_radius"], minimum=0.0, open_below=True)
    _check_number("lookahead", group["lookahead"], minimum=0.0, open_below=True)
    if group["step_fraction"] is not None:
        _check_number("step_fraction", group["step_fraction"], minimum=0.0, open_below=True)
    if group["max_grad_norm"] is not None:
        _check_number("max_grad_norm", group["max_grad_norm"], minimum=0.0, open_below=True)
    _check_betas(group["betas"])
    check_choice("limit", group["limit"], LIMITS)
    check_choice("hessian", group["hessian"], HESSIANS)
    for name in ("glass", "maximize"):
        if not isinstance(group[name], bool):
            raise ValueError(f"{name} must be True or False, got {group[name]!r}")
    _check_count("quick_steps", group["quick_steps"], None)
    _check_count("seed", group["seed"], 2**63)
    probe_radius(group)  # a radius is needed and cannot be derived


def check_groups(groups: list[dict[str, Any]], checked: list[Any]) -> list[Any]:
    """Options may have been edited since the last step; what is shared is the first group's.

    ``checked`` is what the last call returned: values that are still there are not checked again.
    """
    shared = {name: groups[0][name] for name in SHARED}
    for group in groups[1:]:
        group.update(shared)
    now = [group[name] for group in groups for name in _EDITABLE]
    if len(now) == len(checked) and all(map(operator.is_, now, checked)):
        return checked
    for group in groups:
        check_group(group)
    # What can be changed in place has to be looked at every time.
    return [] if any(isinstance(value, (Tensor, list)) for value in now) else now


def _check_number(name: str, value: Any, *, minimum: float, open_below: bool = False) -> None:
    bracket = "(" if open_below else "["
    rule = f"{name} must be a number in {bracket}{minimum:g}, inf), got {value!r}"
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(rule)
        if value.device.type != "cpu":
            return  # reading it would wait for the device
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's are, too
        raise ValueError(rule)
    if not math.isfinite(value) or value < minimum or (open_below and value == minimum):
        raise ValueError(rule)


def _check_betas(betas: Any) -> None:
    rule = f"betas must be two numbers in [0, 1), got {betas!r}"
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(rule)
    for beta in betas:
        if isinstance(beta, bool) or not isinstance(beta, Real) or not 0 <= float(beta) < 1:
            raise ValueError(rule)


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise ``ValueError`` naming the option, its value and what it may be."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _check_count(name: str, value: Any, bound: int | None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < 0 or (bound is not None and value >= bound):
        limit = "" if bound is None else f" and < {bound}"
        raise ValueError(f"{name} must be a whole number >= 0{limit}, got {value!r}")


def check_added(group: dict[str, Any], number: int, model: nn.Module | None) -> None:
    """Refuse a group with an option out of range or a parameter that Alice cannot train."""
    check_names(group)
    check_group(group)
    for i, param in enumerate(group["params"]):
        names = group.get("param_names")
        label = repr(names[i]) if names else f"parameter {i}"
        check_parameter(param, f"{label} of group {number}", model=model)


def check_parameter(param: Tensor, name: str, *, model: nn.Module | None) -> None:
    """Refuse what the arithmetic cannot take: complex, sparse, non-floating, oddly sharded, and
    what is not there yet.
    """
    if is_lazy(param):
        raise ValueError(
            f"{name} is lazy and has no shape yet: run the model once before constructing Alice"
        )
    if param.is_complex():
        raise ValueError(
            f"{name} is complex ({param.dtype}); Alice needs real parameters: optimize "
            "torch.view_as_real of it"
        )
    if param.layout != torch.strided:
        raise ValueError(f"{name} has layout {param.layout}; Alice needs dense parameters")
    if not param.is_floating_point():
        raise ValueError(f"{name} has dtype {param.dtype}; Alice needs floating-point parameters")
    shape, strides = tuple(param.shape), param.stride()
    if any(stride == 0 and size > 1 for stride, size in zip(strides, shape, strict=True)):
        raise ValueError(f"{name} is expanded to {shape}, so that entries share memory: clone it")
    if getattr(param, "_is_flat_param", False):
        raise ValueError(f"{name} {_FSDP1}")
    if is_dtensor(param):
        block_of(param)  # refuses placements other than Shard and Replicate
        if model is None:
            raise ValueError(
                f"{name} is a DTensor, so model must be given, got None: an FSDP module left "
                "unsharded would not see the probes"
            )


def check_holds(model: nn.Module | None, params: Iterable[Tensor]) -> None:
    """Refuse a model that has nothing to do with the parameters: its buffers are the wrong ones."""
    if model is not None:
        held = {id(param) for param in model.parameters()}
        if not any(id(param) in held for param in params):
            raise ValueError(
                f"model ({type(model).__name__}) must be the module that the parameters belong "
                "to, but holds none of them"
            )


def check_model(model: Any) -> None:
    """Refuse what is no module, and FSDP1, whose shards do not say which elements they hold."""
    if model is None:
        return
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    compiled = [m for m in model.modules() if isinstance(m, torch.jit.ScriptModule)]
    traced = torch.jit._trace.TracedModule  # a part that was traced may be called, and has no hook
    if any(module is model or not isinstance(module, traced) for module in compiled):
        raise ValueError(
            f"model ({type(model).__name__}) is scripted, or part of it is, and TorchScript takes "
            "no hooks: give the module it was made from, or no model, and call "
            "optimizer.look_ahead() before the forward pass"
        )
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
            raise ValueError(f"a parameter of model {_FSDP1}")


def prepare_gradients_(params: Sequence[Tensor]) -> None:
    """Refuse sparse gradients; reduce and place the others as their parameters are."""
    grads = [grad for param in params if (grad := param.grad) is not None]
    if {grad.layout for grad in grads} - {torch.strided}:
        param = next(p for p in params if p.grad is not None and p.grad.layout != torch.strided)
        raise RuntimeError(
            f"Alice needs dense gradients, got layout {param.grad.layout} for a parameter of "  # type: ignore[union-attr]
            f"shape {tuple(param.shape)}: use sparse=False in the embedding"
        )
    if set(map(type, grads)) - {Tensor}:
        align_gradients_(params)
