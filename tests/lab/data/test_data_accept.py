"""What a user may return as data, and what is said about anything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from aliceopt.lab.data import Arrays, Items, Tokens, as_split

X, Y = torch.arange(12.0).view(6, 2), torch.arange(6)


class Mapped(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[index], Y[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class NoLength:
    def __getitem__(self, index):
        return X[index], Y[index]


def whole(split):
    return torch.cat([y for _, y in split.in_order()]).tolist()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ((X, Y), Arrays),
        ([X, Y], Arrays),
        ((X.numpy(), Y.numpy()), Arrays),
        (TensorDataset(X, Y), Arrays),
        (Mapped(), Items),
        (Subset(Mapped(), range(6)), Items),
        (list, Items),
    ],
)
def test_pairs_and_datasets_become_splits(data, kind):
    """Tensors are kept whole on the device, other datasets are asked item by item."""
    if data is list:
        data = [(X[i], Y[i]) for i in range(6)]
        data = Subset(data, range(6))
    split = as_split(data, 4)
    assert isinstance(split, kind)
    assert split.batch_size == 4
    assert len(split) == 1
    assert whole(split) == list(range(6))


def test_a_loader_gives_its_dataset_batch_size_and_collate_function():
    """And nothing else: order and workers are the lab's business."""
    split = as_split(DataLoader(Mapped(), batch_size=2, shuffle=True), 5)
    assert (type(split), split.batch_size) == (Items, 2)

    def doubled(items):
        return torch.stack([x for x, _ in items]) * 2, torch.stack([y for _, y in items])

    split = as_split(DataLoader(TensorDataset(X, Y), batch_size=3, collate_fn=doubled))
    assert torch.equal(next(split.in_order())[0], X[:3] * 2)
    assert isinstance(as_split(DataLoader(TensorDataset(X, Y), batch_size=3)), Arrays)


def test_a_split_is_taken_as_it_is():
    """Its own batch size stays."""
    split = Tokens(torch.arange(100), 2, 5)
    assert as_split(split, 9) is split


def test_validation_data_may_be_smaller_than_a_batch():
    """With shrink the batch is what there is; without it that is an error."""
    assert as_split((X, Y), 100, shrink=True).batch_size == 6
    with pytest.raises(ValueError, match="batch_size 100 is larger than the data, 6 examples"):
        as_split((X, Y), 100)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((X, Y[:4]), ValueError, "6 inputs .* 4 targets"),
        ((X[:0], Y[:0]), ValueError, "empty"),
        ((X, Y, Y), TypeError, "expected a pair .* 3 things: Tensor, Tensor, Tensor"),
        ((X, [1, 2]), TypeError, "two tensors or numpy arrays, got Tensor, list"),
        ((X, torch.tensor(1)), ValueError, "targets must have one row"),
        (X, TypeError, "one Tensor without targets"),
        (np.ones(3), TypeError, "one ndarray without targets"),
        (Stream(), TypeError, "Stream is an IterableDataset"),
        (DataLoader(Stream(), batch_size=2), TypeError, "Stream is an IterableDataset"),
        (NoLength(), TypeError, "NoLength has no __len__"),
        (iter([1]), TypeError, "cannot take data from list_iterator"),
        (None, TypeError, "cannot take data from NoneType"),
        ({"x": X}, TypeError, "cannot take data from dict"),
        (Subset(Mapped(), []), ValueError, "empty"),
        (
            DataLoader(Mapped(), 2, sampler=WeightedRandomSampler([1.0] * 6, 6)),
            TypeError,
            "has a WeightedRandomSampler",
        ),
        (
            DataLoader(Mapped(), batch_sampler=BatchSampler(SequentialSampler(Y), 2, True)),
            TypeError,
            "no batch_size",
        ),
    ],
)
def test_other_things_are_refused_with_the_reason(data, error, message):
    """The message starts with the name of the data and says what was wrong."""
    with pytest.raises(error, match=f"^train: .*{message}"):
        as_split(data, 2, name="train")


def test_a_missing_batch_size_is_named():
    """Only loaders and splits bring their own."""
    with pytest.raises(TypeError, match="data: a batch_size is needed"):
        as_split((X, Y))
