"""Handwritten digits, 8x8, that come with scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np
import torch

from aliceopt.lab.data.folder import DataError, ImageParts

CLASSES = 10
SHAPE = (1, 8, 8)
COUNT = 1797


def read() -> ImageParts:
    """1,437 training and 360 validation images, float32 [N, 1, 8, 8], grey values in [0, 1].

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
    if tuple(images.shape) != (COUNT, *SHAPE) or int(labels.max()) != CLASSES - 1:
        raise DataError(f"scikit-learn's digits have changed: images {tuple(images.shape)}")
    by_class = labels.argsort(stable=True)
    held_out = torch.zeros(COUNT, dtype=torch.bool)
    held_out[by_class[::5]] = True
    return ImageParts(
        images[~held_out], labels[~held_out], images[held_out], labels[held_out], CLASSES
    )
