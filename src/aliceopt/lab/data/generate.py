"""Small made-up data in the official layouts, for tests and smoke runs.

Learnable, so that a loss can fall: the class of an image shows in its pixels, and texts follow a
Markov chain. ``generated.json`` in the data folder lists what was made and how many rows every
file has; a set that is not listed there must be the official one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aliceopt.lab.data import cifar, imagenet, text
from aliceopt.lab.data.errors import DataError
from aliceopt.lab.data.folder import GENERATED, data_folder, read_generated
from aliceopt.lab.data.loading import named
from aliceopt.lab.writing import writing

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Whole = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Random = np.random.Generator

_SEEN_CLASSES = 10  # generated images use the first ten classes, whatever the set
_WORDS = 60


def write(name: str, root: str | Path | None, *, seed: int = 0, size: int | None = None) -> Path:
    """Write a small generated set ``name`` below ``root`` in the official layout.

    ``size`` is the number of training images or of tokens (bytes, characters) of the training
    text; validation gets a fifth, at least 50 images or 400 tokens. The same arguments write the
    same files. Files that are not generated are never overwritten: that raises DataError. Returns
    the data folder. For digits, which are built in, there is nothing to write.
    """
    data_set, folder = named(name), data_folder(root)
    if name == "digits":
        return folder
    entries = read_generated(folder)
    present = [f for f in data_set.files(folder) if (folder / f).exists()]
    if present and name not in entries:
        raise DataError(
            f"{folder / present[0]} is there and is not generated: choose an empty folder"
        )
    default, make = _MAKERS[name]
    size = default if size is None else size
    if size < 10:
        raise DataError(f"size must be at least 10, got {size}")
    files = make(np.random.default_rng(seed), size)
    entries[name] = {
        "seed": seed,
        "size": size,
        "rows": {relative: rows for relative, (rows, _) in files.items()},
    }
    _replace(folder / GENERATED, lambda p: p.write_text(json.dumps(entries, indent=1) + "\n"))
    for relative, (_, save) in files.items():
        _replace(folder / relative, save)
    return folder


Files = dict[str, tuple[int, Callable[[Path], object]]]  # path -> rows, and what writes it


def _replace(path: Path, save: Callable[[Path], object]) -> None:
    """Write through a neighbour and rename, so that nobody reads half a file."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{os.getpid()}-{path.name}")
        save(partial)
        partial.replace(path)


def _images(random: Random, count: int, side: int) -> tuple[Bytes, Whole]:
    """Pictures [count, 3 side side] of classes 0 to 9: a coarse pattern of the class, and noise."""
    patterns = np.random.default_rng(7).integers(0, 200, (_SEEN_CLASSES, 3, 4, 4))
    labels = random.permutation(np.arange(count) % _SEEN_CLASSES)
    pictures = patterns[labels].repeat(side // 4, axis=2).repeat(side // 4, axis=3)
    noisy = pictures + random.integers(0, 56, pictures.shape)
    return noisy.astype(np.uint8).reshape(count, -1), labels


def _held_out(size: int, least: int) -> int:
    return max(least, size // 5)


def _cifar10(random: Random, size: int) -> Files:
    each = [len(part) for part in np.array_split(np.arange(size), len(cifar.TRAIN))]
    counts = dict(zip((*cifar.TRAIN, cifar.TEST), (*each, _held_out(size, 50)), strict=True))
    files: Files = {}
    for relative, count in counts.items():
        pixels, labels = _images(random, count, 32)
        table = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
        files[relative] = count, table.tofile
    return files


def _imagenet(layout: imagenet.Layout) -> Callable[[Random, int], Files]:
    def make(random: Random, size: int) -> Files:
        each = [len(part) for part in np.array_split(np.arange(size), len(layout.train))]
        counts = (*each, _held_out(size, 50))
        files: Files = {}
        for name, count in zip((*layout.train, layout.validation), counts, strict=True):
            pixels, labels = _images(random, count, 64)
            files[f"{layout.folders[0]}/{name}"] = count, _npz_saver(pixels, labels + 1)
        return files

    return make


def _npz_saver(data: Bytes, labels: Whole) -> Callable[[Path], object]:
    def save(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, data=data, labels=labels)

    return save


def _words(random: Random, count: int) -> list[str]:
    """A walk of a Markov chain over made-up words: each has three successors, one of them usual."""
    fixed = np.random.default_rng(11)
    letters = np.array(list("aeioubdfgklmnprst"))
    names = ["".join(fixed.choice(letters, 2 + i % 4)) + str(i % 10) for i in range(_WORDS)]
    successors = fixed.integers(0, _WORDS, (_WORDS, 3))
    choices = random.choice(3, count, p=(0.7, 0.2, 0.1))
    state, walk = int(random.integers(_WORDS)), []
    for choice in choices.tolist():
        state = int(successors[state, choice])
        walk.append(names[state])
    return walk


def _wikitext(layout: text.WikiText) -> Callable[[Random, int], Files]:
    def make(random: Random, size: int) -> Files:
        held_out = _held_out(size, 400)
        counts = zip(layout.files, (size, held_out, held_out), strict=True)
        return {relative: (count, _saver(_lines(random, count))) for relative, count in counts}

    return make


def _lines(random: Random, tokens: int) -> str:
    """Lines of nine words, exactly ``tokens`` tokens with ``<eos>`` per line; some are <unk>."""
    words = _words(random, tokens)
    words[:: max(1, tokens // 20)] = [text.UNKNOWN] * len(words[:: max(1, tokens // 20)])
    whole, rest = divmod(tokens, 10)
    lines = [" ".join(words[10 * i : 10 * i + 9]) for i in range(whole)]
    if rest:
        lines.append(" ".join(words[10 * whole : 10 * whole + rest - 1]))
    return "".join(f" {line} \n" for line in lines)


def _characters(random: Random, count: int) -> str:
    written = " ".join(_words(random, count)).replace("a0", "a0\n")
    return written[:count]


def _enwik8(random: Random, size: int) -> Files:
    total = size * 10 // 9
    return {text.ENWIK8: (total, _saver(_characters(random, total)))}


def _shakespeare(random: Random, size: int) -> Files:
    total = size * 10 // 9
    return {text.SHAKESPEARE: (total, _saver(_characters(random, total)))}


def _saver(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode("ascii"))


_MAKERS: dict[str, tuple[int, Callable[[Random, int], Files]]] = {
    "cifar10": (500, _cifar10),
    "imagenet64": (400, _imagenet(imagenet.IMAGENET64)),
    "tiny-imagenet-64": (400, _imagenet(imagenet.TINY_IMAGENET_64)),
    "wikitext-2": (20_000, _wikitext(text.WIKITEXT_2)),
    "wikitext-103": (20_000, _wikitext(text.WIKITEXT_103)),
    "enwik8": (40_000, _enwik8),
    "tinyshakespeare": (20_000, _shakespeare),
}
