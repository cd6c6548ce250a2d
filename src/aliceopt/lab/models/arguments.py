"""The arguments that models accept: activations by name, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from aliceopt.lab.typed import Count, checked, fits

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}
"""Activations by name. The first four have kinks, hence glass; the others have none."""


def activation_named(name: str) -> nn.Module:
    """A fresh activation module; an unknown name is refused with the list of those there are.

    >>> activation_named("relu")
    ReLU()
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    return ACTIVATIONS[name]()


def require_switch(**values: Any) -> None:
    """Raise ``ValueError`` unless each named value is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def require_whole(**values: Any) -> None:
    """Raise ``ValueError`` unless each named value is a whole number of at least 1."""
    for name, value in values.items():
        checked(Count, value, name)


def require_whole_each(name: str, values: Any, *, least_count: int = 1) -> tuple[int, ...]:
    """Give ``values`` as a tuple of whole numbers >= 1, at least ``least_count`` of them."""
    if not isinstance(values, (list, tuple)) or len(values) < least_count:
        raise ValueError(
            f"{name} must be a list or tuple of at least {least_count} whole numbers, "
            f"got {values!r}"
        )
    if not all(fits(Count, value) for value in values):
        raise ValueError(f"every entry of {name} must be a whole number >= 1, got {values!r}")
    return tuple(values)


def require_share(*, zero: bool, one: bool, **values: Any) -> None:
    """Raise ``ValueError`` unless each value lies between 0 and 1, ends included as told."""
    words = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
    for name, value in values.items():
        inside = fits(float, value) and (
            0 < value < 1 or (zero and value == 0) or (one and value == 1)
        )
        if not inside:
            raise ValueError(f"{name} must be a number in {words}, got {value!r}")
