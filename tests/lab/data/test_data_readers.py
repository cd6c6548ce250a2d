"""Readers of the official layouts: what they give back and which files they refuse."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from aliceopt.lab.data import DataError, generate, load
from aliceopt.lab.data.folder import data_folder
from aliceopt.lab.data.images import ROW, read_digits
from aliceopt.lab.data.registry import check_files

BATCH_2 = "cifar-10-batches-bin/data_batch_2.bin"
TINY = "tiny-imagenet-64/train_data_batch_1.npz"


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    return generate.write("cifar10", tmp_path, size=50)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return generate.write("tiny-imagenet-64", tmp_path, size=20)


def refused(name: str, root: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(name, root, batch_size=2)


def test_digits_are_split_in_a_fixed_stratified_way():
    """1,437 and 360 images, each class within one image of a fifth, no image in both."""
    parts = read_digits()
    assert (len(parts.train_labels), len(parts.validation_labels)) == (1437, 360)
    both = torch.cat([parts.train_labels, parts.validation_labels]).bincount()
    held_out = parts.validation_labels.bincount()
    assert ((held_out - both / 5).abs() <= 1).all()
    assert parts.train_images.shape[1:] == (1, 8, 8)
    assert parts.train_images.dtype == torch.float32
    assert (parts.train_images.min(), parts.train_images.max()) == (0, 1)
    again = read_digits()
    assert torch.equal(again.validation_images, parts.validation_images)


def test_cifar_rows_become_images_channel_by_channel(cifar):
    """Byte 1 + 1024 c + 32 y + x of row n is pixel (c, y, x) of image n, byte 0 its label."""
    table = np.fromfile(cifar / BATCH_2, np.uint8).reshape(-1, ROW)
    split = load("cifar10", cifar, batch_size=2).train
    assert split.inputs.dtype == torch.uint8
    assert split.inputs[10 + 3, 2, 5, 7] == table[3, 1 + 2 * 1024 + 5 * 32 + 7]
    assert split.targets[10:20].tolist() == table[:, 0].tolist()


def test_a_set_may_be_cut_to_so_many_of_every_class(cifar):
    """The first of each in their order, all of validation, and a note; no more than there are."""
    whole = load("cifar10", cifar, batch_size=2)
    labels = whole.train.targets
    least = int(torch.bincount(labels, minlength=10).min())
    assert least > 1
    part = load("cifar10", cifar, batch_size=2, per_class=least - 1)
    first = [i for i, y in enumerate(labels) if int((labels[:i] == y).sum()) < least - 1]
    assert torch.equal(part.train.targets, labels[first])
    assert torch.equal(part.train.inputs, whole.train.inputs[first])
    assert torch.equal(part.validation.inputs, whole.validation.inputs)
    assert part.note.startswith(f"{10 * (least - 1)} training")
    for wrong in (0, least + 1, 2.5, True):
        with pytest.raises(DataError, match=rf"whole number from 1 to {least}.*got {wrong!r}"):
            load("cifar10", cifar, batch_size=2, per_class=wrong)
    with pytest.raises(DataError, match="per_class is for images"):
        load("enwik8", cifar, batch_size=2, per_class=3)


def test_cifar_refuses_a_truncated_file(cifar):
    """File, size found and size expected are named."""
    path = cifar / BATCH_2
    path.write_bytes(path.read_bytes()[:-100])
    refused("cifar10", cifar, rf"{path}: has 30,630 bytes, expected 30,730: it is truncated")


def test_cifar_refuses_a_file_that_is_too_long(cifar):
    """One row too many is no official file."""
    path = cifar / BATCH_2
    path.write_bytes(path.read_bytes() + bytes(ROW))
    refused("cifar10", cifar, rf"{path}: .* it is too long")


def test_cifar_refuses_a_label_out_of_range(cifar):
    """The row and the label are named."""
    path = cifar / BATCH_2
    table = np.fromfile(path, np.uint8).reshape(-1, ROW)
    table[7, 0] = 10
    table.tofile(path)
    refused("cifar10", cifar, rf"{path}: row 7 has label 10, outside 0 to 9")


def test_a_missing_file_names_the_folder_and_the_command(cifar):
    """What is missing, where it was looked for, and how to get it."""
    (cifar / BATCH_2).unlink()
    refused("cifar10", cifar, f"data_batch_2.bin of cifar10 is missing: looked in {cifar}")
    refused("cifar10", cifar, "aliceopt data get cifar10")


def test_small_files_without_generated_json_are_refused(cifar):
    """Only the official size passes for official data."""
    (cifar / "generated.json").unlink()
    refused("cifar10", cifar, "expected 30,730,000: it is truncated")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must hold one JSON object"),
        ('{"cifar10": {"size": 3}}', "has no 'rows'"),
        ('{"cifar10": {"rows": {}}}', "does not list"),
    ],
)
def test_a_wrong_generated_json_is_refused(cifar, content, message):
    """It is named, and why."""
    (cifar / "generated.json").write_text(content)
    refused("cifar10", cifar, message)


def test_npz_images_are_channel_first_and_labels_start_at_zero(tiny):
    """Column 4096 c + 64 y + x is pixel (c, y, x); the file's label 1 is class 0."""
    with np.load(tiny / TINY, allow_pickle=False) as content:
        data, labels = content["data"], content["labels"]
    split = load("tiny-imagenet-64", tiny, batch_size=2).train
    assert split.inputs[3, 1, 9, 4] == data[3, 4096 + 9 * 64 + 4]
    assert split.targets.tolist() == (labels - 1).tolist()


