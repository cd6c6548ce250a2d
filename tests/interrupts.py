"""Ctrl-C before any one line or instruction, for the tests of what an interrupt leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

__all__ = ["codes_of", "interrupted"]


def codes_of(*things: Any) -> frozenset[CodeType]:
    """All code of functions, of classes and of what a module defines, comprehensions included."""
    return frozenset(code for thing in things for code in _codes(thing))


def _codes(thing: Any) -> Iterator[CodeType]:
    if isinstance(thing, CodeType):
        yield thing
        for constant in thing.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)
    elif isinstance(thing, (FunctionType, classmethod, staticmethod)):
        function = getattr(thing, "__func__", thing)
        yield from _codes(getattr(function, "__wrapped__", function).__code__)
    elif isinstance(thing, property):
        yield from _codes(thing.fget)
    elif isinstance(thing, (type, ModuleType)):
        name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
        for value in vars(thing).values():
            mine = getattr(value, "__module__", name) == name
            if mine and isinstance(
                value, (FunctionType, classmethod, staticmethod, property, type)
            ):
                yield from _codes(value)


def interrupted(
    work: Callable[[], Any],
    codes: frozenset[CodeType],
    count: int,
    *,
    event: str = "opcode",
    armed: Callable[[], Any] = lambda: True,
    note: Callable[[FrameType], Any] = lambda frame: None,
) -> str:
    """Raise KeyboardInterrupt before that line or instruction in this code, if it comes to that.

    Counted are those that are met while ``armed``; ``note`` is told of each. Says where it was,
    or nothing.
    """
    met, where = 0, ""

    def inside(frame: FrameType, what: str, arg: object) -> Any:
        nonlocal met, where
        if what == event and armed():
            met += 1
            note(frame)
            if met == count:
                where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                sys.settrace(None)  # what follows is dealing with it
                raise KeyboardInterrupt
        return inside

    def trace(frame: FrameType, what: str, arg: object) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = event == "opcode"
        return inside

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(old)
    return where
