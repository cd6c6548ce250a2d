"""CIFAR-10 in its binary version: rows of one label byte and 3,072 pixel bytes, channels first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aliceopt.lab.data.errors import DataError
from aliceopt.lab.data.folder import checked_size, found_file, rows_of
from aliceopt.lab.data.parts import ImageParts

NAME = "cifar10"
CLASSES = 10
SHAPE = (3, 32, 32)
ROW = 1 + 3 * 32 * 32
TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))
TEST = "cifar-10-batches-bin/test_batch.bin"
ROWS = dict.fromkeys((*TRAIN, TEST), 10_000)
MD5 = dict(
    zip(
        ROWS,
        (
            "5dd7e06a14cb22eb9f671a540d1b7c25",
            "5ea93a67294ea407fff1d09f752e9692",
            "942cd6a4bcdd0dd3c604fbe906cb4421",
            "ae636b3ba5c66a11e91e8cb52e771fcb",
            "53f37980c15c3d472c316c40844f3f0d",
            "803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
        strict=True,
    )
)


def read_file(path: Path, rows: int) -> tuple[Tensor, Tensor]:
    """Images uint8 [rows, 3, 32, 32] and labels int64 [rows]; refuses any other file."""
    checked_size(path, rows * ROW)
    table = torch.from_numpy(np.fromfile(path, np.uint8).reshape(rows, ROW))
    labels = table[:, 0].long()
    wrong = (labels >= CLASSES).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{path}: row {row} has label {int(labels[row])}, outside 0 to {CLASSES - 1}"
        )
    return table[:, 1:].reshape(rows, *SHAPE), labels


def read(root: Path, rows: Mapping[str, int] | None = None) -> ImageParts:
    """The five training files in order, and the test file as validation data."""
    parts = [read_file(found_file(NAME, root, f), rows_of(rows, ROWS, f)) for f in (*TRAIN, TEST)]
    train = [torch.cat(tensors) for tensors in zip(*parts[:-1], strict=True)]
    return ImageParts(train[0], train[1], *parts[-1], classes=CLASSES)


def examine(root: Path, relative: str, rows: Mapping[str, int] | None = None) -> str:
    """One line about a file that is right; DataError for one that is not."""
    images, _ = read_file(found_file(NAME, root, relative), rows_of(rows, ROWS, relative))
    return f"{len(images):,} images, labels in 0..{CLASSES - 1}"
