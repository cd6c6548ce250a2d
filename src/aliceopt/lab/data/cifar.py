"""CIFAR-10 in its binary version: rows of one label byte and 3,072 pixel bytes, channels first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aliceopt.lab.data.folder import DataError, ImageParts, Rows, found_file, rows_of

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


def read(root: Path, rows: Rows = None) -> ImageParts:
    """The five training files in order, and the test file as validation data."""
    *train, test = (read_file(root, relative, rows) for relative in FILES)
    images, labels = (torch.cat(tensors) for tensors in zip(*train, strict=True))
    return ImageParts(images, labels, *test, classes=CLASSES)


def examine(root: Path, relative: str, rows: Rows = None) -> str:
    """One line about a file that is right; DataError for one that is not."""
    images, _ = read_file(root, relative, rows)
    return f"{len(images):,} images, labels in 0..{CLASSES - 1}"
