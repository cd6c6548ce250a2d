"""Warnings that point at the user's line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

__all__ = ["warn"]

_INNER = (str(Path(__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)


def warn(message: str) -> None:
    """Issue a ``UserWarning`` for the nearest caller outside torch and this package.

    Schedulers and hooks wrap ``step`` in frames of their own, so no fixed ``stacklevel`` is right.
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _is_inner(frame):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_inner(frame: FrameType) -> bool:
    """Whether this is torch's code or ours, also what a dataclass has made of it."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return frame.f_code.co_filename.startswith(_INNER) or package in ("aliceopt", "torch")
