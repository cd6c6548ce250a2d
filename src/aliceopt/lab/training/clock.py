"""The time that a run has spent in its steps."""

from __future__ import annotations

import datetime
import time

import torch


class Clock:
    """Seconds spent in steps; evaluation, records and checkpoints do not count."""

    def __init__(self, device: torch.device):
        self.seconds = 0.0
        self._device, self._since = device, 0.0

    def start(self) -> None:
        """Go on counting."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Wait for the device, and stop counting."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds += time.perf_counter() - self._since


def now() -> str:
    """The date and time, for records."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
