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
from types import FrameType
from typing import NoReturn

__all__ = ["Stop", "stopped_by_signal", "terms_as_ever", "terms_as_interrupts"]


class Stop:
    """True once the run is to stop. ``deadline`` is in seconds of `time.time`, or None."""

    def __init__(self, deadline: float | None = None):
        self.deadline = deadline
        self.signalled = False

    def __bool__(self) -> bool:
        return self.signalled or (self.deadline is not None and time.time() >= self.deadline)


@contextlib.contextmanager
def stopped_by_signal(deadline: float | None = None) -> Iterator[Stop]:
    """Within, SIGTERM ends nothing by itself: it only makes the `Stop` true."""
    stop = Stop(deadline)

    def heard(number: int, frame: FrameType | None) -> None:
        stop.signalled = True

    with _on_sigterm(heard):
        yield stop


@contextlib.contextmanager
def terms_as_interrupts() -> Iterator[None]:
    """Within, SIGTERM does what Ctrl-C does: ``KeyboardInterrupt``."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    with _on_sigterm(interrupt):
        yield


def terms_as_ever() -> contextlib.AbstractContextManager[None]:
    """Within, SIGTERM ends the process at once."""
    return _on_sigterm(signal.SIG_DFL)


@contextlib.contextmanager
def _on_sigterm(handler: signal._HANDLER) -> Iterator[None]:
    """Only the main thread may say what a signal does; elsewhere all stays as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
