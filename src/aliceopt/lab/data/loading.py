"""From the name of a data set to its training and validation batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aliceopt.lab.data.augment import PadCropFlip, unit_floats
from aliceopt.lab.data.errors import DataError
from aliceopt.lab.data.folder import data_folder, generated_rows
from aliceopt.lab.data.parts import ImageParts, TextParts
from aliceopt.lab.data.registry import DATASETS, DataSet
from aliceopt.lab.data.splits import Arrays, Split, Tokens

DEFAULT_LENGTH = 64


@dataclass(frozen=True)
class Loaded:
    """A data set ready for use.

    ``classes`` is the number of classes, for a text the size of its vocabulary; ``shape`` that of
    one input, (channels, height, width) or (length,). ``generated`` data is small made-up data in
    the official layout: never report its numbers as those of the set.
    """

    name: str
    train: Split
    validation: Split
    classes: int
    shape: tuple[int, ...]
    note: str
    generated: bool


def load(
    name: str,
    root: str | Path | None = None,
    *,
    batch_size: int,
    augment: bool = False,
    length: int | None = None,
    tokens: int | None = None,
    validation_batch_size: int | None = None,
) -> Loaded:
    """Data set ``name`` from the folder ``root`` (default: $ALICEOPT_DATA, ~/.cache/aliceopt/data).

    Images come as float32 [batch_size, C, H, W] in [0, 1], not normalised, with int64 labels;
    ``augment`` pads, crops and flips those of training. Texts come as int64 windows
    [batch_size, length]; ``length`` is 64 unless given, and ``tokens`` takes only the first so many
    of training, and of validation in proportion. Everything stays on the CPU until
    ``split.to(device)``. ``validation_batch_size`` is ``batch_size`` unless given, and at most what
    there is. Raises DataError and names the file and the reason.
    """
    data_set = named(name)
    folder = data_folder(root)
    rows = generated_rows(name, folder)
    _refuse_unfit(data_set, augment, length, tokens)
    parts = data_set.read(folder, rows)
    if tokens is not None and isinstance(parts, TextParts):
        parts = beginning(name, parts, tokens)
    sizes = batch_size, validation_batch_size or batch_size
    train: Split
    validation: Split
    try:
        if isinstance(parts, ImageParts):
            train, validation = image_splits(parts, *sizes, augment=augment)
            shape = tuple(parts.train_images.shape[1:])
        else:
            train, validation = text_splits(parts, *sizes, length=length or DEFAULT_LENGTH)
            shape = (length or DEFAULT_LENGTH,)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None
    note = describe(parts) + (" (generated)" if rows is not None else "")
    return Loaded(name, train, validation, parts.classes, shape, note, rows is not None)


def named(name: str) -> DataSet:
    """The data set of that name, or a DataError that lists the names."""
    try:
        return DATASETS[name]
    except KeyError:
        raise DataError(f"no data set {name!r}: choose from {', '.join(DATASETS)}") from None


def _refuse_unfit(data_set: DataSet, augment: bool, length: int | None, tokens: int | None) -> None:
    if augment and not data_set.augmentable:
        raise DataError(f"{data_set.name} has no augmentation: leave augment off")
    for option, value in (("length", length), ("tokens", tokens)):
        if value is not None and data_set.kind != "text":
            raise DataError(f"{data_set.name} holds images: {option} is for texts")


def beginning(name: str, parts: TextParts, tokens: int) -> TextParts:
    """The first ``tokens`` tokens of training, and the same share of validation; all classes."""
    count = len(parts.train)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= count:
        raise DataError(
            f"{name}: tokens must be a whole number from 1 to {count}, all there are to train on; "
            f"got {tokens!r}"
        )
    validation = parts.validation[: len(parts.validation) * tokens // count]
    return replace(parts, train=parts.train[:tokens], validation=validation)


def image_splits(
    parts: ImageParts, batch_size: int, validation_batch_size: int, *, augment: bool = False
) -> tuple[Arrays, Arrays]:
    """Training and validation images as splits; bytes become floats batch by batch."""
    prepare = unit_floats if parts.train_images.dtype == torch.uint8 else None
    change = PadCropFlip() if augment else None
    train = Arrays(
        parts.train_images, parts.train_labels, batch_size, augment=change, prepare=prepare
    )
    count = min(validation_batch_size, len(parts.validation_images))
    return train, Arrays(parts.validation_images, parts.validation_labels, count, prepare=prepare)


def text_splits(
    parts: TextParts, batch_size: int, validation_batch_size: int, *, length: int
) -> tuple[Tokens, Tokens]:
    """Training and validation text as splits."""
    train = Tokens(parts.train, batch_size, length)
    count = min(validation_batch_size, max(1, len(parts.validation) // length - 1))
    return train, Tokens(parts.validation, count, length)


def describe(parts: ImageParts | TextParts) -> str:
    """How much data there is, in a line."""
    if isinstance(parts, TextParts):
        counts, what = (len(parts.train), len(parts.validation)), "tokens"
        kinds = f"{parts.classes:,} different tokens"
    else:
        counts, what = (len(parts.train_labels), len(parts.validation_labels)), "images"
        size = "x".join(str(n) for n in parts.train_images.shape[2:])
        kinds = f"{size}, {parts.classes:,} classes"
    return f"{counts[0]:,} training and {counts[1]:,} validation {what}, {kinds}"
