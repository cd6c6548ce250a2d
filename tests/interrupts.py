"""Ctrl-C before any one instruction, for the tests of what an interrupt leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["interrupted"]


def interrupted(work: Callable[[], Any], functions: tuple[Any, ...], instruction: int) -> bool:
    """Raise KeyboardInterrupt before that instruction in these functions, if it comes to that."""
    codes: set[CodeType] = {function.__code__ for function in functions}
    count = 0

    def inside(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "opcode"
        if event == "opcode" and count == instruction:
            sys.settrace(None)  # what follows is dealing with it
            raise KeyboardInterrupt
        return inside

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        return inside

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(old)
    return False
