"""Files that are written whole or not at all, and what is said when they cannot be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path


class WriteError(ValueError):
    """A file that cannot be written, by name and reason."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, what the system refuses is told of ``path``: a full disk does not say which file."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def write_all(file: FileIO, content: bytes) -> None:
    """To the last byte: an unbuffered file takes less of it where the disk is nearly full."""
    while content:
        content = content[file.write(content) :]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to; at the end it takes its place, after an error it goes.

    After a kill there is the old file or the new one.
    """
    beside = path.with_suffix(".writing")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
