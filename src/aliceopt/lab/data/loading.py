"""From the name of a data set to its training and validation batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aliceopt.lab.data.augment import PadCropFlip, unit_floats
from aliceopt.lab.data.folder import DataError, data_folder, generated_rows
from aliceopt.lab.data.images import ImageParts
from aliceopt.lab.data.registry import DataSet, named
from aliceopt.lab.data.splits import Arrays, Split, Tokens
from aliceopt.lab.data.text import TextParts

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
    per_class: int | None = None,
) -> Loaded:
    """Data set ``name`` from the folder ``root`` (default: $ALICEOPT_DATA, ~/.cache/aliceopt/data).

    Images come as float32 [batch_size, C, H, W] in [0, 1], not normalised, with int64 labels;
    ``augment`` pads, crops and flips those of training, and ``per_class`` takes only the first so
    many of every class. Texts come as int64 windows
    [batch_size, length]; ``length`` is 64 unless given, and ``tokens`` takes only the first so many
    of training, and of validation in proportion. Everything stays on the CPU until
    ``split.to(device)``. ``validation_batch_size`` is ``batch_size`` unless given, and at most what
    there is. Raises DataError and names the file and the reason.
    """
    data_set, folder = named(name), data_folder(root)
    rows = generated_rows(name, folder)
    if augment and not data_set.augmentable:
        raise DataError(f"{name} has no augmentation: leave augment off")
    _check_kind(data_set, length=length, tokens=tokens, per_class=per_class)
    parts = data_set.read(folder, rows)
    sizes = batch_size, batch_size if validation_batch_size is None else validation_batch_size
    window = DEFAULT_LENGTH if length is None else length
    try:
        if isinstance(parts, ImageParts):
            some = parts if per_class is None else _first_of_every_class(parts, per_class)
            train, validation, shape, note = _images(some, *sizes, augment)
        else:
            train, validation, shape, note = _texts(parts, *sizes, window, tokens)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None
    note += " (generated)" if rows is not None else ""
    return Loaded(name, train, validation, parts.classes, shape, note, rows is not None)


Made = tuple[Split, Split, tuple[int, ...], str]  # training, validation, shape of an input, note


def _check_kind(data_set: DataSet, **options: int | None) -> None:
    """Refuse an option that is for another kind of data."""
    for option, value in options.items():
        needed = "images" if option == "per_class" else "text"
        if value is not None and data_set.kind != needed:
            holds, kinds = ("texts", "images") if needed == "images" else ("images", "texts")
            raise DataError(f"{data_set.name} holds {holds}: {option} is for {kinds}")


def _first_of_every_class(parts: ImageParts, count: int) -> ImageParts:
    """With so many training images of every class, in their order."""
    sizes = torch.bincount(parts.train_labels, minlength=parts.classes)
    least = int(sizes.min())
    if least == 0:
        raise ValueError(f"per_class: class {int(sizes.argmin())} has no training images")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= least:
        raise ValueError(
            f"per_class must be a whole number from 1 to {least}, the images of its smallest "
            f"class; got {count!r}"
        )
    if int(sizes.max()) == count:
        return parts
    by_class = parts.train_labels.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(len(by_class)) - starts[parts.train_labels[by_class]]
    chosen = by_class[rank < count].sort().values
    return replace(
        parts,
        train_images=parts.train_images[chosen],
        train_labels=parts.train_labels[chosen],
    )


def _images(parts: ImageParts, batch_size: int, validation_size: int, augment: bool) -> Made:
    """Bytes become floats batch by batch."""
    prepare = unit_floats if parts.train_images.dtype == torch.uint8 else None
    train = Arrays(
        parts.train_images,
        parts.train_labels,
        batch_size,
        augment=PadCropFlip() if augment else None,
        prepare=prepare,
    )
    count = len(parts.validation_images)
    validation = Arrays(
        parts.validation_images,
        parts.validation_labels,
        min(validation_size, count),
        prepare=prepare,
    )
    shape = tuple(parts.train_images.shape[1:])
    side = "x".join(map(str, shape[1:]))
    note = f"{len(parts.train_images):,} training and {count:,} validation images, "
    return train, validation, shape, f"{note}{side}, {parts.classes:,} classes"


def _texts(
    parts: TextParts, batch_size: int, validation_size: int, length: int, tokens: int | None
) -> Made:
    """All of a text, or its first ``tokens`` and the same share of validation; all classes."""
    ids, held_out = parts.train, parts.validation
    if tokens is not None:
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= len(ids):
            raise ValueError(
                f"tokens must be a whole number from 1 to {len(ids)}, all there are to train on; "
                f"got {tokens!r}"
            )
        held_out = held_out[: len(held_out) * tokens // len(ids)]
        ids = ids[:tokens]
    train = Tokens(ids, batch_size, length)
    windows = max(1, len(held_out) // length - 1)
    validation = Tokens(held_out, min(validation_size, windows), length)
    note = f"{len(ids):,} training and {len(held_out):,} validation tokens, "
    return train, validation, (length,), f"{note}{parts.classes:,} different tokens"
