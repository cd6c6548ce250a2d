"""Whole training steps as CUDA graphs: `capture` makes one, `CapturedStep` replays it."""

from .step import CapturedStep, capture

__all__ = ["CapturedStep", "capture"]
