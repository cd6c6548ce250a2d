"""Argument rules of the theory functions: one error sentence, naming argument, value and rule.

The bodies in this package are pure mathematics. Their rules stand beside them, in a decorator:

    @checked(glass_density=NONNEGATIVE, grad=FINITE)
    def glass_curvature(glass_density, grad, eps=EPS): ...

and ``glass_curvature.unchecked`` is the bare function, for inner loops that may not read values
back from the device.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Rule:
    """A condition on every entry of an argument and the words that state it."""

    words: str
    holds: Callable[[Tensor], Tensor]


FINITE = Rule("finite", torch.isfinite)
NONNEGATIVE = Rule("finite and >= 0", lambda x: torch.isfinite(x) & (x >= 0))
POSITIVE = Rule("finite and > 0", lambda x: torch.isfinite(x) & (x > 0))
BELOW_ONE = Rule("in [0, 1)", lambda x: (x >= 0) & (x < 1))
CURVATURE = Rule(">= 0 and not NaN", lambda x: x >= 0)


def require(name: str, value: Any, rule: Rule) -> None:
    """Raise ``ValueError`` naming the argument, its first offending value and the rule."""
    if not isinstance(value, (Tensor, int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a tensor or a number, got {type(value).__name__}")
    x = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    if x.dtype == torch.bool or x.is_complex():
        raise ValueError(f"{name} must be real numbers, got dtype {x.dtype}")
    bad = ~rule.holds(x)
    if bool(bad.any()):
        worst = x[bad].flatten()[0].item()
        raise ValueError(f"{name} must be {rule.words}, got {worst!r}")


def require_broadcastable(**arguments: Any) -> None:
    """Raise ``ValueError`` listing every shape when the tensors do not broadcast together."""
    shapes = {k: tuple(v.shape) for k, v in arguments.items() if isinstance(v, Tensor)}
    try:
        torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"shapes must agree or broadcast, got {listed}") from None


def require_tensor(name: str, value: Any) -> None:
    """Raise ``TypeError`` naming the argument where a number or list stands for a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {value!r}")


def require_shape(name: str, value: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise ``ValueError`` unless ``value`` has this shape (None matches any length)."""
    require_tensor(name, value)
    actual = tuple(value.shape)
    if len(actual) != len(shape) or any(
        want is not None and want != got for want, got in zip(shape, actual, strict=True)
    ):
        wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        raise ValueError(f"{name} must have shape {wanted}, got {actual}")


class Checked(Generic[P, R]):
    """A function that checks its arguments' rules first; ``unchecked`` is the bare function."""

    def __init__(self, function: Callable[P, R], rules: dict[str, Rule]):
        functools.update_wrapper(self, function)
        self.unchecked = function
        self._rules = rules
        self._signature = inspect.signature(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        checked = {name: bound.arguments[name] for name in self._rules}
        for name, value in checked.items():
            require(name, value, self._rules[name])
            if self._signature.parameters[name].annotation == "Tensor":
                require_tensor(name, value)
        require_broadcastable(**checked)
        return self.unchecked(*args, **kwargs)


def checked(**rules: Rule) -> Callable[[Callable[P, R]], Checked[P, R]]:
    """Attach value rules to arguments; all tensors among them must broadcast together."""

    def decorate(function: Callable[P, R]) -> Checked[P, R]:
        unknown = set(rules) - set(inspect.signature(function).parameters)
        if unknown:
            raise TypeError(f"rules for unknown arguments {sorted(unknown)}")
        return Checked(function, rules)

    return decorate


def require_int(name: str, value: Any, minimum: int) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of at least ``minimum``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < minimum:
        raise ValueError(f"{name} must be a whole number >= {minimum}, got {value!r}")


def require_close(name: str, value: float, target: float, words: str, tolerance: float) -> None:
    """Raise ``ValueError`` when a computed property of an argument misses what it must be."""
    if not math.isfinite(value) or abs(value - target) > tolerance:
        raise ValueError(f"{name} must have {words} {target:g}, got {value:.6g}")
