"""Generated stand-ins: every set, in the official layout, small and learnable."""

from __future__ import annotations

import json

import pytest
import torch

from aliceopt.lab.data import DATASETS, DataError, generate, load
from aliceopt.lab.data.registry import check_files

ON_DISK = [name for name in DATASETS if name != "digits"]


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_is_written_loaded_and_found_right(name, tmp_path):
    """Batches have the set's shape and types, and the set says that it is generated."""
    root = generate.write(name, tmp_path)
    loaded = load(name, root, batch_size=8)
    inputs, targets = loaded.train.batch(0, 0, 0)
    assert inputs.shape == (8, *loaded.shape)
    if DATASETS[name].kind == "text":
        assert targets.shape == inputs.shape
        assert inputs.dtype == torch.int64
    else:
        assert targets.shape == (8,)
        assert inputs.dtype == torch.float32
        assert 0 <= inputs.min() < inputs.max() <= 1
    assert targets.dtype == torch.int64
    assert targets.max() < loaded.classes
    assert loaded.generated == (name in ON_DISK)
    assert loaded.note.endswith("(generated)") == loaded.generated
    assert all(report.ok for report in check_files(name, root))
    assert len(list(loaded.validation.in_order())) >= len(loaded.validation) > 0


@pytest.mark.parametrize("name", ON_DISK)
def test_the_same_arguments_write_the_same_files(name, tmp_path):
    """Another seed writes others, of the same size."""
    roots = [
        generate.write(name, tmp_path / str(i), seed=seed, size=60)
        for i, seed in enumerate((0, 0, 1))
    ]
    files = DATASETS[name].files(roots[0])
    contents = [[(root / file).read_bytes() for file in files] for root in roots]
    assert contents[0] == contents[1] != contents[2]
    rows = json.loads((roots[0] / "generated.json").read_text())[name]["rows"]
    assert sorted(rows) == sorted(files)


def test_sets_share_a_folder_and_can_be_written_again(tmp_path):
    """generated.json lists all of them, with the latest counts."""
    for name, size in (("cifar10", 50), ("enwik8", 900), ("cifar10", 60)):
        generate.write(name, tmp_path, size=size)
    assert len(load("cifar10", tmp_path, batch_size=5).train.inputs) == 60
    assert load("enwik8", tmp_path, batch_size=2, length=8).generated


def test_official_files_are_never_overwritten(tmp_path):
    """A file that generated.json does not know stops the writing."""
    path = tmp_path / "enwik8"
    path.write_bytes(b"precious")
    with pytest.raises(DataError, match="enwik8 is there and is not generated"):
        generate.write("enwik8", tmp_path)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["cifar10", "tiny-imagenet-64"])
def test_the_class_shows_in_the_pixels(name, tmp_path):
    """The mean image of each class in training tells every validation image its class."""
    loaded = load(name, generate.write(name, tmp_path, size=200), batch_size=10)
    train, validation = loaded.train, loaded.validation
    means = torch.stack(
        [train.inputs[train.targets == c].float().mean(0).flatten() for c in range(10)]
    )
    guess = torch.cdist(validation.inputs.float().flatten(1), means).argmin(1)
    assert (guess == validation.targets).float().mean() > 0.95


@pytest.mark.parametrize("name", ["wikitext-2", "enwik8", "tinyshakespeare"])
def test_the_last_token_tells_about_the_next(name, tmp_path):
    """Guessing the usual successor is right far more often than guessing the usual token."""
    loaded = load(name, generate.write(name, tmp_path), batch_size=4, length=8)
    train, validation = loaded.train.ids.long(), loaded.validation.ids.long()
    pairs = torch.zeros(loaded.classes, loaded.classes)
    pairs.index_put_((train[:-1], train[1:]), torch.ones(()), accumulate=True)
    right = (pairs.argmax(1)[validation[:-1]] == validation[1:]).float().mean()
    usual = (validation[1:] == train.bincount().argmax()).float().mean()
    assert right > usual + 0.1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {}, "no data set 'mnist'; there is digits, cifar10"),
        ("digits", {"augment": True}, "digits has no augmentation"),
        ("enwik8", {"augment": True}, "enwik8 has no augmentation"),
        ("digits", {"length": 3}, "digits holds images"),
        ("digits", {"batch_size": 2000}, "digits: batch_size 2000 is larger than the data"),
        ("digits", {"tokens": 3}, "digits holds images: tokens is for texts"),
        ("enwik8", {"tokens": 0}, "enwik8: tokens must be a whole number from 1 to 40000.*got 0"),
        ("enwik8", {"tokens": 40_001}, "from 1 to 40000, all there are to train on; got 40001"),
        ("enwik8", {"tokens": 20, "length": 8}, "enwik8: batch_size"),
        ("enwik8", {"length": 40_000}, "enwik8: the data is empty: 0 windows"),
    ],
)
def test_requests_that_make_no_sense_are_refused(name, options, message, tmp_path):
    """With the name and what to do."""
    if name == "enwik8":
        generate.write(name, tmp_path)
    with pytest.raises(DataError, match=message):
        load(name, tmp_path, **{"batch_size": 2} | options)
    with pytest.raises(DataError, match="at least 10"):
        generate.write("cifar10", tmp_path, size=3)


def test_augmented_training_keeps_validation_plain(tmp_path):
    """Only training images are shifted and flipped."""
    root = generate.write("cifar10", tmp_path, size=50)
    plain = load("cifar10", root, batch_size=50)
    moved = load("cifar10", root, batch_size=50, augment=True, validation_batch_size=7)
    assert not torch.equal(plain.train.batch(0, 0, 0)[0], moved.train.batch(0, 0, 0)[0])
    assert moved.validation.batch_size == 7
    before = torch.cat([x for x, _ in plain.validation.in_order()])
    assert torch.equal(torch.cat([x for x, _ in moved.validation.in_order()]), before)
