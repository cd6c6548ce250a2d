"""Warnings that point at the user's line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

__all__ = ["SLIPS", "warn"]

SLIPS = {
    "never measured": "no curvature has been measured: step() after a plain backward is a quick "
    "step. Pass a closure to step(), or loop over evaluations() before it",
    "no model": "gradients are taken at the position, not ahead of it: give Alice(..., "
    "model=model), whose calls in training mode then look ahead, or set lookahead=1.0 if that is "
    "meant",
    "model not called": "gradients are taken at the position, not ahead of it: the model that "
    "Alice was given was in eval mode, or parts of it were called. Call it as a whole in training "
    "mode, or optimizer.look_ahead() before the forward pass; or set lookahead=1.0 if that is "
    "meant",
    "no gradients": "no parameter got a gradient at the center, in the last evaluation of a step, "
    "so nothing is done: call backward() inside the closure or the loop over evaluations()",
    "dropped": "gradients that were there before the evaluations of this step have been dropped: "
    "accumulate micro-batches inside the closure or the loop over evaluations(), or call "
    "zero_grad() first if they should not count",
    "no step": "the gradients of a finished loop over evaluations() have been dropped: call step() "
    "after each loop, and accumulate micro-batches inside the loop",
    "edited": ".grad was changed between the evaluations and step(), but the probes' gradients "
    "were not, and the difference will look like curvature. To clip gradients, use "
    "Alice(..., max_grad_norm=...)",
    "batches": "the rounds of one step saw different batches, whose difference will look like "
    "curvature: draw the batch outside the loop over evaluations() or the closure",
}
"""What an optimizer says once, if it comes to that."""

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
