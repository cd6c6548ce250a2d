"""The folder of the data sets: where it is, what is generated in it, and how bad files are told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aliceopt.lab.writing import WriteError

VARIABLE = "ALICEOPT_DATA"
GENERATED = "generated.json"

Rows = Mapping[str, int] | None
"""Rows of each file as ``generated.json`` promises them; None for the official files."""


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


def data_folder(root: str | Path | None = None) -> Path:
    """The folder of the data sets: ``root``, else $ALICEOPT_DATA, else ~/.cache/aliceopt/data."""
    return Path(root or os.environ.get(VARIABLE) or "~/.cache/aliceopt/data").expanduser()


def read_generated(root: Path) -> dict[str, object]:
    """The contents of ``generated.json`` in ``root``; empty if there is none."""
    path = root / GENERATED
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: must hold one JSON object, got {type(content).__name__}")
    return content


def generated_rows(name: str, root: Path) -> dict[str, int] | None:
    """What ``generated.json`` promises of set ``name``, by file; None if it is not generated.

    Readers hold a file to these counts of rows (images, tokens, bytes), and to the publisher's own
    where the set is not listed, so a file of the wrong size is refused in both cases.
    """
    entry = read_generated(root).get(name)
    if entry is None:
        return None
    rows = entry.get("rows") if isinstance(entry, dict) else None
    if not isinstance(rows, dict) or not all(isinstance(count, int) for count in rows.values()):
        raise DataError(f"{root / GENERATED}: the entry of {name!r} has no 'rows' by file")
    return rows


def rows_of(rows: Rows, official: Mapping[str, int], relative: str) -> int:
    """How many rows file ``relative`` must have: as generated, or as published."""
    if rows is not None and relative not in rows:
        raise DataError(f"{GENERATED} does not list {relative}")
    return (official if rows is None else rows)[relative]


def found_file(name: str, root: Path, relative: str, size: int | None = None) -> Path:
    """The path of a file of set ``name``, or a DataError that says how to get it.

    With ``size`` a file that has not exactly so many bytes is refused.
    """
    path = root / relative
    if not path.is_file():
        raise DataError(
            f"{relative} of {name} is missing: looked in {root}. Get it with "
            f"'aliceopt data get {name} --data {root}', or point --data or ${VARIABLE} to the "
            "folder that holds it"
        )
    found = path.stat().st_size
    if size is not None and found != size:
        why = "it is truncated" if found < size else "it is too long"
        raise DataError(f"{path}: has {found:,} bytes, expected {size:,}: {why}")
    return path
