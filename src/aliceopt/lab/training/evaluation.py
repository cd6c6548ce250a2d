"""Loss and metric of a model on a whole split, and what to do about BatchNorm before."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import nn

from aliceopt.compress.recalibration import norms_of
from aliceopt.lab.data.splits import Split
from aliceopt.lab.problems.problem import Problem
from aliceopt.probe import BufferGuard, RandomState

__all__ = ["evaluate", "fresh_statistics"]

STATISTICS_BATCHES = 50
"""Batches from which BatchNorm statistics of averaged weights are taken."""


@torch.no_grad()
def evaluate(
    problem: Problem, model: nn.Module, split: Split, most: int | None = None
) -> dict[str, float]:
    """Mean loss, and the metric under its own name and as ``metric``.

    On the first ``most`` batches, or on all. The model is in evaluation mode meanwhile. Batches
    count by their size, so a smaller last one changes nothing.
    """
    measure = problem.measure
    sums: list[Any] = [0.0, 0.0]
    count = 0
    was_training = model.training
    model.eval()
    try:
        for inputs, targets in islice(split.in_order(), most):
            outputs, size = model(inputs), _size(targets)
            sums[0] = sums[0] + problem.loss(outputs, targets).detach().double() * size
            if measure.of is not None:
                sums[1] = sums[1] + size * measure.of(outputs, targets)
            count += size
    finally:
        model.train(was_training)
    loss, metric = (float(total) / count for total in sums)
    if measure.of is None and measure.name == "loss":
        return {"loss": loss, "metric": loss}
    if measure.of is None:
        metric = math.exp(min(loss, 700.0)) if math.isfinite(loss) else math.nan
    return {"loss": loss, measure.name: metric, "metric": metric}


def _size(targets: Any) -> int:
    """Targets in a batch: rows of tokens may end in a shorter one."""
    if isinstance(targets, torch.Tensor):
        return targets.numel()
    if isinstance(targets, Mapping) and targets:
        return _size(next(iter(targets.values())))
    if isinstance(targets, tuple | list) and targets and isinstance(targets[0], torch.Tensor):
        return targets[0].numel()  # several targets an example, each a batch
    try:
        return len(targets)
    except TypeError:
        return 1


@contextlib.contextmanager
def fresh_statistics(model: nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """For a method that evaluates averaged weights: BatchNorm statistics of those weights.

    The running statistics belong to the weights that are trained. The mean over a few training
    batches gives those of the average; afterwards all is as before.
    """
    norms = norms_of(model)
    if not norms:
        yield
        return
    guard = BufferGuard(model)
    random = RandomState(list({param.device for param in model.parameters()}))
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean, in which nothing of before is left
        with torch.no_grad():
            for inputs in islice(batches, STATISTICS_BATCHES):
                model(inputs)
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        guard.restore()
        random.restore()
