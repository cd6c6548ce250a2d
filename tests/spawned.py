"""Programs of several processes, started by tests, of which nothing is left afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    """One thread a process, and the loopback device where there is one by the usual name."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "localhost", **more}
    if "lo" in (name for _, name in socket.if_nameindex()):
        env["GLOO_SOCKET_IFNAME"] = "lo"
    return env


@contextmanager
def running(
    command: list[str], env: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, all of which is gone afterwards."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=env, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
