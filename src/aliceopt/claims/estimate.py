"""A number measured by sampling, with its standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Estimate", "estimate", "exponent", "mean", "ratio"]


class Estimate(NamedTuple):
    """A sampled value and one standard error of it."""

    value: float
    error: float


def estimate(function: Callable[..., Tensor], *samples: Tensor) -> Estimate:
    """``function`` of the means of paired samples, with its standard error by linearisation.

    For ``f(mean x, mean y, ...)`` the error is that of the mean of ``f_x x + f_y y + ...``, with
    the slopes taken at the means. Independent samples of one length may be paired in any order.

    >>> x = torch.tensor([1.0, 3.0], dtype=torch.float64)
    >>> estimate(lambda a: 2 * a, x)
    Estimate(value=4.0, error=2.0)
    """
    columns = torch.stack([x.double().flatten() for x in samples])
    means = columns.mean(1).requires_grad_()
    value = function(*means)
    (slopes,) = torch.autograd.grad(value, means)
    error = (slopes @ columns).std() / columns.shape[1] ** 0.5
    return Estimate(value.item(), error.item())


def mean(x: Tensor) -> Estimate:
    """The mean of a sample."""
    return estimate(lambda m: 1 * m, x)


def ratio(x: Tensor, y: Tensor) -> Estimate:
    """``mean x / mean y``."""
    return estimate(lambda a, b: a / b, x, y)


def exponent(near: Tensor, far: Tensor) -> Estimate:
    """``log2(mean far / mean near)``: the power of a law seen at one distance and at twice it."""
    return estimate(lambda a, b: torch.log2(b / a), near, far)
