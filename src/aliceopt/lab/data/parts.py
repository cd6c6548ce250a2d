"""What a reader hands back: the two parts of a data set, whole."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ImageParts:
    """Images [N, C, H, W], bytes or floats in [0, 1], with labels int64 [N] from 0."""

    train_images: Tensor
    train_labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor
    classes: int


@dataclass(frozen=True)
class TextParts:
    """Token numbers, integer [N], each below ``classes``, the size of the vocabulary."""

    train: Tensor
    validation: Tensor
    test: Tensor | None
    classes: int
