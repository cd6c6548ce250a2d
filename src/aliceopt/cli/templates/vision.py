"""Images for `aliceopt study`: change model and data to yours, then run

    aliceopt study FILE.py:problem

where FILE.py is this file. torch is seeded anew before every call of `problem`, so each seed
trains from other weights. As it stands a small convnet reads scikit-learn's digits.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from aliceopt.lab import Problem


def problem() -> Problem:
    """Return what is to be trained."""
    train, validation = digits()
    return Problem(
        model=model(classes=10),
        # loss(model(inputs), targets): the mean over a batch, one number to minimise.
        loss=nn.functional.cross_entropy,
        # Images that fit in memory are fastest as tensors, [N, C, H, W] and [N]. From
        # aliceopt.lab.data, Arrays(images, labels, 64, augment=PadCropFlip()) shifts and mirrors
        # them. A Dataset will do as well, with random transforms: they repeat by seed.
        train=train,
        validation=validation,
        metric="accuracy",
        batch_size=64,
    )


def model(classes: int) -> nn.Module:
    """Any torch module; BatchNorm statistics do not notice Alice's probes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def digits() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Training and validation images and labels.

    The order has a seed of its own: the split must not change with the seed of a run.
    """
    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] / 16
    labels = torch.from_numpy(found.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    held_out, kept = order[:360], order[360:]
    return (images[kept], labels[kept]), (images[held_out], labels[held_out])
