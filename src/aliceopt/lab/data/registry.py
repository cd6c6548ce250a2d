"""The data sets by name: files, reader, official address, checksums and terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aliceopt.lab.data import cifar, digits, imagenet, text
from aliceopt.lab.data.folder import DataError, ImageParts, Rows, TextParts


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
    read: Callable[[Path, Rows], ImageParts | TextParts]
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
        read=lambda root, rows: digits.read(),
        examine=lambda root, relative, rows: "built in",
        page="https://scikit-learn.org/stable/datasets/toy_dataset.html",
        terms="part of the UCI collection, distributed with scikit-learn (BSD)",
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10, images 32x32 in 10 classes",
        kind="images",
        files=lambda root: list(cifar.FILES),
        read=cifar.read,
        examine=cifar.examine,
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        terms="no licence given; its page asks to cite Krizhevsky's report of 2009",
        source=Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "tar",
            "cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
        ),
        md5=cifar.MD5,
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
    """The data set of that name, or a DataError that lists the names."""
    if name not in DATASETS:
        raise DataError(f"no data set {name!r}: choose from {', '.join(DATASETS)}")
    return DATASETS[name]
