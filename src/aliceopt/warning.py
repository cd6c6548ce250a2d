"""Warnings that point at the user's line."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

__all__ = ["user_stacklevel"]

_INNER = (str(Path(__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)


def user_stacklevel() -> int:
    """The ``stacklevel`` of the nearest caller outside torch and this package.

    Schedulers and hooks wrap ``step`` in frames of their own, so no fixed number is right.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INNER):
        frame = frame.f_back
        level += 1
    return level
