"""One command at a time in a folder of records."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from aliceopt.lab.writing import writing

try:
    import fcntl
except ImportError:  # Windows: two commands are not kept apart there
    fcntl = None  # type: ignore[assignment]

__all__ = ["NAME", "FolderInUse", "locked"]

NAME = ".lock"
"""The file in the folder that is locked; in it, who holds the lock."""


class FolderInUse(ValueError):
    """Another process works in the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes' commands out of ``folder`` while this one works in it.

    The operating system holds the lock and drops it when this process ends, however it ends, so a
    file that was left behind does not block. Folders that were made for the lock alone go with it.
    """
    if fcntl is None:
        yield
        return
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = _lock(folder)
    try:
        yield
    finally:
        if _is_still(file, folder / NAME):  # else somebody deleted it, and another holds the next
            (folder / NAME).unlink()
        file.close()
        for place in made:
            with contextlib.suppress(OSError):  # something is in it now
                place.rmdir()


def _lock(folder: Path) -> IO[str]:
    """The open file; the lock lives as long as it."""
    path = folder / NAME
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            # A record lock: unlike one of flock it is not handed down to forked processes, which
            # may outlive this one.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return file  # a file system without locks
            with file:
                raise FolderInUse(_refusal(folder, file)) from None
        if _is_still(file, path):
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}\n")
            file.flush()
            return file
        file.close()  # the last holder deleted it before it let go


def _is_still(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _refusal(folder: Path, file: IO[str]) -> str:
    file.seek(0)
    pid, _, host = file.read().strip().partition(" ")
    holder = f"process {pid}" if pid else "another process"
    where = f" on {host}" if host not in ("", socket.gethostname()) else ""
    return (
        f"{str(folder)!r} is in use by {holder}{where}: wait until it has ended, or choose "
        "another --out"
    )
