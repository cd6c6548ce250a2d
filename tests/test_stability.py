"""How far ahead is too far: where steps on a parabola cease to be stable."""

import pytest
import torch
from torch import nn

from aliceopt import Alice

BETA, RATE = 0.9, 0.1


def largest_late_value(curvature: float, lookahead: float, steps: int = 600) -> float:
    """Of x, in the last hundred steps on ``curvature x^2 / 2`` from 1, with SGD's bound as step."""
    x = nn.Parameter(torch.ones(1, dtype=torch.float64))
    options = {"lr": RATE, "lr_min": RATE, "limit": "sgd", "betas": (BETA, 0.999)}
    optimizer = Alice([x], **options, weight_decay=0.0, lookahead=lookahead, implementation="eager")
    seen = []
    for _ in range(steps):
        optimizer.step(lambda: (curvature * x.square() / 2).sum().backward())
        seen.append(abs(x.item()))
    return max(seen[-100:])


@pytest.mark.parametrize("lookahead", [1.0, 1.5, 2.0, 4.0, 10.0])
def test_the_edge_of_stability_falls_with_the_look_ahead(lookahead: float) -> None:
    """``(1 - beta1) lr h = 2 (1 + beta1) / (1 + 2 c)``, c steps ahead of the position.

    From the eigenvalues of the linear map of position and running gradient: one of them is -1
    there. At c = 0 this is the bound for a heavy ball.
    """
    edge = 2 * (1 + BETA) / (1 + 2 * (lookahead - 1)) / ((1 - BETA) * RATE)
    assert largest_late_value(0.97 * edge, lookahead) < 0.1
    assert largest_late_value(1.03 * edge, lookahead) > 10
