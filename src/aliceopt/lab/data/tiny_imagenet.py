"""Tiny-ImageNet as its publisher has it, a zip of JPEG files, into the npz layout."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from aliceopt.lab.data.folder import DataError, Progress, reading
from aliceopt.lab.data.imagenet import PIXELS, TINY_IMAGENET_64
from aliceopt.lab.writing import writing

_MOST = 1 << 20  # bytes of a member: an image has some thousands, the labels less than half of it


def members(archive: zipfile.ZipFile, source: Path) -> tuple[list[str], list[str], list[str]]:
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
        classes, train, validation = members(archive, source)
        number = {name: i for i, name in enumerate(classes, start=1)}
        listed = _read(archive, f"{train[0].split('/')[0]}/val/val_annotations.txt").decode()
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


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
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
        content = io.BytesIO(_read(archive, name))
        with reading(source, f"{name} is no image"), Image.open(content, formats=["JPEG"]) as image:
            if image.size != (64, 64):  # told before anything is decoded
                raise DataError(f"{source}: {name} has {image.size} pixels, expected (64, 64)")
            data[i] = np.asarray(image.convert("RGB")).transpose(2, 0, 1).reshape(-1)
        if progress is not None and i % 500 == 0:
            progress("converting", i, len(names))
    return data
