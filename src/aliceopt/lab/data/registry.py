"""The data sets by name: files, reader, official address, checksums, terms; and are they right?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aliceopt.lab.data import imagenet, images, text
from aliceopt.lab.data.folder import (
    DataError,
    Rows,
    data_folder,
    generated_rows,
)
from aliceopt.lab.words import meant


@dataclass(frozen=True)
class Source:
    """One download: its address, what to do with it, and its md5 where one is published.

    ``file`` is its name on disk. A "file" is kept as it is, "zip" and "tar" are unpacked, and
    "tiny-imagenet" is an archive of JPEG files that is converted to the npz layout. No more than
    ``most`` bytes are downloaded, and no more than ``unpacked`` unpacked: what is longer is
    something else.
    """

    address: str
    kind: Literal["file", "zip", "tar", "tiny-imagenet"]
    file: str
    md5: str | None = None
    most: int = 300_000_000
    unpacked: int = 1_000_000_000


@dataclass(frozen=True)
class DataSet:
    """What is known about one data set.

    ``files(root)`` lists its files below ``root``, ``read(root, rows)`` reads them all and
    ``examine(root, file, rows)`` describes one in a line; both raise DataError for a wrong file.
    ``whole(root, rows)`` checks what only all files together show.
    ``rows`` is what ``generated.json`` promises, None for the official files. ``by_hand`` says how
    to get the set where no program may.
    """

    name: str
    title: str
    kind: Literal["images", "text"]
    files: Callable[[Path], list[str]]
    read: Callable[[Path, Rows], images.ImageParts | text.TextParts]
    examine: Callable[[Path, str, Rows], str]
    page: str
    terms: str
    whole: Callable[[Path, Rows], str] | None = None
    source: Source | None = None
    md5: Mapping[str, str] = field(default_factory=dict)
    by_hand: str = ""
    augmentable: bool = False


def _wikitext(layout: text.WikiText) -> DataSet:
    archive = f"{layout.name}-v1.zip"
    return DataSet(
        name=layout.name,
        title=f"{layout.name.replace('wikitext', 'WikiText')}, Wikipedia articles by words",
        kind="text",
        files=lambda root: list(layout.files),
        read=layout.read,
        examine=layout.examine,
        page="https://huggingface.co/datasets/Salesforce/wikitext",
        terms="Creative Commons Attribution-ShareAlike",
        source=Source(f"https://wikitext.smerity.com/{archive}", "zip", archive),
    )


_ALL = (
    DataSet(
        name="digits",
        title="handwritten digits 8x8, built in",
        kind="images",
        files=lambda root: [],
        read=lambda root, rows: images.read_digits(),
        examine=lambda root, relative, rows: "built in",
        page="https://scikit-learn.org/stable/datasets/toy_dataset.html",
        terms="part of the UCI collection, distributed with scikit-learn (BSD)",
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10, images 32x32 in 10 classes",
        kind="images",
        files=lambda root: list(images.FILES),
        read=images.read_cifar,
        examine=images.examine_cifar,
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        terms="no licence given; its page asks to cite Krizhevsky's report of 2009",
        source=Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "tar",
            "cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
        ),
        md5=images.MD5,
        augmentable=True,
    ),
    DataSet(
        name="imagenet64",
        title="downsampled ImageNet, images 64x64 in 1,000 classes",
        kind="images",
        files=imagenet.IMAGENET64.files,
        read=imagenet.IMAGENET64.read,
        examine=imagenet.IMAGENET64.examine,
        whole=imagenet.IMAGENET64.examine_whole,
        page="https://image-net.org/download-images.php",
        terms="ImageNet's terms of access: research and education only, after registration",
        by_hand="log in, accept the terms and download, under 'Download downsampled image "
        "data', the three 64x64 archives in npz format (train part 1, train part 2, validation)",
        augmentable=True,
    ),
    DataSet(
        name="tiny-imagenet-64",
        title="Tiny-ImageNet, images 64x64 in 200 classes",
        kind="images",
        files=imagenet.TINY_IMAGENET_64.files,
        read=imagenet.TINY_IMAGENET_64.read,
        examine=imagenet.TINY_IMAGENET_64.examine,
        whole=imagenet.TINY_IMAGENET_64.examine_whole,
        page="https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        terms="a part of ImageNet: research and education only",
        source=Source(
            "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet",
            "tiny-imagenet-200.zip",
            # The publisher gives none; many projects check the same archive by this one.
            md5="90528d7ca1a48142e341f4ef8d21d0de",
        ),
        augmentable=True,
    ),
    _wikitext(text.WIKITEXT_2),
    _wikitext(text.WIKITEXT_103),
    DataSet(
        name="enwik8",
        title="the first 100 MB of Wikipedia, by bytes",
        kind="text",
        files=lambda root: [text.ENWIK8],
        read=text.read_enwik8,
        examine=text.examine_enwik8,
        page="https://mattmahoney.net/dc/textdata.html",
        terms="text of Wikipedia: GNU Free Documentation License",
        source=Source("https://mattmahoney.net/dc/enwik8.zip", "zip", "enwik8.zip"),
        md5={text.ENWIK8: "a1fa5ffddb56f4953e226637dabbb36a"},
    ),
    DataSet(
        name="tinyshakespeare",
        title="1 MB of Shakespeare, by characters",
        kind="text",
        files=lambda root: [text.SHAKESPEARE],
        read=text.read_shakespeare,
        examine=text.examine_shakespeare,
        page="https://github.com/karpathy/char-rnn",
        terms="the plays are in the public domain",
        source=Source(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
            "tinyshakespeare/input.txt",
            "file",
            text.SHAKESPEARE,
        ),
    ),
)

DATASETS: dict[str, DataSet] = {data_set.name: data_set for data_set in _ALL}


def named(name: str) -> DataSet:
    """The data set of that name, or a DataError with the one that was meant."""
    if name not in DATASETS:
        raise DataError(f"no data set {name!r}{meant(name, DATASETS)}")
    return DATASETS[name]


@dataclass(frozen=True)
class FileReport:
    """The verdict on one file: right or not, and why."""

    file: str
    ok: bool
    detail: str


def file_md5(path: Path) -> str:
    """The md5 sum of a file, in hexadecimal; it tells damage apart, not malice."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def present_files(name: str, root: str | Path | None = None) -> tuple[list[str], list[str]]:
    """The files of set ``name`` that are there, and those that are missing."""
    folder = data_folder(root)
    files = named(name).files(folder)
    missing = [file for file in files if not (folder / file).is_file()]
    return [file for file in files if file not in missing], missing


def check_files(name: str, root: str | Path | None = None) -> Iterator[FileReport]:
    """Read every file of set ``name`` in full and report on each, then on the set as a whole.

    Sizes, counts, types and labels are checked always; md5 sums where the publisher gives them, and
    then not for generated data.
    """
    data_set, folder = named(name), data_folder(root)
    rows = generated_rows(name, folder)
    failed = False
    for file in data_set.files(folder):
        try:
            detail = data_set.examine(folder, file, rows)
            if rows is None and file in data_set.md5:
                found, published = file_md5(folder / file), data_set.md5[file]
                if found != published:
                    raise DataError(f"has md5 {found}, published is {published}")
                detail += ", md5 as published"
        except (DataError, OSError) as error:
            failed = True
            missing = not (folder / file).exists()
            detail = "missing" if missing else str(error).removeprefix(f"{folder / file}: ")
            yield FileReport(file, False, detail)
        else:
            yield FileReport(file, True, detail + (", generated" if rows is not None else ""))
    if data_set.whole is not None and not failed:
        try:
            yield FileReport(name, True, data_set.whole(folder, rows))
        except DataError as error:
            yield FileReport(name, False, str(error))
