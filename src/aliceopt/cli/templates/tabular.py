"""A table for `aliceopt study`: change model and data to yours, then run

    aliceopt study FILE.py:problem

where FILE.py is this file. torch is seeded anew before every call of `problem`, so each seed
trains from other weights. As it stands an MLP predicts scikit-learn's diabetes from ten columns.
"""

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from aliceopt.lab import Problem


def problem() -> Problem:
    """Return what is to be trained."""
    train, validation = table()
    return Problem(
        model=model(columns=train[0].shape[1]),
        # Targets are [N, 1], like the outputs: [N] would be compared with every output.
        loss=nn.functional.mse_loss,
        train=train,
        validation=validation,
        # A function of (outputs, targets) that gives the mean over a batch, and its direction.
        metric=absolute_error,
        better="lower",
        batch_size=32,
    )


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """In standard deviations of the target."""
    return (outputs - targets).abs().mean()


def model(columns: int) -> nn.Module:
    """Any torch module."""
    return nn.Sequential(
        nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


def table() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Columns and target, standardised by the training rows alone.

    The order has a seed of its own: the split must not change with the seed of a run.
    """
    columns, target = load_diabetes(return_X_y=True)
    x, y = torch.from_numpy(columns).float(), torch.from_numpy(target).float()[:, None]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    held_out, kept = order[:90], order[90:]
    x = (x - x[kept].mean(0)) / x[kept].std(0)
    y = (y - y[kept].mean(0)) / y[kept].std(0)
    return (x[kept], y[kept]), (x[held_out], y[held_out])
