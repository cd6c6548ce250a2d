"""The one error of the data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aliceopt.lab.writing import WriteError


class DataError(ValueError):
    """Something a user can put right: a file is missing or wrong, or the request makes no sense.

    The message names the file or the value, what is wrong with it and what to do.
    """


@contextmanager
def reading(path: Path, wrong: str) -> Iterator[None]:
    """Within, whatever a library raises over the content of a file is told of ``path``.

    Over damaged bytes zipfile, tarfile, numpy and pillow raise a dozen kinds of errors between
    them, RuntimeError for an encrypted archive. A file that cannot be opened says so itself.
    """
    try:
        yield
    except (DataError, WriteError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise DataError(f"{path}: {wrong} ({str(error) or type(error).__name__})") from None
