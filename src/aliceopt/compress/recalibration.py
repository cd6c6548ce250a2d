"""BatchNorm statistics of a network whose weights have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..landscape.excursion import inner_name
from .inputs import NotFiniteError

__all__ = ["norms_of", "recalibrate"]


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """The modules of BatchNorm that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def recalibrate(model: nn.Module, forward: Callable[[Any], Any], batches: Iterable[Any]) -> int:
    """Measure every BatchNorm's mean and variance anew: the plain average over batches.

    Forward passes only, without gradients. Every module is in the mode it was in afterwards, and
    only BatchNorms are in training mode meanwhile, so that dropout drops nothing. Returns how many
    BatchNorms there are; a model without any is left alone. If it fails, as it does if statistics
    come out that are not finite, the old ones are back.
    """
    norms = norms_of(model)
    if not norms:
        return 0
    modes = [(module, module.training) for module in model.modules()]
    before = [(norm, norm.momentum, _statistics(norm)) for norm in norms]
    done = 0
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the average over all batches
            norm.train()
        with torch.no_grad():
            for batch in batches:
                forward(batch)
                done += 1
        if not done:
            raise ValueError("there are no batches: the statistics stay as they were")
        for norm, _, statistics in before:
            if int(norm.num_batches_tracked) == 0:  # type: ignore[arg-type]
                _put_back(norm, statistics)  # it was not called
            else:
                _check_finite(norm, model)
    except BaseException:
        for norm, _, statistics in before:
            _put_back(norm, statistics)
        raise
    finally:
        for norm, momentum, _ in before:
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return len(norms)


def _check_finite(norm: _BatchNorm, model: nn.Module) -> None:
    if not all(norm.get_buffer(name).isfinite().all() for name in ("running_mean", "running_var")):
        name = inner_name(next(name for name, module in model.named_modules() if module is norm))
        raise NotFiniteError(f"the statistics of {name!r} would not be finite")


def _put_back(norm: _BatchNorm, statistics: dict[str, torch.Tensor]) -> None:
    for name, value in statistics.items():
        getattr(norm, name).copy_(value)


def _statistics(norm: _BatchNorm) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in norm.named_buffers(recurse=False)}
