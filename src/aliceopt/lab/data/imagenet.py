"""Downsampled ImageNet: npz files with ``data`` uint8 [N, 12288] and ``labels`` [N] from 1.

Arrays are read straight from the archive into one tensor, so 1.3 million images need their own
15.7 GB and little more. Their type and shape are checked before a pixel is read, and nothing is
ever unpickled.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from aliceopt.lab.data.errors import DataError, reading
from aliceopt.lab.data.folder import found_file
from aliceopt.lab.data.parts import ImageParts

SHAPE = (3, 64, 64)
PIXELS = 3 * 64 * 64
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Layout:
    """One set in this layout: folders that may hold it, its files and what they must add up to."""

    name: str
    folders: tuple[str, ...]
    train: tuple[str, ...]
    classes: int
    train_rows: int | None  # all training files together; None where any part of it will do
    validation_rows: int | None
    most: int  # of either
    validation: str = "val_data.npz"

    def files(self, root: Path) -> list[str]:
        """Paths below ``root``, training files first: where each lies, or where it should."""
        return [self._placed(root, name) for name in (*self.train, self.validation)]

    def _placed(self, root: Path, name: str) -> str:
        for folder in self.folders:
            if (root / folder / name).is_file():
                return f"{folder}/{name}"
        return f"{self.folders[0]}/{name}"


IMAGENET64 = Layout(
    name="imagenet64",
    folders=(
        "imagenet64",
        "Imagenet64_train_npz",
        "Imagenet64_train_part1_npz",
        "Imagenet64_train_part2_npz",
        "Imagenet64_val_npz",
        "Imagenet64_train",
        "Imagenet64_val",
    ),
    train=tuple(f"train_data_batch_{i}.npz" for i in range(1, 11)),
    classes=1000,
    train_rows=1_281_167,
    validation_rows=50_000,
    most=1_281_167,
)
TINY_IMAGENET_64 = Layout(
    name="tiny-imagenet-64",
    folders=("tiny-imagenet-64",),
    train=("train_data_batch_1.npz",),
    classes=200,
    train_rows=None,
    validation_rows=10_000,
    most=100_000,
)


def _member(path: Path, archive: zipfile.ZipFile, key: str) -> IO[bytes]:
    try:
        return archive.open(f"{key}.npy")
    except KeyError:
        found = ", ".join(sorted(n.removesuffix(".npy") for n in archive.namelist())) or "nothing"
        raise DataError(f"{path}: has no array {key!r} (found: {found})") from None


def _header(
    path: Path, key: str, member: IO[bytes]
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and type of the array that starts here."""
    try:
        version = np.lib.format.read_magic(member)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = read(member)
    except (KeyError, ValueError, EOFError) as error:
        raise DataError(f"{path}: array {key!r} has no readable header ({error})") from None
    if by_columns and len(shape) > 1:
        raise DataError(f"{path}: array {key!r} is stored by columns, expected by rows")
    return shape, dtype


def _fill(path: Path, key: str, member: IO[bytes], target: memoryview) -> None:
    """Read exactly as many bytes as ``target`` holds, and the end, where the zip's CRC is."""
    done = 0
    while done < len(target):
        block = member.read(min(_CHUNK, len(target) - done))
        if not block:
            raise DataError(
                f"{path}: array {key!r} is truncated, {done:,} of {len(target):,} bytes"
            )
        target[done : done + len(block)] = block
        done += len(block)
    if member.read(1):
        raise DataError(f"{path}: array {key!r} is longer than its header says")


@contextmanager
def _array(path: Path, key: str) -> Iterator[IO[bytes]]:
    """One array of an npz file, open; a file that is not whole is refused."""
    with (
        reading(path, "is truncated, damaged or no npz file"),
        zipfile.ZipFile(path) as archive,
        _member(path, archive, key) as member,
    ):
        yield member


def count_rows(path: Path, most: int) -> int:
    """Images in the file by its header, once type and shape are right and memory may be asked for.

    No file has more than ``most``, all that the set has.
    """
    with _array(path, "data") as member:
        shape, dtype = _header(path, "data", member)
    if dtype != np.uint8 or len(shape) != 2 or shape[1] != PIXELS:
        raise DataError(f"{path}: 'data' is {dtype} {shape}, expected uint8 (N, {PIXELS})")
    if not 0 <= shape[0] <= most:
        raise DataError(f"{path}: 'data' has {shape[0]:,} rows, the set has {most:,}")
    return shape[0]


