"""Small made-up data in the official layouts, for tests and smoke runs.

Learnable, so that a loss can fall: the class of an image shows in its pixels, and texts follow a
Markov chain. ``generated.json`` in the data folder lists what was made and how many rows every
file has; a set that is not listed there must be the official one.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from aliceopt.lab.data import imagenet, images, text
from aliceopt.lab.data.folder import GENERATED, DataError, data_folder, read_generated
from aliceopt.lab.data.registry import named
from aliceopt.lab.writing import writing

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Whole = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Random = np.random.Generator
Files = dict[str, tuple[int, bytes]]  # path -> rows, and content

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
    rows = {relative: count for relative, (count, _) in files.items()}
    entries[name] = {"seed": seed, "size": size, "rows": rows}
    _replace(folder / GENERATED, (json.dumps(entries, indent=1) + "\n").encode())
    for relative, (_, content) in files.items():
        _replace(folder / relative, content)
    return folder


def _replace(path: Path, content: bytes) -> None:
    """Write through a neighbour and rename, so that nobody reads half a file."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_file = path.with_name(f".{os.getpid()}-{path.name}")
        partial_file.write_bytes(content)
        partial_file.replace(path)


def _held_out(size: int, least: int) -> int:
    return max(least, size // 5)


def _images(
    files: tuple[str, ...],
    side: int,
    packed: Callable[[Bytes, Whole], bytes],
    random: Random,
    size: int,
) -> Files:
    """Pictures of classes 0 to 9, a coarse pattern of the class and noise; the last file validates.

    ``packed`` makes a file of pixels [count, 3 side side] and labels.
    """
    patterns = np.random.default_rng(7).integers(0, 200, (_SEEN_CLASSES, 3, 4, 4))
    training = [len(part) for part in np.array_split(np.arange(size), len(files) - 1)]
    made: Files = {}
    for file, count in zip(files, (*training, _held_out(size, 50)), strict=True):
        labels = random.permutation(np.arange(count) % _SEEN_CLASSES)
        pictures = patterns[labels].repeat(side // 4, axis=2).repeat(side // 4, axis=3)
        noisy = pictures + random.integers(0, 56, pictures.shape)
        made[file] = count, packed(noisy.astype(np.uint8).reshape(count, -1), labels)
    return made


def _binary(pixels: Bytes, labels: Whole) -> bytes:
    return np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1).tobytes()


def _npz(pixels: Bytes, labels: Whole) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, data=pixels, labels=labels + 1)
    return buffer.getvalue()


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


def _lines(files: tuple[str, ...], random: Random, size: int) -> Files:
    """Lines of nine words, exactly as many tokens as told with ``<eos>`` per line; some are <unk>.

    The first file trains.
    """
    made: Files = {}
    for file, tokens in zip(files, (size, *2 * [_held_out(size, 400)]), strict=True):
        words = _words(random, tokens)
        for i in range(0, tokens, max(1, tokens // 20)):
            words[i] = text.UNKNOWN
        starts = range(0, tokens, 10)
        lines = [" ".join(words[i : min(i + 10, tokens) - 1]) for i in starts]
        made[file] = tokens, "".join(f" {line} \n" for line in lines).encode("ascii")
    return made


def _characters(file: str, random: Random, size: int) -> Files:
    """One file, nine tenths of which train."""
    total = size * 10 // 9
    written = " ".join(_words(random, total)).replace("a0", "a0\n")
    return {file: (total, written[:total].encode("ascii"))}


def _npz_images(layout: imagenet.Layout) -> Callable[[Random, int], Files]:
    files = tuple(f"{layout.folders[0]}/{name}" for name in (*layout.train, layout.validation))
    return partial(_images, files, 64, _npz)


_MAKERS: dict[str, tuple[int, Callable[[Random, int], Files]]] = {
    "cifar10": (500, partial(_images, images.FILES, 32, _binary)),
    "imagenet64": (400, _npz_images(imagenet.IMAGENET64)),
    "tiny-imagenet-64": (400, _npz_images(imagenet.TINY_IMAGENET_64)),
    "wikitext-2": (20_000, partial(_lines, text.WIKITEXT_2.files)),
    "wikitext-103": (20_000, partial(_lines, text.WIKITEXT_103.files)),
    "enwik8": (40_000, partial(_characters, text.ENWIK8)),
    "tinyshakespeare": (20_000, partial(_characters, text.SHAKESPEARE)),
}
