"""Unpacking downloaded archives without trusting them."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from aliceopt.lab.data.folder import DataError, reading
from aliceopt.lab.writing import write_all, writing

_BLOCK = 1 << 20


def unpack(archive: Path, into: Path, kind: Literal["zip", "tar"], most: int = 10**9) -> None:
    """Unpack the regular files of ``archive`` below ``into``.

    Everything is looked at before anything is written: a path that leads outside ``into``, a link,
    a device, or more than ``most`` bytes in all refuses the whole archive.
    """
    with reading(archive, f"is not a whole {kind} archive"):
        if kind == "zip":
            _unpack_zip(archive, into, most)
        else:
            _unpack_tar(archive, into, most)


def safe_target(archive: Path, name: str, into: Path) -> Path:
    """Where the member called ``name`` goes, or a DataError if that is outside ``into``."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name:
        raise DataError(f"{archive}: refused, it holds {name!r}, which leads outside the folder")
    return into / path


def _refuse_more(archive: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(f"{archive}: refused, it unpacks to more than {most:,} bytes")


def _unpack_zip(archive: Path, into: Path, most: int) -> None:
    with zipfile.ZipFile(archive) as content:
        targets, size = [], 0
        for info in content.infolist():
            target = safe_target(archive, info.filename, into)
            if stat.S_ISLNK(info.external_attr >> 16):
                raise DataError(f"{archive}: refused, {info.filename!r} is a link")
            size += info.file_size
            _refuse_more(archive, size, most)
            if not info.is_dir():
                targets.append((info, target))
        for info, target in targets:
            with content.open(info) as source:
                _copy(source, target)


def _unpack_tar(archive: Path, into: Path, most: int) -> None:
    with tarfile.open(archive) as content:
        targets, size = [], 0
        for member in content:
            target = safe_target(archive, member.name, into)
            if not (member.isfile() or member.isdir()):
                raise DataError(f"{archive}: refused, {member.name!r} is neither file nor folder")
            size += member.size
            _refuse_more(archive, size, most)
            if member.isfile():
                targets.append((member, target))
        # tarfile takes a cut for the end; the compression underneath knows better.
        rest = 0
        while content.fileobj is not None and (block := content.fileobj.read(_BLOCK)):
            rest += len(block)
            _refuse_more(archive, rest, _BLOCK + most)
        for member, target in targets:
            source = content.extractfile(member)
            assert source is not None, "a regular file has contents"
            with source:
                _copy(source, target)


def _copy(source: IO[bytes], target: Path) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb", buffering=0)
    with file:
        while block := source.read(_BLOCK):
            with writing(target):
                write_all(file, block)