def read_labels(path: Path, rows: int, classes: int) -> Tensor:
    """Labels int64 [rows], 0 to classes - 1 (the file counts from 1)."""
    with _array(path, "labels") as member:
        shape, dtype = _header(path, "labels", member)
        if dtype.kind not in "iu" or shape != (rows,):
            raise DataError(f"{path}: 'labels' is {dtype} {shape}, expected integers ({rows},)")
        labels = np.empty(rows, dtype)
        _fill(path, "labels", member, labels.view(np.uint8).data)
    wrong = np.flatnonzero((labels < 1) | (labels > classes))
    if len(wrong):
        row = wrong[0]
        raise DataError(f"{path}: row {row} has label {labels[row]}, outside 1 to {classes}")
    return torch.from_numpy(labels.astype(np.int64) - 1)


def read_images(path: Path, into: Tensor) -> None:
    """The pixels, into a contiguous uint8 tensor of as many rows."""
    with _array(path, "data") as member:
        _header(path, "data", member)
        _fill(path, "data", member, into.numpy().reshape(-1).data)


def _counts(
    layout: Layout, root: Path, files: list[str], total: int | None
) -> tuple[list[Path], list[int]]:
    """Where the files are and how many images each has, once the sum is right."""
    paths = [found_file(layout.name, root, relative) for relative in files]
    counts = [count_rows(path, layout.most) for path in paths]
    if total is not None and sum(counts) != total:
        named = paths[0] if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
        raise DataError(f"{named}: {sum(counts):,} images, expected {total:,}")
    return paths, counts


def _totals(
    layout: Layout, files: list[str], rows: Mapping[str, int] | None
) -> tuple[int | None, int | None]:
    """Images that all training files together and the validation file must have, where known."""
    if rows is None:
        return layout.train_rows, layout.validation_rows
    return sum(rows.get(f, 0) for f in files[:-1]), rows.get(files[-1], 0)


def _read_part(
    layout: Layout, root: Path, files: list[str], total: int | None
) -> tuple[Tensor, Tensor]:
    paths, counts = _counts(layout, root, files, total)
    labels = [read_labels(p, n, layout.classes) for p, n in zip(paths, counts, strict=True)]
    images = torch.empty((sum(counts), *SHAPE), dtype=torch.uint8)
    for path, part in zip(paths, images.split(counts), strict=True):
        read_images(path, part)
    return images, torch.cat(labels)


def read(layout: Layout, root: Path, rows: Mapping[str, int] | None = None) -> ImageParts:
    """All training files in order, and the validation file."""
    files = layout.files(root)
    train_rows, validation_rows = _totals(layout, files, rows)
    validation = _read_part(layout, root, files[-1:], validation_rows)
    train = _read_part(layout, root, files[:-1], train_rows)
    return ImageParts(*train, *validation, layout.classes)


def examine(
    layout: Layout, root: Path, relative: str, rows: Mapping[str, int] | None = None
) -> str:
    """One line about a file that is right in itself; DataError for one that is not."""
    path = found_file(layout.name, root, relative)
    count = count_rows(path, layout.most)
    expected = layout.validation_rows if relative.endswith(layout.validation) else None
    if rows is not None:
        expected = rows.get(relative, 0)
    if expected is not None and count != expected:
        raise DataError(f"{path}: {count:,} images, expected {expected:,}")
    read_labels(path, count, layout.classes)
    read_images(path, torch.empty((count, *SHAPE), dtype=torch.uint8))
    return f"{count:,} images, labels in 1..{layout.classes}"


def examine_whole(layout: Layout, root: Path, rows: Mapping[str, int] | None = None) -> str:
    """One line about the number of training images; DataError if it is not the official one."""
    files = layout.files(root)
    _, counts = _counts(layout, root, files[:-1], _totals(layout, files, rows)[0])
    return f"{sum(counts):,} training images in all"
