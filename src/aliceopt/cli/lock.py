"""One command at a time in a folder of records."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from aliceopt.lab.writing import writing

NAME = ".lock"
"""The file in the folder that is locked; in it, who holds the lock."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What a file system without locks answers."""


class FolderInUse(ValueError):
    """Another process works in the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes' commands out of ``folder`` while this one works in it.

    The operating system holds the lock and drops it when this process ends, however it ends, so a
    file that was left behind does not block. Folders that were made for the lock alone go with it.
    """
    _check_folder(folder)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    path, holder = folder / NAME, f"{os.getpid()} {socket.gethostname()}\n"
    lock = FileLock(path, fallback_to_soft=False)  # a file alone would block once left behind
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            told = ""
            with contextlib.suppress(OSError):  # just deleted by its holder; or Windows, as below
                told = path.read_text(encoding="utf-8")
            pid, _, host = told.strip().partition(" ")
            by = f"process {pid}" if pid else "another process"
            where = f" on {host}" if host not in ("", socket.gethostname()) else ""
            raise FolderInUse(
                f"{str(folder)!r} is in use by {by}{where}: wait until it has ended, or choose "
                "another --out"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        with contextlib.suppress(PermissionError):  # Windows keeps everybody from what is locked
            path.write_text(holder, encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == holder:  # else another holds the next
                path.unlink()
        lock.release()
        for place in made:
            with contextlib.suppress(OSError):  # something is in it now
                place.rmdir()


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"cannot write {str(folder)!r}: it is a file; choose another --out")
