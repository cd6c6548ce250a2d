"""Batches by number: the same for the same (seed, epoch, index), whatever was asked before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from aliceopt.lab.data import Arrays, Items, PadCropFlip, Split, Tokens, unit_floats
from aliceopt.lab.data.splits import generator_for


class Pairs(Dataset):
    """Ten numbers with noise from every global generator a transform may use."""

    def __init__(self, count: int = 10) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        noise = torch.rand(()) + np.random.rand() + random.random()  # noqa: NPY002
        return torch.tensor([float(index), noise]), index


def numbers(count: int = 23, batch_size: int = 4, **options) -> Arrays:
    return Arrays(torch.arange(count), torch.arange(count) * 10, batch_size, **options)


def pictures(device: str = "cpu") -> Arrays:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (37, 3, 8, 8), generator=generator).to(torch.uint8)
    split = Arrays(images, torch.arange(37), 5, augment=PadCropFlip(2), prepare=unit_floats)
    return split.to(device)


def words(count: int = 203, batch_size: int = 3, length: int = 7) -> Tokens:
    return Tokens(torch.arange(count, dtype=torch.int32), batch_size, length)


SPLITS = {
    "arrays": numbers,
    "pictures": pictures,
    "tokens": words,
    "items": lambda: Items(Pairs(), 3),
}


@pytest.mark.parametrize("kind", SPLITS)
def test_a_batch_depends_on_seed_epoch_and_index_alone(kind):
    """Asked in any order, from a fresh split or a used one, the values are the same."""
    used = SPLITS[kind]()
    first = {(s, e, i): used.batch(s, e, i) for s in (0, 1) for e in (3, 0) for i in range(3)}
    for key in sorted(first, reverse=True):
        for split in (used, SPLITS[kind]()):
            for again, before in zip(split.batch(*key), first[key], strict=True):
                assert torch.equal(again, before)


@pytest.mark.parametrize("kind", SPLITS)
def test_seeds_and_epochs_shuffle_differently(kind):
    """Neither another epoch nor another seed repeats the batch."""
    split = SPLITS[kind]()
    batches = [split.batch(s, e, 0)[1].tolist() for s, e in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert all(a != b for i, a in enumerate(batches) for b in batches[:i])


@pytest.mark.parametrize("kind", SPLITS)
def test_every_kind_is_a_split(kind):
    """Each class satisfies the protocol, and its length is that of an epoch."""
    split = SPLITS[kind]()
    assert isinstance(split, Split)
    with pytest.raises(IndexError, match=f"has {len(split)} batches"):
        split.batch(0, 0, len(split))
    with pytest.raises(IndexError, match="batch -1"):
        split.batch(0, 0, -1)


@pytest.mark.parametrize("kind", SPLITS)
def test_global_random_state_is_neither_read_nor_changed(kind):
    """Batches come out the same after reseeding, and torch, numpy and random stand still."""
    split = SPLITS[kind]()
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    values = split.batch(0, 0, 0)[0]
    list(split.in_order())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2][1])  # noqa: NPY002
    torch.manual_seed(2)
    assert torch.equal(SPLITS[kind]().batch(0, 0, 0)[0], values)


@pytest.mark.parametrize("kind", ["arrays", "items"])
def test_an_epoch_has_full_batches_of_different_examples(kind):
    """No example twice; what does not fill a batch is left out, others in another epoch."""
    split = SPLITS[kind]()
    targets = [split.batch(5, 2, i)[1] for i in range(len(split))]
    assert all(len(t) == split.batch_size for t in targets)
    seen = torch.cat(targets).tolist()
    assert len(set(seen)) == len(seen)


def test_inputs_and_targets_stay_together():
    """The target of every example is its own."""
    for index in range(5):
        inputs, targets = numbers().batch(0, 0, index)
        assert torch.equal(inputs * 10, targets)


def test_arrays_in_order_give_every_example_once_without_augmentation():
    """As stored, prepared, the last batch smaller."""
    split = pictures()
    parts = list(split.in_order())
    assert [len(t) for _, t in parts] == [5] * 7 + [2]
    assert torch.equal(torch.cat([x for x, _ in parts]), unit_floats(split.inputs))
    assert torch.cat([t for _, t in parts]).tolist() == list(range(37))


def test_augmentation_does_not_change_which_examples_come():
    """With and without it, a seed gives the same order."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (37, 3, 8, 8), generator=generator).to(torch.uint8)
    plain = Arrays(images, torch.arange(37), 5)
    assert torch.equal(plain.batch(3, 1, 2)[1], pictures().batch(3, 1, 2)[1])
    assert plain.batch(3, 1, 2)[0].dtype == torch.uint8


