"""Downsampled ImageNet: npz files with ``data`` uint8 [N, 12288] and ``labels`` [N] from 1.

Tiny-ImageNet, a zip of JPEG files as its publisher has it, is converted to the same layout.

Arrays are read straight from the archive into one tensor, so 1.3 million images need their own
15.7 GB and little more. Their type and shape are checked before a pixel is read, and nothing is
ever unpickled.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from aliceopt.lab.data.folder import DataError, Rows, found_file, reading
from aliceopt.lab.data.images import ImageParts
from aliceopt.lab.writing import writing

SHAPE = (3, 64, 64)
PIXELS = 3 * 64 * 64
_CHUNK = 1 << 24
_MOST = 1 << 20  # bytes of a member: an image has some thousands, the labels less than half of it
Progress = Callable[[str, int, int | None], None]
"""Told what is done, bytes or items so far, and in all."""

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@contextmanager
def _array(
    path: Path, key: str
) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[np.generic]]]:
    """One array of an npz file, open behind its header, with its shape and type."""
    damaged = "is truncated, damaged or no npz file"
    with reading(path, damaged), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if f"{key}.npy" not in names:
            found = ", ".join(sorted(n.removesuffix(".npy") for n in names)) or "nothing"
            raise DataError(f"{path}: has no array {key!r} (found: {found})")
        with archive.open(f"{key}.npy") as member:
            try:
                version = np.lib.format.read_magic(member)
                shape, by_columns, dtype = _HEADERS[version](member)
            except (KeyError, ValueError, EOFError) as error:
                raise DataError(f"{path}: array {key!r} has no readable header ({error})") from None
            if by_columns and len(shape) > 1:
                raise DataError(f"{path}: array {key!r} is stored by columns, expected by rows")
            yield member, shape, dtype


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


@dataclass(frozen=True)
class Layout:
    """One set in this layout: folders that may hold it, its files and what they must add up to."""

    name: str
    folders: tuple[str, ...]
    train: tuple[str, ...]
    classes: int
    train_rows: int | None  # all training files together; None where any part of it will do
    validation_rows: int
    most: int  # of either
    validation: str = "val_data.npz"

    def files(self, root: Path) -> list[str]:
        """Paths below ``root``, training files first: where each lies, or where it should."""
        found = []
        for name in (*self.train, self.validation):
            places = [f"{folder}/{name}" for folder in self.folders]
            found.append(next((p for p in places if (root / p).is_file()), places[0]))
        return found

    def count_rows(self, path: Path) -> int:
        """Images in a file by its header, of the right type and shape: memory may be asked for.

        No file has more than ``most``, all that the set has.
        """
        with _array(path, "data") as (_, shape, dtype):
            if dtype != np.uint8 or len(shape) != 2 or shape[1] != PIXELS:
                raise DataError(f"{path}: 'data' is {dtype} {shape}, expected uint8 (N, {PIXELS})")
            if not 0 <= shape[0] <= self.most:
                raise DataError(f"{path}: 'data' has {shape[0]:,} rows, the set has {self.most:,}")
            return shape[0]

    def read_labels(self, path: Path, rows: int) -> Tensor:
        """Labels int64 [rows], 0 to classes - 1 (the file counts from 1)."""
        with _array(path, "labels") as (member, shape, dtype):
            if dtype.kind not in "iu" or shape != (rows,):
                raise DataError(f"{path}: 'labels' is {dtype} {shape}, expected integers ({rows},)")
            labels = np.empty(rows, dtype)
            _fill(path, "labels", member, labels.view(np.uint8).data)
        wrong = np.flatnonzero((labels < 1) | (labels > self.classes))
        if len(wrong):
            row = wrong[0]
            raise DataError(
                f"{path}: row {row} has label {labels[row]}, outside 1 to {self.classes}"
            )
        return torch.from_numpy(labels.astype(np.int64) - 1)

    def _counts(
        self, root: Path, files: list[str], rows: Rows, official: int | None
    ) -> tuple[list[Path], list[int]]:
        """Where some files are and how many images each has, once the sum is right.

        The sum is ``official`` (any, if that is None), or what ``rows`` of generated data says.
        """
        paths = [found_file(self.name, root, relative) for relative in files]
        counts = [self.count_rows(path) for path in paths]
        total = official if rows is None else sum(rows.get(relative, 0) for relative in files)
        if total is not None and sum(counts) != total:
            named = paths[0] if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
            raise DataError(f"{named}: {sum(counts):,} images, expected {total:,}")
        return paths, counts

    def _read(
        self, root: Path, files: list[str], rows: Rows, official: int | None
    ) -> tuple[Tensor, Tensor]:
        """Images and labels of some files, in order."""
        paths, counts = self._counts(root, files, rows, official)
        labels = [self.read_labels(p, n) for p, n in zip(paths, counts, strict=True)]
        images = torch.empty((sum(counts), *SHAPE), dtype=torch.uint8)
        for path, part in zip(paths, images.split(counts), strict=True):
            with _array(path, "data") as (member, _, _):
                _fill(path, "data", member, part.numpy().reshape(-1).data)
        return images, torch.cat(labels)

    def read(self, root: Path, rows: Rows = None) -> ImageParts:
        """All training files in order, and the validation file."""
        *train, validation = self.files(root)
        held_out = self._read(root, [validation], rows, self.validation_rows)
        return ImageParts(*self._read(root, train, rows, self.train_rows), *held_out, self.classes)

    def examine(self, root: Path, relative: str, rows: Rows = None) -> str:
        """One line about a file that is right in itself; DataError for one that is not."""
        official = self.validation_rows if relative.endswith(self.validation) else None
        images, _ = self._read(root, [relative], rows, official)
        return f"{len(images):,} images, labels in 1..{self.classes}"

    def examine_whole(self, root: Path, rows: Rows = None) -> str:
        """One line about the number of training images; DataError if it is not the official one."""
        _, counts = self._counts(root, self.files(root)[:-1], rows, self.train_rows)
        return f"{sum(counts):,} training images in all"


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


def _members(archive: zipfile.ZipFile, source: Path) -> tuple[list[str], list[str], list[str]]:
    """Names of the classes, of the training images and of the validation images, sorted."""
    names = sorted(n for n in archive.namelist() if n.endswith(".JPEG"))
    train = [n for n in names if n.split("/")[1:2] == ["train"]]
    validation = [n for n in names if n.split("/")[1:2] == ["val"]]
    classes = sorted({n.split("/")[2] for n in train})
    many = max(len(train), len(validation)) > TINY_IMAGENET_64.most
    if not train or not validation or many or len(classes) > TINY_IMAGENET_64.classes:
        raise DataError(
            f"{source}: is not Tiny-ImageNet ({len(train)} training and {len(validation)} "
            f"validation images, {len(classes)} classes)"
        )
    return classes, train, validation


def convert(source: Path, into: Path, progress: Progress | None = None) -> None:
    """Write ``train_data_batch_1.npz`` and ``val_data.npz`` from ``tiny-imagenet-200.zip``.

    Class numbers, from 1, follow the sorted WordNet names. Grey images become RGB.
    """
    with reading(source, "is not Tiny-ImageNet"), zipfile.ZipFile(source) as archive:
        classes, train, validation = _members(archive, source)
        number = {name: i for i, name in enumerate(classes, start=1)}
        listed = _member(archive, f"{train[0].split('/')[0]}/val/val_annotations.txt").decode()
        of_image = {line.split("\t")[0]: line.split("\t")[1] for line in listed.splitlines()}
        trained = [number[n.split("/")[2]] for n in train]
        validated = [number[of_image[n.split("/")[-1]]] for n in validation]
        folder = into / TINY_IMAGENET_64.folders[0]
        for name, images, labels in (
            (TINY_IMAGENET_64.train[0], train, trained),
            (TINY_IMAGENET_64.validation, validation, validated),
        ):
            data = _decoded(archive, images, progress)
            with writing(folder / name):
                folder.mkdir(parents=True, exist_ok=True)
                np.savez(folder / name, data=data, labels=np.array(labels, np.int64))


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """One member, unless it is longer than any that Tiny-ImageNet has."""
    size = archive.getinfo(name).file_size
    if size > _MOST:
        raise DataError(f"{archive.filename}: {name} has {size:,} bytes, more than {_MOST:,}")
    return archive.read(name)


def _decoded(
    archive: zipfile.ZipFile, names: list[str], progress: Progress | None
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError(
            'converting Tiny-ImageNet needs pillow: pip install "aliceopt[lab]"'
        ) from None
    source = Path(archive.filename or "")
    data = np.empty((len(names), PIXELS), np.uint8)
    for i, name in enumerate(names):
        content = io.BytesIO(_member(archive, name))
        with reading(source, f"{name} is no image"), Image.open(content, formats=["JPEG"]) as image:
            if image.size != (64, 64):  # told before anything is decoded
                raise DataError(f"{source}: {name} has {image.size} pixels, expected (64, 64)")
            data[i] = np.asarray(image.convert("RGB")).transpose(2, 0, 1).reshape(-1)
        if progress is not None and i % 500 == 0:
            progress("converting", i, len(names))
    return data
