"""Is a data set on disk what it should be?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aliceopt.lab.data.folder import DataError, data_folder, generated_rows
from aliceopt.lab.data.registry import named


@dataclass(frozen=True)
class FileReport:
    """The verdict on one file: right or not, and why."""

    file: str
    ok: bool
    detail: str


def file_md5(path: Path) -> str:
    """The md5 sum of a file, in hexadecimal; it tells damage apart, not malice."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def present_files(name: str, root: str | Path | None = None) -> tuple[list[str], list[str]]:
    """The files of set ``name`` that are there, and those that are missing."""
    folder = data_folder(root)
    files = named(name).files(folder)
    missing = [file for file in files if not (folder / file).is_file()]
    return [file for file in files if file not in missing], missing


def check_files(name: str, root: str | Path | None = None) -> Iterator[FileReport]:
    """Read every file of set ``name`` in full and report on each, then on the set as a whole.

    Sizes, counts, types and labels are checked always; md5 sums where the publisher gives them, and
    then not for generated data.
    """
    data_set, folder = named(name), data_folder(root)
    rows = generated_rows(name, folder)
    failed = False
    for file in data_set.files(folder):
        try:
            detail = data_set.examine(folder, file, rows)
            if rows is None and file in data_set.md5:
                found, published = file_md5(folder / file), data_set.md5[file]
                if found != published:
                    raise DataError(f"has md5 {found}, published is {published}")
                detail += ", md5 as published"
        except (DataError, OSError) as error:
            failed = True
            missing = not (folder / file).exists()
            detail = "missing" if missing else str(error).removeprefix(f"{folder / file}: ")
            yield FileReport(file, False, detail)
        else:
            yield FileReport(file, True, detail + (", generated" if rows is not None else ""))
    if data_set.whole is not None and not failed:
        try:
            yield FileReport(name, True, data_set.whole(folder, rows))
        except DataError as error:
            yield FileReport(name, False, str(error))