def test_images_of_one_batch_are_augmented_each_in_its_own_way():
    """Forty copies of one picture do not come out alike, nor alike in the next epoch."""
    image = torch.arange(192).to(torch.uint8).view(1, 3, 8, 8).repeat(40, 1, 1, 1)
    split = Arrays(image, torch.zeros(40), 40, augment=PadCropFlip(2))
    batch = split.batch(0, 0, 0)[0]
    assert len(batch.unique(dim=0)) > 20
    assert not torch.equal(batch, split.batch(0, 1, 0)[0])


def test_several_seeds_taking_turns_draw_each_epoch_once(monkeypatch):
    """Runs that share a split do not make it shuffle for every batch."""
    split = numbers()
    drawn = []
    draw = split._draw
    monkeypatch.setattr(split, "_draw", lambda g: drawn.append(1) or draw(g))
    for index in range(5):
        for seed in range(4):
            split.batch(seed, 0, index)
    assert len(drawn) == 4


def test_targets_of_a_text_are_one_token_ahead():
    """Row by row, and both are int64 and contiguous, so that view(-1) works."""
    split = words()
    for index in range(len(split)):
        inputs, targets = split.batch(0, 0, index)
        assert inputs.shape == targets.shape == (3, 7)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs + 1, targets)
        assert inputs.is_contiguous()
        assert targets.is_contiguous()


def test_windows_of_an_epoch_are_contiguous_from_one_offset_and_never_overlap():
    """All starts agree modulo the length; offsets differ between epochs and reach all values."""
    split = words(batch_size=2)
    offsets = set()
    for epoch in range(60):
        starts = torch.cat([split.batch(0, epoch, i)[0][:, 0] for i in range(len(split))])
        assert len(starts.unique()) == len(starts)
        offsets |= set((starts % 7).tolist())
        assert len((starts % 7).unique()) == 1
    assert offsets == set(range(7))


@pytest.mark.parametrize("count", [14, 15, 20, 21, 22, 203])
def test_a_text_in_order_has_every_token_but_the_first_as_target_once(count):
    """The last window may be shorter; together they are the text."""
    parts = list(words(count, 1, 7).in_order())
    assert torch.cat([t.flatten() for _, t in parts]).tolist() == list(range(1, count))
    assert torch.cat([x.flatten() for x, _ in parts]).tolist() == list(range(count - 1))


def test_the_smallest_text_still_serves_every_offset():
    """Two windows' worth of tokens give one window an epoch, inside the text."""
    split = words(14, 1, 7)
    assert len(split) == 1
    last = max(split.batch(0, epoch, 0)[1].max().item() for epoch in range(50))
    assert last == 13


@pytest.mark.parametrize(
    "split",
    [
        Tokens(torch.arange(100), 2, 8),
        Tokens(torch.arange(100, dtype=torch.int32), 1, 8),
        Arrays(torch.rand(5, 1, 2, 2), torch.arange(5), 2),
        Arrays(torch.full((5, 1, 2, 2), 255.0), torch.arange(5), 2, prepare=unit_floats),
    ],
)
def test_a_model_that_writes_to_its_inputs_does_not_change_the_data(split):
    """Neither in order nor in training; two rounds give the same."""
    before = [[x.clone() for x in pair] for pair in split.in_order()]
    trained = split.batch(0, 0, 0)[0].clone()
    for inputs, _ in [*split.in_order(), split.batch(0, 0, 0)]:
        inputs.zero_()
    for (x, y), (inputs, targets) in zip(before, split.in_order(), strict=True):
        assert torch.equal(x, inputs)
        assert torch.equal(y, targets)
        assert inputs.is_contiguous()
    assert torch.equal(trained, split.batch(0, 0, 0)[0])


