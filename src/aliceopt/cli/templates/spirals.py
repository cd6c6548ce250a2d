"""A small problem for `aliceopt study`: change the four parts to yours, then run

    aliceopt study FILE.py:problem

where FILE.py is this file. torch is seeded anew before every call of `problem`, so each seed
trains from other weights. As it stands this separates two spirals.
"""

import torch
from torch import nn

from aliceopt.lab import Problem


def problem() -> Problem:
    """Return what is to be trained."""
    return Problem(
        model=model(),
        # loss(model(inputs), targets): the mean over a batch, one number to minimise.
        loss=nn.functional.cross_entropy,
        # (inputs, targets) as tensors, a torch Dataset, or a DataLoader.
        train=spirals(seed=1, count=1024),
        validation=spirals(seed=2, count=512),
        # "loss", "accuracy", "perplexity", or a function of (outputs, targets) with
        # better="higher" or better="lower".
        metric="accuracy",
        batch_size=64,
    )


def model() -> nn.Module:
    """Any torch module; with ReLU-like units there is glass to find."""
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def spirals(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on two spirals with a little noise, and which spiral they are on.

    The data has a seed of its own: it must not change with the seed of a run.
    """
    random = torch.Generator().manual_seed(seed)
    turn = 3.0 * torch.rand(count, generator=random).sqrt() * torch.pi
    label = torch.randint(2, (count,), generator=random)
    angle = turn + label * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 10
    return points + 0.02 * torch.randn(count, 2, generator=random), label
