"""Which exponent a score should have: the one that leaves the lowest loss, tried out and undone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from ..probe import RandomState
from ..sharding import devices_of
from .averages import Sensitivity
from .criteria import TEMPERED, check_temper
from .inputs import NotFiniteError
from .pruning import prune

__all__ = ["EXPONENTS", "temper_by_loss"]

EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of a curvature; the Fisher is a square, and gets half of each. 0 is the magnitude."""


def temper_by_loss(
    model: nn.Module,
    measured: Sensitivity,
    sparsity: float,
    loss: Callable[[Any], Tensor],
    batches: Iterable[Any],
    *,
    mend: Callable[[], Any] | None = None,
    criterion: str = "curvature",
    tempers: Sequence[float] | None = None,
    **how: Any,
) -> float:
    """The exponent with which a pruned model has the lowest mean loss on some batches.

    For every exponent the model is pruned, mended and evaluated, without gradients, and put back:
    parameters and their gradients, buffers, modes and random state are as before afterwards, to
    the bit, also if it fails. That takes a copy of the parameters. Of equal losses the first is
    taken, and those that are not finite never.

    Args:
        model: as for `prune`.
        measured: whose curvature, or Fisher, gets the exponent.
        sparsity: as for `prune`; other exponents suit other shares.
        loss: of a batch. With several processes it must be the same in all.
        batches: a few that the model was trained on, and that neither ``measured`` nor ``mend``
            has seen.
        mend: what will be done to the pruned model, such as `recalibrate` and `refit`.
        criterion: see `scores`; one that has an exponent.
        tempers: to choose from; by default `EXPONENTS`, and half of each for "fisher".
        how: what else `prune` is asked for: radius, scope, structure and so on.
    """
    choice = _choice(measured, loss, criterion, tempers)
    seen = list(batches)
    if not seen:
        raise ValueError("there are no batches: nothing was measured")
    losses, before = {}, _Before(model)
    try:
        for temper in choice:
            model.zero_grad(set_to_none=True)  # put aside, in case that mending takes some
            prune(model, measured, sparsity, criterion=criterion, temper=temper, **how)
            losses[temper] = _mended_loss(mend, loss, seen)
            before.restore()
    except BaseException:
        before.restore()
        raise
    finite = [temper for temper in choice if math.isfinite(losses[temper])]
    if not finite:
        try:
            whole = _mean_loss(loss, seen)
        finally:
            before.restore()
        if not math.isfinite(whole):
            raise ValueError(f"the loss of the whole model on these batches is {whole}")
        told = ", ".join(f"{temper:g}" for temper in choice)
        raise ValueError(f"the loss of the pruned model is not finite with any exponent of {told}")
    return min(finite, key=lambda temper: losses[temper])


def _choice(
    measured: Any, loss: Any, criterion: str, tempers: Sequence[float] | None
) -> tuple[float, ...]:
    if not isinstance(measured, Sensitivity):
        raise ValueError(f"a sensitivity is needed, got {type(measured).__name__}")
    if not callable(loss):
        raise ValueError(f"loss must be callable, got {type(loss).__name__}")
    if criterion not in TEMPERED:
        raise ValueError(
            f"criterion must be one with an exponent, {', '.join(TEMPERED)}; got {criterion!r}"
        )
    if tempers is None:
        return tuple(e / 2 if criterion == "fisher" else e for e in EXPONENTS)
    if not tempers:
        raise ValueError("tempers must be some numbers to choose from, got none")
    for temper in tempers:
        check_temper(temper)
    return tuple(tempers)


def _mended_loss(
    mend: Callable[[], Any] | None, loss: Callable[[Any], Tensor], batches: Sequence[Any]
) -> float:
    """Infinite where nothing can be made of what an exponent has left."""
    try:
        if mend is not None:
            mend()
        return _mean_loss(loss, batches)
    except NotFiniteError:
        return math.inf


@torch.no_grad()
def _mean_loss(loss: Callable[[Any], Tensor], batches: Sequence[Any]) -> float:
    torch.clear_autocast_cache()  # casts of weights that were others
    try:
        return sum(float(loss(batch)) for batch in batches) / len(batches)
    finally:
        torch.clear_autocast_cache()


class _Before:
    """A model as it stands, to be put back: the same objects with the same contents.

    Also what `prune` changes beside tensors: names of parameters and their order, hooks, what the
    hooks know, and the sizes that layers without some channels have.
    """

    def __init__(self, model: nn.Module):
        modules = list(model.modules())
        hooks = [hook for module in modules for hook in module._forward_pre_hooks.values()]
        masks = [hook for hook in hooks if isinstance(hook, BasePruningMethod)]
        there = [vars(thing) for thing in (*modules, *masks)]
        there += [value for one in there for value in one.values() if isinstance(value, dict)]
        self._dicts = [(one, copy.copy(one)) for one in there]
        tensors = [*model.parameters(), *model.buffers()]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._grads = [(param, param.grad) for param in model.parameters()]
        self._random = RandomState(devices_of(tensors))

    @torch.no_grad()
    def restore(self) -> None:
        for there, saved in self._dicts:
            there.clear()
            there.update(saved)
        for tensor, saved_tensor in self._tensors:
            tensor.copy_(saved_tensor)
        for param, grad in self._grads:
            param.grad = grad
        self._random.restore()
