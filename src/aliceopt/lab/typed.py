"""Dataclasses to JSON and back; what does not fit is refused in a sentence that names the field."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

__all__ = ["FieldError", "check", "from_json", "to_json"]

T = TypeVar("T")

UNLESS_NONE = {"unless none": True}
"""The metadata of a field that JSON does not have at all where it is None."""

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    dict: "a table",
    list: "a list",
    tuple: "a list",
}


class Rule(NamedTuple):
    """What a number must hold to besides, in words and as a function: for `Annotated`."""

    words: str
    holds: Callable[[Any], bool]


Count = Annotated[int, Rule(">= 1", lambda value: value >= 1)]
Finite = Annotated[float, Rule("that is finite", math.isfinite)]
Positive = Annotated[float, Rule("> 0", lambda value: 0 < value < math.inf)]
NotNegative = Annotated[float, Rule(">= 0", lambda value: 0 <= value < math.inf)]


def whole(least: int, most: float = math.inf) -> Any:
    """The type of whole numbers in a range, for `checked`."""
    words = f">= {least}" if most == math.inf else f"from {least} to {most:,}"
    return Annotated[int, Rule(words, lambda value: least <= value <= most)]


class FieldError(ValueError):
    """A value that is not what a field holds."""


def to_json(value: Any) -> Any:
    """Plain values: tables, lists, words and numbers; those that are not finite become null."""
    if dataclasses.is_dataclass(value):
        said = {f.name: (getattr(value, f.name), f.metadata) for f in dataclasses.fields(value)}
        return {k: to_json(v) for k, (v, about) in said.items() if v is not None or not about}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(kind: type[T], value: object, name: str = "") -> T:
    """A dataclass from what `to_json` made of it; ``name`` is what an error calls the whole.

    >>> @dataclasses.dataclass
    ... class Place:
    ...     step: int
    ...     loss: float | None = None
    >>> from_json(Place, {"step": 3})
    Place(step=3, loss=None)
    >>> from_json(Place, {"step": 2.5}, "place")
    Traceback (most recent call last):
    aliceopt.lab.typed.FieldError: place.step must be a whole number, got 2.5
    """
    read: T = checked(kind, value, name)
    return read


def check(made: Any) -> None:
    """Refuse a dataclass with a field that does not hold what its type says."""
    kind_of: Any = type(made)
    for name, (kind, _) in _fields(kind_of).items():
        checked(kind, getattr(made, name), name)


def checked(kind: Any, value: Any, name: str) -> Any:
    """A value of any type, read as JSON has it; refused by ``name`` if it does not fit.

    >>> checked(Positive, -1, "--lr")
    Traceback (most recent call last):
    aliceopt.lab.typed.FieldError: --lr must be a number > 0, got -1
    """
    outer, parts = _taken_apart(kind)
    if outer in (Union, UnionType):
        return checked(_nearest(parts, value), value, name)
    if dataclasses.is_dataclass(outer) and isinstance(value, Mapping):
        return _made(outer, value, name)
    if outer is dict and isinstance(value, dict):
        return {key: checked(parts[1], item, f"{name}.{key}") for key, item in value.items()}
    if outer in (list, tuple) and isinstance(value, list | tuple):
        return outer(checked(parts[0], item, f"{name}[{i}]") for i, item in enumerate(value))
    if not fits(kind, value):
        shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:80]}..."
        raise FieldError(f"{name or 'it'} must be {_in_words(kind)}, got {shown}")
    return value


def _taken_apart(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind) or kind, typing.get_args(kind)


def fits(kind: Any, value: Any) -> bool:
    """Whether a value is of a kind that has no parts; true and false are no numbers."""
    outer, parts = _taken_apart(kind)
    if outer is Annotated:
        return fits(parts[0], value) and parts[1].holds(value)
    if outer is Literal:
        return any(value is part or (isinstance(part, str) and value == part) for part in parts)
    if outer is Any or isinstance(value, bool):
        return bool(outer in (Any, bool))
    return isinstance(value, int | float if outer is float else outer)


def _nearest(kinds: tuple[Any, ...], value: Any) -> Any:
    """Of several kinds the one that a value is of, or that an error may speak of."""
    tables: list[Any] = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    if isinstance(value, Mapping) and tables:
        return max(tables, key=lambda kind: len(set(_fields(kind)) & set(value)))
    fitting = [kind for kind in kinds if fits(kind, value)]
    return (fitting or [kind for kind in kinds if kind is not NoneType])[0]


def _made(kind: Any, value: Mapping[str, Any], name: str) -> Any:
    known, prefix = _fields(kind), f"{name}." if name else ""
    for key in value:
        if key not in known:
            raise FieldError(f"{prefix}{key} is not known; there is {', '.join(known)}")
    for key, (_, needed) in known.items():
        if needed and key not in value:
            raise FieldError(f"{prefix}{key} is missing")
    read = {key: checked(known[key][0], item, f"{prefix}{key}") for key, item in value.items()}
    try:
        return kind(**read)
    except ValueError as error:
        raise FieldError(f"{prefix}{error}") from error


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Every field's type, and whether it must be given."""
    types = typing.get_type_hints(kind, include_extras=True)
    missing = dataclasses.MISSING
    return {
        f.name: (types[f.name], f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(kind)
    }


def _in_words(kind: Any) -> str:
    outer, parts = _taken_apart(kind)
    if outer is Annotated:
        return f"{_in_words(parts[0])} {parts[1].words}"
    if outer is Literal:
        return " or ".join(str(part) for part in parts)
    return "a table" if dataclasses.is_dataclass(outer) else _WORDS[outer]
