"""Texts as rows of token numbers: WikiText by words, enwik8 by bytes, Shakespeare by characters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aliceopt.lab.data.folder import DataError, Rows, found_file, rows_of

END = "<eos>"
UNKNOWN = "<unk>"
_CHUNK = 1 << 23  # bytes of text turned into words at a time

ENWIK8 = "enwik8"
ENWIK8_BYTES = 100_000_000
SHAKESPEARE = "tinyshakespeare.txt"
SHAKESPEARE_BYTES = 1_115_394
SHAKESPEARE_CHARACTERS = 65

Ids = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True)
class TextParts:
    """Token numbers, integer [N], each below ``classes``, the size of the vocabulary."""

    train: Tensor
    validation: Tensor
    test: Tensor | None
    classes: int


@dataclass(frozen=True)
class WikiText:
    """One of the two WikiTexts and the counts its publisher gives, ``<eos>`` per line included."""

    name: str
    tokens: Mapping[str, int]
    vocabulary: int

    @property
    def files(self) -> tuple[str, ...]:
        """Training, validation and test file."""
        return tuple(self.tokens)

    def read(self, root: Path, rows: Rows = None) -> TextParts:
        """The three parts by words; the vocabulary is that of the training part."""
        paths = [found_file(self.name, root, relative) for relative in self.files]
        ids, vocabulary = self._train(paths[0], rows)
        others = [encode(path, vocabulary) for path in paths[1:]]
        for relative, path, part in zip(self.files[1:], paths[1:], others, strict=True):
            _counted(path, len(part), rows_of(rows, self.tokens, relative))
        train, validation, test = map(torch.from_numpy, (ids, *others))
        return TextParts(train, validation, test, classes=len(vocabulary))

    def _train(self, path: Path, rows: Rows) -> tuple[Ids, dict[str, int]]:
        """Token numbers and vocabulary of the training file, both counted."""
        ids, vocabulary = encode_train(path)
        _counted(path, len(ids), rows_of(rows, self.tokens, self.files[0]))
        if rows is None:
            _counted(path, len(vocabulary), self.vocabulary, "different words")
        return ids, vocabulary

    def examine(self, root: Path, relative: str, rows: Rows = None) -> str:
        """One line about a file that is right; DataError for one that is not."""
        path = found_file(self.name, root, relative)
        if relative == self.files[0]:
            ids, vocabulary = self._train(path, rows)
            return f"{len(ids):,} tokens, {len(vocabulary):,} different words"
        expected = rows_of(rows, self.tokens, relative)
        _counted(path, sum(map(len, word_chunks(path))), expected)
        return f"{expected:,} tokens"


def _wikitext(name: str, train: int, vocabulary: int) -> WikiText:
    counts = {"train": train, "valid": 217_646, "test": 245_569}
    tokens = {f"{name}/wiki.{part}.tokens": count for part, count in counts.items()}
    return WikiText(name, tokens, vocabulary)


WIKITEXT_2 = _wikitext("wikitext-2", 2_088_628, 33_278)
WIKITEXT_103 = _wikitext("wikitext-103", 103_227_021, 267_735)


def word_chunks(path: Path) -> Iterator[list[str]]:
    """The words of a file, some megabytes at a time, with ``<eos>`` after every line.

    Words are what white space separates. An empty line is an ``<eos>`` too.
    """
    with path.open("rb") as file:
        line = 1
        while block := file.read(_CHUNK) + file.readline():
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError as error:
                line += block[: error.start].count(b"\n")
                raise DataError(f"{path}: line {line} is not UTF-8 ({error.reason})") from None
            line += block.count(b"\n")
            if not text.endswith("\n"):
                text += "\n"
            yield text.replace("\n", f" {END} ").split()


def encode_train(path: Path) -> tuple[Ids, dict[str, int]]:
    """Token numbers of the training file and its vocabulary, the most frequent word first.

    Words equally frequent stand in the order of their first appearance. One pass over the text:
    words are numbered as they appear and renumbered by frequency at the end.
    """
    vocabulary: defaultdict[str, int] = defaultdict()
    vocabulary.default_factory = vocabulary.__len__
    chunks = [
        np.fromiter(map(vocabulary.__getitem__, words), np.int32, len(words))
        for words in word_chunks(path)
    ]
    if not chunks:
        raise DataError(f"{path}: is empty")
    counts = sum(np.bincount(chunk, minlength=len(vocabulary)) for chunk in chunks)
    by_rank = np.argsort(-np.asarray(counts), kind="stable")
    rank = np.argsort(by_rank).astype(np.int32)
    ids = np.empty(sum(map(len, chunks)), np.int32)
    end = len(ids)
    while chunks:  # from the back, so that every chunk is freed as it is copied
        chunk = chunks.pop()
        np.take(rank, chunk, out=ids[end - len(chunk) : end])
        end -= len(chunk)
    words = list(vocabulary)
    return ids, {words[i]: n for n, i in enumerate(by_rank.tolist())}


def encode(path: Path, vocabulary: Mapping[str, int]) -> Ids:
    """Token numbers of another file; a word that training did not have becomes ``<unk>``."""
    unknown = vocabulary.get(UNKNOWN)
    chunks = []
    for words in word_chunks(path):
        if unknown is None and (strangers := [w for w in words if w not in vocabulary]):
            raise DataError(
                f"{path}: the word {strangers[0]!r} is not in the training file, and that has no "
                f"{UNKNOWN}"
            )
        numbers = (vocabulary.get(word, unknown) for word in words)
        chunks.append(np.fromiter(numbers, np.int32, len(words)))
    if not chunks:
        raise DataError(f"{path}: is empty")
    return np.concatenate(chunks)


def _counted(path: Path, found: int, expected: int, what: str = "tokens") -> None:
    if found != expected:
        raise DataError(f"{path}: has {found:,} {what}, expected {expected:,}")


def read_enwik8(root: Path, rows: Rows = None) -> TextParts:
    """Bytes as they are, 256 classes: 90 % for training, 5 % each for validation and test."""
    size = rows_of(rows, {ENWIK8: ENWIK8_BYTES}, ENWIK8)
    path = found_file(ENWIK8, root, ENWIK8, size)
    ids = torch.from_numpy(np.fromfile(path, np.uint8))
    tail = size // 20
    train, validation, test = ids.split([size - 2 * tail, tail, tail])
    return TextParts(train, validation, test, classes=256)


def read_shakespeare(root: Path, rows: Rows = None) -> TextParts:
    """Characters numbered in the order of their codes: the first 90 % train, the rest validates."""
    size = rows_of(rows, {SHAKESPEARE: SHAKESPEARE_BYTES}, SHAKESPEARE)
    path = found_file("tinyshakespeare", root, SHAKESPEARE, size)
    codes = np.fromfile(path, np.uint8)
    wrong = np.flatnonzero(codes > 127)
    if len(wrong):
        raise DataError(f"{path}: byte {wrong[0]} is {codes[wrong[0]]}, not an ASCII character")
    characters, ids = np.unique(codes, return_inverse=True)
    if rows is None:
        _counted(path, len(characters), SHAKESPEARE_CHARACTERS, "different characters")
    numbers = torch.from_numpy(ids.astype(np.uint8))
    train, validation = numbers.split([size * 9 // 10, size - size * 9 // 10])
    return TextParts(train, validation, None, classes=len(characters))


def examine_enwik8(root: Path, relative: str, rows: Rows = None) -> str:
    """One line about the file if it is right; DataError if it is not."""
    parts = read_enwik8(root, rows)
    return f"bytes: {len(parts.train):,} to train, {len(parts.validation):,} to validate"


def examine_shakespeare(root: Path, relative: str, rows: Rows = None) -> str:
    """One line about the file if it is right; DataError if it is not."""
    parts = read_shakespeare(root, rows)
    count = len(parts.train) + len(parts.validation)
    return f"{count:,} characters, {parts.classes} different ones"
