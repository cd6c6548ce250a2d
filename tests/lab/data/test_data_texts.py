"""Texts as token numbers: vocabulary, order, counts, and files that are refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from aliceopt.lab.data import DataError, generate, load, text

TRAIN = "wikitext-2/wiki.train.tokens"
VALID = "wikitext-2/wiki.valid.tokens"


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    return generate.write("wikitext-2", tmp_path, size=1000)


def line_by_line(path: Path) -> list[str]:
    """The definition: the words of each line and then <eos>."""
    words: list[str] = []
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            words += [*line.split(), "<eos>"]
    return words


def test_the_vocabulary_is_that_of_training_the_most_frequent_word_first(wiki):
    """Ties stand in the order of appearance; decoding gives the words back."""
    words = line_by_line(wiki / TRAIN)
    ids, vocabulary = text.encode_train(wiki / TRAIN)
    assert list(vocabulary) == [word for word, _ in Counter(words).most_common()]
    assert list(vocabulary.values()) == list(range(len(vocabulary)))
    assert ids.tolist() == [vocabulary[word] for word in words]


def test_chunks_do_not_show(wiki, monkeypatch):
    """Read a few bytes at a time or all at once, the tokens are the same."""
    whole = text.encode_train(wiki / TRAIN)
    monkeypatch.setattr(text, "_CHUNK", 7)
    assert len(list(text.word_chunks(wiki / TRAIN))) > 50
    ids, vocabulary = text.encode_train(wiki / TRAIN)
    assert (ids == whole[0]).all()
    assert list(vocabulary) == list(whole[1])
    assert (text.encode(wiki / TRAIN, vocabulary) == ids).all()


def test_lines_end_in_eos_the_empty_and_the_last_one_too(tmp_path):
    """Only a line feed ends a line; other separators of Unicode are white space at most."""
    path = tmp_path / "some.tokens"
    path.write_bytes("a b\n\n c \u2028 d\u00a0e\r\nf".encode())
    (words,) = text.word_chunks(path)
    assert words == ["a", "b", "<eos>", "<eos>", "c", "d", "e", "<eos>", "f", "<eos>"]


def test_a_text_may_be_cut_to_its_beginning(tmp_path):
    """So many tokens to train on, validation in proportion, the vocabulary whole, and a note."""
    root = generate.write("enwik8", tmp_path, size=9000)
    whole = load("enwik8", root, batch_size=2, length=8)
    part = load("enwik8", root, batch_size=2, length=8, tokens=4500)
    assert torch.equal(part.train.ids, whole.train.ids[:4500])
    assert torch.equal(part.validation.ids, whole.validation.ids[:250])
    assert part.classes == whole.classes == 256
    assert part.note.startswith("4,500 training and 250 validation tokens")


def test_a_strange_word_becomes_unk(wiki):
    """Validation words that training lacks are <unk>, if training has it."""
    _, vocabulary = text.encode_train(wiki / TRAIN)
    path = wiki / "other"
    path.write_text("neverseen\n")
    assert text.encode(path, vocabulary).tolist() == [vocabulary["<unk>"], vocabulary["<eos>"]]
    without = {word: n for word, n in vocabulary.items() if word != "<unk>"}
    with pytest.raises(DataError, match="the word 'neverseen' is not in the training file"):
        text.encode(path, without)


def test_wikitext_serves_its_parts(wiki):
    """Training and validation tokens as generated, classes the size of the vocabulary."""
    loaded = load("wikitext-2", wiki, batch_size=2, length=10)
    assert (len(loaded.train.ids), len(loaded.validation.ids)) == (1000, 400)
    assert loaded.classes == len(set(line_by_line(wiki / TRAIN)))
    assert loaded.shape == (10,)
    assert loaded.train.ids.dtype == torch.int32


@pytest.mark.parametrize(
    ("relative", "content", "message"),
    [
        (TRAIN, b"one two\n\xff\n", "line 2 is not UTF-8"),
        (TRAIN, b"", "is empty"),
        (VALID, b"", "is empty"),
        (TRAIN, b"<unk> b\n", "has 3 tokens, expected 1,000"),
        (VALID, b"b\n", "has 2 tokens, expected 400"),
    ],
)
def test_wikitext_refuses_wrong_files(wiki, relative, content, message):
    """File and reason are named; a bad byte with its line."""
    (wiki / relative).write_bytes(content)
    with pytest.raises(DataError, match=f"{wiki / relative}: {message}"):
        load("wikitext-2", wiki, batch_size=2)


def test_a_bad_byte_far_in_is_found_with_its_line(tmp_path, monkeypatch):
    """Lines are counted across chunks."""
    monkeypatch.setattr(text, "_CHUNK", 8)
    path = tmp_path / "some.tokens"
    path.write_bytes(b"word word\n" * 40 + b"bad \xe9\n")
    with pytest.raises(DataError, match="line 41 is not UTF-8"):
        text.encode_train(path)


@pytest.mark.parametrize(
    ("name", "train", "words"),
    [("wikitext-2", "2,088,628", "33,278"), ("wikitext-103", "103,227,021", "267,735")],
)
def test_wikitext_must_have_the_official_counts(tmp_path, name, train, words):
    """Without generated.json tokens and vocabulary are those the publisher reports."""
    root = generate.write(name, tmp_path, size=1000)
    (root / "generated.json").unlink()
    with pytest.raises(DataError, match=f"has 1,000 tokens, expected {train}"):
        load(name, root, batch_size=2)
    layout = {"wikitext-2": text.WIKITEXT_2, "wikitext-103": text.WIKITEXT_103}[name]
    assert f"{layout.vocabulary:,}" == words
    smaller = text.WikiText(name, dict.fromkeys(layout.files, 400) | {layout.files[0]: 1000}, 5)
    with pytest.raises(DataError, match="different words, expected 5"):
        smaller.read(root)


def test_enwik8_is_cut_90_5_5(tmp_path):
    """In this order, bytes as they are."""
    root = generate.write("enwik8", tmp_path, size=1800)
    content = (root / "enwik8").read_bytes()
    parts = text.read_enwik8(root, {"enwik8": 2000})
    assert [len(p) for p in (parts.train, parts.validation, parts.test)] == [1800, 100, 100]
    assert bytes(torch.cat([parts.train, parts.validation, parts.test]).tolist()) == content
    assert parts.classes == 256
    (root / "enwik8").write_bytes(content[:-1])
    with pytest.raises(DataError, match="has 1,999 bytes, expected 2,000: it is truncated"):
        load("enwik8", root, batch_size=2)


def test_shakespeare_is_cut_90_10_by_characters(tmp_path):
    """Characters are numbered in the order of their codes."""
    root = generate.write("tinyshakespeare", tmp_path, size=900)
    content = (root / "tinyshakespeare.txt").read_text()
    loaded = load("tinyshakespeare", root, batch_size=2, length=8)
    assert (len(loaded.train.ids), len(loaded.validation.ids)) == (900, 100)
    letters = sorted(set(content))
    assert loaded.classes == len(letters)
    ids = torch.cat([loaded.train.ids, loaded.validation.ids]).tolist()
    assert "".join(letters[i] for i in ids) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x" * 999, "has 999 bytes, expected 1,000: it is truncated"),
        (b"x" * 500 + b"\xff" * 500, "byte 500 is 255, not an ASCII character"),
    ],
)
def test_shakespeare_refuses_wrong_files(tmp_path, content, message):
    """Size and characters are checked."""
    root = generate.write("tinyshakespeare", tmp_path, size=900)
    (root / "tinyshakespeare.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load("tinyshakespeare", root, batch_size=2)
