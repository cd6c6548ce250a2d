"""When a run is to stop before its end: after SIGTERM, or when its time is up.

Both are noticed between two steps. The run then saves a checkpoint and leaves, and ``--resume``
goes on from that very step.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stop:
    """True once the run is to stop. ``deadline`` is in seconds of `time.time`, or None."""

    deadline: float | None = None
    signalled: bool = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler."""
        self.signalled = True

    def __bool__(self) -> bool:
        return self.signalled or (self.deadline is not None and time.time() >= self.deadline)


@contextlib.contextmanager
def on_sigterm(handler: signal._HANDLER) -> Iterator[None]:
    """Within, SIGTERM does this.

    Only the main thread may say what a signal does; elsewhere all stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stopped_by_signal(deadline: float | None = None) -> Iterator[Stop]:
    """Within, SIGTERM ends nothing by itself: it only makes the `Stop` true."""
    stop = Stop(deadline)
    with on_sigterm(stop.hear):
        yield stop


def terms_as_interrupts() -> contextlib.AbstractContextManager[None]:
    """Within, SIGTERM does what Ctrl-C does: ``KeyboardInterrupt``."""
    return on_sigterm(signal.default_int_handler)
