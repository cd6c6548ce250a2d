"""Small images: CIFAR-10 in its binary version, and the digits that come with scikit-learn.

A row of CIFAR-10 is one label byte and 3,072 pixel bytes, channels first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aliceopt.lab.data.folder import DataError, Rows, found_file, rows_of

CLASSES = 10
SHAPE = (3, 32, 32)
ROW = 1 + 3 * 32 * 32
MD5 = {
    "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
FILES = tuple(MD5)
ROWS = dict.fromkeys(FILES, 10_000)


@dataclass(frozen=True)
class ImageParts:
    """Images [N, C, H, W], bytes or floats in [0, 1], with labels int64 [N] from 0."""

    train_images: Tensor
    train_labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor
    classes: int


def read_file(root: Path, relative: str, rows: Rows = None) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, 32, 32] and labels int64 [N]; refuses any other file."""
    count = rows_of(rows, ROWS, relative)
    path = found_file("cifar10", root, relative, size=count * ROW)
    table = torch.from_numpy(np.fromfile(path, np.uint8).reshape(count, ROW))
    labels = table[:, 0].long()
    wrong = (labels >= CLASSES).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{path}: row {row} has label {int(labels[row])}, outside 0 to {CLASSES - 1}"
        )
    return table[:, 1:].reshape(count, *SHAPE), labels


def read_cifar(root: Path, rows: Rows = None) -> ImageParts:
    """The five training files in order, and the test file as validation data."""
    *train, test = (read_file(root, relative, rows) for relative in FILES)
    images, labels = (torch.cat(tensors) for tensors in zip(*train, strict=True))
    return ImageParts(images, labels, *test, classes=CLASSES)


def examine_cifar(root: Path, relative: str, rows: Rows = None) -> str:
    """One line about a file that is right; DataError for one that is not."""
    images, _ = read_file(root, relative, rows)
    return f"{len(images):,} images, labels in 0..{CLASSES - 1}"


def read_digits() -> ImageParts:
    """Handwritten digits, 1,437 to train and 360 to validate: float32 [N, 1, 8, 8] in [0, 1].

    The division is always the same: images sorted by class, every fifth one for validation. So it
    is stratified to within one image a class, and depends on no seed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise DataError(
            'digits come with scikit-learn, which is not installed: pip install "aliceopt[lab]"'
        ) from None
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).div(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    if tuple(images.shape) != (1797, 1, 8, 8) or labels.max() != 9:
        raise DataError(f"scikit-learn's digits have changed: images {tuple(images.shape)}")
    by_class = labels.argsort(stable=True)
    held_out = torch.zeros_like(labels, dtype=torch.bool)
    held_out[by_class[::5]] = True
    return ImageParts(
        images[~held_out], labels[~held_out], images[held_out], labels[held_out], classes=10
    )