def test_compressed_npz_and_other_integer_labels_are_read(tiny):
    """savez_compressed, extra arrays and int32 labels are all fine."""
    before = load("tiny-imagenet-64", tiny, batch_size=2).train
    with np.load(tiny / TINY) as content:
        arrays = dict(content)
    arrays["labels"] = arrays["labels"].astype(np.int32)
    np.savez_compressed(tiny / TINY, mean=np.zeros(12288), **arrays)
    after = load("tiny-imagenet-64", tiny, batch_size=2).train
    assert torch.equal(after.inputs, before.inputs)
    assert torch.equal(after.targets, before.targets)


def images(rows: int = 20) -> np.ndarray:
    return np.zeros((rows, 12288), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": images()}, r"has no array 'labels' \(found: data\)"),
        ({"labels": np.ones(20, int)}, r"has no array 'data' \(found: labels\)"),
        ({"data": images().astype(np.float32), "labels": np.ones(20, int)}, "'data' is float32"),
        ({"data": images()[:, :100], "labels": np.ones(20, int)}, r"'data' is uint8 \(20, 100\)"),
        ({"data": images(19), "labels": np.ones(19, int)}, "19 images, expected 20"),
        ({"data": images(), "labels": np.ones(19, int)}, r"'labels' is int64 \(19,\)"),
        ({"data": images(), "labels": np.ones(20)}, "'labels' is float64"),
        ({"data": images(), "labels": np.zeros(20, int)}, "row 0 has label 0, outside 1 to 200"),
        ({"data": images(), "labels": np.full(20, 201)}, "row 0 has label 201"),
        (
            {"data": np.asfortranarray(images()), "labels": np.ones(20, int)},
            "array 'data' is stored by columns",
        ),
    ],
)
def test_npz_refuses_wrong_arrays(tiny, arrays, message):
    """Missing keys, wrong types, shapes, counts and labels: file and reason are named."""
    np.savez(tiny / TINY, **arrays)
    refused("tiny-imagenet-64", tiny, f"{tiny / TINY}: {message}")


def test_npz_is_never_unpickled(tiny):
    """An array of objects is refused for its type; its pickle is not touched."""

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    labels = np.array([Bomb()] * 20, dtype=object)
    np.savez(tiny / TINY, data=images(), labels=labels, allow_pickle=True)
    refused("tiny-imagenet-64", tiny, "'labels' is object")


