"""Unpacking downloaded archives without trusting them."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Literal

from aliceopt.lab.data.errors import DataError


def unpack(archive: Path, into: Path, kind: Literal["zip", "tar"]) -> None:
    """Unpack the regular files of ``archive`` below ``into``.

    Everything is looked at before anything is written: a path that leads outside ``into``, a link
    or a device refuses the whole archive.
    """
    try:
        if kind == "zip":
            _unpack_zip(archive, into)
        else:
            _unpack_tar(archive, into)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the archive
        raise DataError(f"{archive}: is not a whole {kind} archive ({error})") from None


def safe_target(archive: Path, name: str, into: Path) -> Path:
    """Where the member called ``name`` goes, or a DataError if that is outside ``into``."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name:
        raise DataError(f"{archive}: refused, it holds {name!r}, which leads outside the folder")
    return into / path


def _unpack_zip(archive: Path, into: Path) -> None:
    with zipfile.ZipFile(archive) as content:
        targets = []
        for info in content.infolist():
            target = safe_target(archive, info.filename, into)
            if stat.S_ISLNK(info.external_attr >> 16):
                raise DataError(f"{archive}: refused, {info.filename!r} is a link")
            if not info.is_dir():
                targets.append((info, target))
        for info, target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            with content.open(info) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)


def _unpack_tar(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as content:
        targets = []
        for member in content.getmembers():
            target = safe_target(archive, member.name, into)
            if not (member.isfile() or member.isdir()):
                raise DataError(f"{archive}: refused, {member.name!r} is neither file nor folder")
            if member.isfile():
                targets.append((member, target))
        # tarfile takes a cut for the end; the compression underneath knows better.
        while content.fileobj is not None and content.fileobj.read(1 << 20):
            pass
        for member, target in targets:
            source = content.extractfile(member)
            assert source is not None, "a regular file has contents"
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