def test_bytes_stay_bytes_in_memory():
    """A text of 256 kinds of tokens takes one byte a token until it is served."""
    split = Tokens(torch.arange(200, dtype=torch.uint8), 2, 10)
    assert split.ids.dtype == torch.uint8
    assert split.batch(0, 0, 0)[0].dtype == torch.int64


def test_items_take_dictionaries_and_a_collate_function():
    """Structures of tensors pass through; collate_fn decides the form."""

    def collate(items):
        return {"x": torch.stack([x for x, _ in items])}, [torch.tensor([y for _, y in items])]

    inputs, targets = Items(Pairs(), 5, collate).to("cpu").batch(0, 0, 0)
    assert inputs["x"].shape == (5, 2)
    assert targets[0].shape == (5,)


def test_items_that_are_not_pairs_are_refused():
    """The message names the dataset and what came."""

    class Triples(Pairs):
        def __getitem__(self, index):
            return index, index, index

    with pytest.raises(TypeError, match=r"Triples must be pairs .* came as 3 parts"):
        Items(Triples(), 2).batch(0, 0, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Arrays(torch.ones(5), torch.ones(4), 2), "5 inputs .* 4 targets"),
        (lambda: Arrays(torch.ones(0), torch.ones(0), 2), "empty"),
        (lambda: Arrays(torch.ones(5), torch.ones(5), 6), "batch_size 6 is larger .* 5 examples"),
        (lambda: Arrays(torch.ones(5), torch.ones(5), 0), "whole number >= 1, got 0"),
        (lambda: Arrays(torch.ones(5), torch.tensor(1.0), 1), "targets must have one row"),
        (lambda: Tokens(torch.ones(50), 2, 5), "whole numbers, got torch.float32"),
        (lambda: Tokens(torch.arange(13), 1, 7), "0 windows of 7 tokens in 13 tokens"),
        (lambda: Tokens(torch.arange(99), 1, 0), "length must be"),
        (lambda: numbers().batch(-1, 0, 0), "must be >= 0"),
    ],
)
def test_wrong_values_are_refused_by_name(make, message):
    """Lengths, sizes and types that cannot work are said at once, with the value."""
    with pytest.raises(ValueError, match=message):
        make()


def test_arrays_refuse_what_is_no_tensor():
    """A list is named as such; numpy arrays are taken, read-only ones too."""
    with pytest.raises(TypeError, match="inputs must be a tensor or a numpy array, got list"):
        Arrays([1, 2], torch.ones(2), 1)
    frozen = np.arange(4)
    frozen.flags.writeable = False
    assert Arrays(frozen, frozen, 2).batch(0, 0, 0)[0].shape == (2,)


def test_moving_to_the_same_device_changes_nothing():
    """``to`` is free where there is nothing to move."""
    split = numbers()
    assert split.to("cpu") is split
    assert words().to("cpu").batch(0, 0, 0)[0].device.type == "cpu"


def test_generators_of_different_keys_differ():
    """(seed, epoch) is not (epoch, seed), and large seeds count."""
    keys = [(0, 0), (0, 1), (1, 0), (1, 2), (2, 1), (2**40, 0), (2**40 + 1, 0)]
    firsts = {torch.rand((), generator=generator_for(*key)).item() for key in keys}
    assert len(firsts) == len(keys)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", SPLITS)
def test_cuda_sees_the_same_values_without_waiting(kind):
    """Bit for bit those of the CPU; once an epoch is drawn, the host never synchronises."""
    here, there = SPLITS[kind](), SPLITS[kind]().to("cuda")
    there.batch(0, 0, 0)
    if kind != "items":
        torch.cuda.set_sync_debug_mode("error")
    try:
        moved = [there.batch(0, 0, i) for i in range(len(there))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for index, batch in enumerate(moved):
        for value, expected in zip(batch, here.batch(0, 0, index), strict=True):
            assert value.device.type == "cuda"
            assert torch.equal(value.cpu(), expected)
    for batch, expected in zip(there.in_order(), here.in_order(), strict=True):
        assert torch.equal(batch[0].cpu(), expected[0])