def test_npz_refuses_a_truncated_file(tiny):
    """The end of the archive is missing."""
    path = tiny / TINY
    path.write_bytes(path.read_bytes()[:-1000])
    refused("tiny-imagenet-64", tiny, f"{path}: is truncated, damaged or no npz file")


def test_npz_refuses_damaged_pixels(tiny):
    """A flipped byte is noticed by the archive's own checksum."""
    path = tiny / TINY
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    refused("tiny-imagenet-64", tiny, f"{path}: is truncated, damaged or no npz file .*CRC")


def test_npz_refuses_an_array_shorter_than_its_header(tiny):
    """The header promises 20 rows and the archive holds fewer bytes."""
    path = tiny / TINY
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", members["data.npy"][:-5])
        archive.writestr("labels.npy", members["labels.npy"])
    refused("tiny-imagenet-64", tiny, f"{path}: array 'data' is truncated")


@pytest.mark.parametrize("rows", [10**15, 100_001, -1])
def test_npz_refuses_an_absurd_shape_before_it_asks_for_memory(tiny, rows):
    """A header may promise anything."""
    path = tiny / TINY
    with zipfile.ZipFile(path) as archive:
        labels = archive.read("labels.npy")
    header = io.BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": (rows, 12288)}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", header.getvalue() + bytes(100))
        archive.writestr("labels.npy", labels)
    (tiny / "generated.json").unlink()
    (report, *_) = check_files("tiny-imagenet-64", tiny)
    assert not report.ok
    assert report.detail == f"'data' has {rows:,} rows, the set has 100,000"


def test_npz_refuses_an_encrypted_file(tiny):
    """The mark of encryption on its members."""
    path = tiny / TINY
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(signature, bytes(content)):
            content[found.start() + flags] |= 1
    path.write_bytes(content)
    refused("tiny-imagenet-64", tiny, f"{path}: is truncated, damaged or no npz file .*encrypted")


def test_imagenet64_files_are_found_where_the_archives_unpack(tmp_path):
    """One folder for all or one per archive; the training files stay in the order 1 to 10."""
    root = generate.write("imagenet64", tmp_path, size=40)
    before = load("imagenet64", root, batch_size=2)
    moved = root / "Imagenet64_val_npz"
    moved.mkdir()
    (root / "imagenet64/val_data.npz").rename(moved / "val_data.npz")
    record = json.loads((root / "generated.json").read_text())
    rows = record["imagenet64"]["rows"]
    rows["Imagenet64_val_npz/val_data.npz"] = rows.pop("imagenet64/val_data.npz")
    (root / "generated.json").write_text(json.dumps(record))
    after = load("imagenet64", root, batch_size=2)
    assert after.classes == 1000
    assert torch.equal(after.validation.inputs, before.validation.inputs)
    assert torch.equal(after.train.targets, before.train.targets)


def test_imagenet64_refuses_a_wrong_number_of_images(tmp_path):
    """Without generated.json all training files together must have 1,281,167 images."""
    root = generate.write("imagenet64", tmp_path, size=40)
    (root / "generated.json").unlink()
    refused("imagenet64", root, "images, expected 50,000")
    path = root / "imagenet64/val_data.npz"
    np.savez(path, data=images(1), labels=[1])
    refused("imagenet64", root, f"{path}: 1 images, expected 50,000")


def test_the_folder_is_the_argument_or_the_variable_or_the_cache(monkeypatch, tmp_path):
    """In this order; ~ is expanded."""
    monkeypatch.setenv("ALICEOPT_DATA", str(tmp_path / "variable"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "variable"
    monkeypatch.delenv("ALICEOPT_DATA")
    assert data_folder() == Path.home() / ".cache/aliceopt/data"
    assert data_folder("~/sets") == Path.home() / "sets"
