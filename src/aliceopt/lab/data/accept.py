"""What a user may hand over as data, turned into a ``Split``."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from aliceopt.lab.data.splits import Arrays, Items, Split

_ACCEPTED = (
    "a pair of tensors (inputs, targets), a torch Dataset with __len__ and __getitem__, "
    "a DataLoader over one, or a Split"
)


def as_split(
    data: Any, batch_size: int | None = None, *, name: str = "data", shrink: bool = False
) -> Split:
    """``data`` as a ``Split``.

    ``data`` is a pair of tensors or numpy arrays, a map-style dataset of pairs, a ``DataLoader``
    over one (its dataset, batch size and ``collate_fn`` are taken, its order is not: the lab
    shuffles by seed), or a split already. ``batch_size`` is needed for the first two. ``name`` is
    what errors call the data. With ``shrink`` a batch size larger than the data becomes the data's
    size, as validation data wants it. Raises TypeError or ValueError and says what was wrong.
    """
    try:
        return _as_split(data, batch_size, shrink)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _as_split(data: Any, batch_size: int | None, shrink: bool) -> Split:
    if isinstance(data, Split):
        return data
    collate_fn = None
    if isinstance(data, DataLoader):
        if not isinstance(data.dataset, IterableDataset):
            batch_size = _loader_batch_size(data)
        collate_fn = data.collate_fn if data.collate_fn is not default_collate else None
        data = data.dataset
    if isinstance(data, TensorDataset) and collate_fn is None:
        data = data.tensors
    pair = isinstance(data, tuple | list)
    if pair:
        _refuse_unpaired(data)
    else:
        _refuse_unindexed(data)
    if batch_size is None:
        raise TypeError("a batch_size is needed, unless a DataLoader or a Split is given")
    count = len(data[0] if pair else data)
    if shrink and count:
        batch_size = min(batch_size, count)
    return Arrays(data[0], data[1], batch_size) if pair else Items(data, batch_size, collate_fn)


def _loader_batch_size(loader: DataLoader[Any]) -> int:
    if loader.batch_size is None:
        raise TypeError(
            "the DataLoader has no batch_size (a batch_sampler of its own, or batching is off): "
            "give the dataset and a batch_size instead"
        )
    if not isinstance(loader.sampler, SequentialSampler | RandomSampler):
        raise TypeError(
            f"the DataLoader has a {type(loader.sampler).__name__}, and the lab draws the order "
            "itself, by seed: give the dataset and a batch_size instead"
        )
    return loader.batch_size


def _refuse_unpaired(data: tuple[Any, ...] | list[Any]) -> None:
    kinds = ", ".join(type(part).__name__ for part in data[:4]) + (", ..." if len(data) > 4 else "")
    if len(data) != 2:
        raise TypeError(f"expected a pair (inputs, targets), got {len(data)} things: {kinds}")
    if not all(isinstance(part, Tensor | np.ndarray) for part in data):
        raise TypeError(f"a pair must hold two tensors or numpy arrays, got {kinds}")
    for what, part in zip(("inputs", "targets"), data, strict=True):
        if part.ndim == 0:
            raise ValueError(f"{what} must have one row per example, got a single number")


def _refuse_unindexed(data: Any) -> None:
    kind = type(data).__name__
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"{kind} is an IterableDataset, whose examples cannot be asked for by number, so a "
            f"run could not be resumed: give {_ACCEPTED}"
        )
    if isinstance(data, Tensor | np.ndarray):
        raise TypeError(f"got one {kind} without targets: give {_ACCEPTED}")
    if isinstance(data, dict | str) or not hasattr(data, "__getitem__"):
        raise TypeError(f"cannot take data from {kind}: give {_ACCEPTED}")
    if not hasattr(data, "__len__"):
        raise TypeError(f"{kind} has no __len__, so its size is unknown: give {_ACCEPTED}")
