"""Where data sets lie on disk, and which of them are generated."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from aliceopt.lab.data.errors import DataError

VARIABLE = "ALICEOPT_DATA"
GENERATED = "generated.json"


def data_folder(root: str | Path | None = None) -> Path:
    """The folder of the data sets: ``root``, else $ALICEOPT_DATA, else ~/.cache/aliceopt/data."""
    chosen = root or os.environ.get(VARIABLE) or Path("~/.cache/aliceopt/data")
    return Path(chosen).expanduser()


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


def found_file(name: str, root: Path, relative: str) -> Path:
    """The path of a file of set ``name``, or a DataError that says how to get it."""
    path = root / relative
    if not path.is_file():
        raise DataError(
            f"{relative} of {name} is missing: looked in {root}. Get it with "
            f"'aliceopt data get {name} --data {root}', or point --data or ${VARIABLE} to the "
            "folder that holds it"
        )
    return path


def checked_size(path: Path, size: int) -> None:
    """Refuse a file that has not exactly ``size`` bytes."""
    found = path.stat().st_size
    if found != size:
        why = "it is truncated" if found < size else "it is too long"
        raise DataError(f"{path}: has {found:,} bytes, expected {size:,}: {why}")


def rows_of(rows: Mapping[str, int] | None, official: Mapping[str, int], relative: str) -> int:
    """How many rows file ``relative`` must have: as generated, or as published."""
    if rows is None:
        return official[relative]
    try:
        return rows[relative]
    except KeyError:
        raise DataError(f"{GENERATED} does not list {relative}") from None
