"""Getting data sets from their publishers, and unpacking archives without trusting them.

A download goes to a ``.part`` file and can be cut off at any time: the next try goes on where it
ended, if the server can. Nothing is put in its place before it has been checked in full.
"""

from __future__ import annotations

import http.client
import re
import shutil
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from aliceopt.lab.data import imagenet
from aliceopt.lab.data.folder import (
    GENERATED,
    DataError,
    data_folder,
    generated_rows,
    reading,
)
from aliceopt.lab.data.registry import DataSet, Source, check_files, file_md5, named
from aliceopt.lab.writing import write_all, writing

WORK = ".download"  # below the data folder: partial downloads and what is being unpacked
_BLOCK = 1 << 18
_TRIES = 3
_TIMEOUT = 60.0
_AGENT = "aliceopt-data (python urllib)"  # some servers refuse urllib's own name


def get(
    name: str, root: str | Path | None = None, progress: imagenet.Progress | None = None
) -> Path:
    """Download set ``name``, check it in full and put it below ``root``; returns that folder.

    Nothing is done if all its files are there already. Raises DataError if the publisher wants a
    registration, the network fails or the files are not what they should be.
    """
    data_set, folder = named(name), data_folder(root)
    if all((folder / file).is_file() for file in data_set.files(folder)):
        return folder
    if generated_rows(name, folder) is not None:
        raise DataError(
            f"{folder / GENERATED} says that {name} is generated there: choose another folder"
        )
    source = data_set.source
    if source is None:
        raise DataError(by_hand(data_set, folder))
    archive = folder / WORK / source.file
    try:
        fetch(source.address, archive, md5=source.md5, most=source.most, progress=progress)
    except DataError as error:
        raise DataError(f"{error} (more about {name}: {data_set.page})") from None
    try:
        _install(name, source, archive, folder, progress)
    except DataError:
        archive.unlink(missing_ok=True)  # or the next try would find the same wrong files
        raise
    archive.unlink(missing_ok=True)
    if not any(archive.parent.iterdir()):
        archive.parent.rmdir()
    return folder


def by_hand(data_set: DataSet, folder: Path) -> str:
    """What to do about a set that no program may download."""
    place = (folder / data_set.files(folder)[0]).parent
    return (
        f"{data_set.name} cannot be downloaded by a program. On {data_set.page} "
        f"{data_set.by_hand}. Unpack the npz files into {place}, then run "
        f"'aliceopt data check {data_set.name} --data {folder}'. Terms: {data_set.terms}"
    )


def _install(
    name: str, source: Source, archive: Path, folder: Path, progress: imagenet.Progress | None
) -> None:
    """Unpack beside the archive, and move all of it into the data folder once it is found right."""
    staged = archive.parent / name
    shutil.rmtree(staged, ignore_errors=True)
    try:
        if source.kind == "file":
            with writing(staged / source.file):
                staged.mkdir(parents=True)
                shutil.copyfile(archive, staged / source.file)
        elif source.kind == "tiny-imagenet":
            imagenet.convert(archive, staged, progress)
        else:
            unpack(archive, staged, source.kind, source.unpacked)
        for report in check_files(name, staged):
            if not report.ok:
                raise DataError(
                    f"the download of {name} is wrong and was not kept: "
                    f"{report.file}: {report.detail}"
                )
        for file in sorted(path for path in staged.rglob("*") if path.is_file()):
            target = folder / file.relative_to(staged)
            with writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def fetch(
    address: str,
    target: Path,
    *,
    md5: str | None = None,
    most: int = 10**9,
    progress: imagenet.Progress | None = None,
) -> None:
    """Download ``address`` to ``target``, going on from ``target.part`` if there is one.

    A connection that breaks is tried again a few times, and the part is kept for the next call. A
    download with the wrong md5, or longer than ``most`` bytes, is deleted. ``target`` appears by a
    rename, whole or not at all; one that is there already, downloaded by hand perhaps, is used if
    its md5 is right.
    """
    if target.is_file():
        if md5 is not None and (found := file_md5(target)) != md5:
            raise DataError(f"{target}: has md5 {found}, expected {md5}: delete it")
        return
    part = target.with_name(target.name + ".part")
    with writing(part):
        target.parent.mkdir(parents=True, exist_ok=True)
    for last in [False] * (_TRIES - 1) + [True]:
        before = _size(part)
        try:
            if _continue(address, part, most, progress):
                break
            reason = "the connection was closed early"
        except urllib.error.HTTPError as error:  # such as 404: no better for asking again
            error.close()
            raise DataError(f"{address}: the server answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", None) or error) or type(error).__name__
        if last or _size(part) == before == 0:
            raise DataError(_interrupted(address, part, reason))
    if md5 is not None and (found := file_md5(part)) != md5:
        part.unlink()
        raise DataError(f"{address}: what came has md5 {found}, expected {md5}; it was deleted")
    part.replace(target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _interrupted(address: str, part: Path, reason: str) -> str:
    if have := _size(part):
        return (
            f"{address}: interrupted after {have:,} bytes ({reason}); they are kept in {part}: "
            "give the same command again to go on"
        )
    return (
        f"{address}: cannot be reached ({reason}). Check the network, or download it elsewhere and "
        f"put it at {part.with_suffix('')}"
    )


def _continue(address: str, part: Path, most: int, progress: imagenet.Progress | None) -> bool:
    """Ask for the rest of ``part`` and append it; True once it is complete."""
    have = _size(part)
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(address, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        whole = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        error.close()
        if whole is not None and int(whole[1]) == have:
            return True  # nothing was left to ask for
        part.unlink()  # longer than the file itself: not a part of it
        return False
    with answer:
        have, total = _placed(answer, have)
        _refuse_longer(address, part, total or 0, most)
        with writing(part):  # unbuffered: a full disk is told at once
            file = part.open("r+b" if have else "wb", buffering=0)
            file.seek(have)
            file.truncate()
        with file:
            while block := answer.read(_BLOCK):
                with writing(part):
                    write_all(file, block)
                have += len(block)
                _refuse_longer(address, part, have, most)
                if progress is not None:
                    progress("downloading", have, total)
    return total is None or have == total


def _refuse_longer(address: str, part: Path, size: int, most: int) -> None:
    if size > most:
        part.unlink(missing_ok=True)
        raise DataError(f"{address}: is longer than the {most:,} bytes expected; it was deleted")


def _placed(answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Where the answer's first byte belongs, and how many there are in all, if it says."""
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range") or "")
    if answer.status == 206 and span is not None and int(span[1]) <= have:
        return int(span[1]), None if span[2] == "*" else int(span[2])
    length = answer.headers.get("Content-Length")  # the server sends all of it again
    return 0, int(length) if length and length.isdecimal() else None


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
