"""Rademacher signs from a counter: nothing stored, the same bits everywhere.

The sign of an element is one bit of a hash of (seed, step, parameter index, global element index).
Elements share a 32-bit hash word in runs of 32, so that a whole tensor costs one word per 32
signs; bit ``index % 32`` of word ``index // 32`` decides. Everything is 32-bit integer arithmetic
modulo 2^32, carried in int64 tensors here, hence the same on any device, in any shard and after
resume. torch's random state is neither read nor changed.

The mixer is two rounds of a multiply-xorshift permutation of 32-bit words (Wellons' "lowbias32"
constants), keyed before each round.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

__all__ = [
    "Key",
    "block_signs",
    "joined_signs",
    "joined_words",
    "run_signs",
    "run_words",
    "sign_key",
    "signs_at",
    "signs_in",
]

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_WORD_BITS = 32
_SIGN_BIT = -(1 << 31)
_MINUS_ONE = 0xBF800000 - (1 << 32)
"""As int32: what makes a float32 negative, and the bits of -1.0."""

IntLike = TypeVar("IntLike", int, Tensor)


class Key(NamedTuple):
    """Two 32-bit words that stand for (seed, step, parameter)."""

    low: int
    high: int


def _mix(x: IntLike) -> IntLike:
    """A permutation of 32-bit words with low bias; int or int64 tensor, values in [0, 2^32)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def sign_key(seed: int, step: int, parameter: int) -> Key:
    """Fold seed (64 bits), step (64 bits) and parameter index (32 bits) into a `Key`."""
    return _folded(_step_key(seed, step), parameter, 4)


@functools.lru_cache(maxsize=8)
def _step_key(seed: int, step: int) -> Key:
    """What all parameters of a step have in common."""
    key = Key(_GOLDEN, 0)
    for position, word in enumerate((seed, seed >> 32, step, step >> 32)):
        key = _folded(key, word, position)
    return key


def _folded(key: Key, word: int, position: int) -> Key:
    low = _mix((key.low + (word & _MASK) + position) & _MASK)
    return Key(low, _mix((key.high ^ low) + _GOLDEN & _MASK))


def _hash_words(low: int | Tensor, high: int | Tensor, word_index: Tensor) -> Tensor:
    """One 32-bit hash word for each (up to 63-bit) word index, of one key or of each one's own."""
    x = _mix((word_index & _MASK) ^ low)
    return _mix((x + (word_index >> 32) + high) & _MASK)


def _signs_from_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return (2 * (bits & 1) - 1).to(dtype)


def signs_at(key: Key, indices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Signs, +1 or -1, of the elements with these global row-major ``indices`` (int64)."""
    if indices.dtype != torch.int64:
        raise ValueError(f"indices must be int64, got {indices.dtype}")
    words = _hash_words(*key, indices // _WORD_BITS)
    return _signs_from_bits(words >> (indices % _WORD_BITS), dtype)


def block_signs(
    key: Key,
    global_shape: Sequence[int],
    *,
    offsets: Sequence[int] | None = None,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Signs of a rectangular block of a tensor of ``global_shape``; by default of all of it.

    The block starts at ``offsets`` and has ``shape``. Indices run row-major over the *global*
    logical shape, so a shard gets exactly the signs that the whole tensor has there.

    >>> whole = block_signs(sign_key(0, 0, 0), (4, 6))
    >>> right = block_signs(sign_key(0, 0, 0), (4, 6), offsets=(0, 3), shape=(4, 3))
    >>> bool((whole[:, 3:] == right).all())
    True
    """
    size = tuple(global_shape)
    start = tuple(offsets) if offsets is not None else (0,) * len(size)
    block = tuple(shape) if shape is not None else size
    _check_block(size, start, block)
    if math.prod(block) == 0:
        return torch.empty(block, dtype=dtype, device=device)
    strides = [math.prod(size[d + 1 :]) for d in range(len(size))]
    first = sum(o * s for o, s in zip(start, strides, strict=True))
    if block[1:] == size[1:]:
        return run_signs(key, first, math.prod(block), dtype, device).view(block)
    index = torch.full((1,) * len(size), first, dtype=torch.int64, device=device)
    for d, (length, stride) in enumerate(zip(block, strides, strict=True)):
        along = torch.arange(length, dtype=torch.int64, device=device) * stride
        index = index + along.view([-1 if i == d else 1 for i in range(len(size))])
    return signs_at(key, index, dtype)


def run_signs(
    key: Key, first: int, count: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Signs of ``count`` consecutive elements: one hash per word, then its bits."""
    words = run_words(key, first, count, device)
    return signs_in(words, first % _WORD_BITS, count, dtype)


def run_words(key: Key, first: int, count: int, device: torch.device | str) -> Tensor:
    """The hash words (int32) whose bits decide on ``count`` consecutive elements."""
    lowest, last = first // _WORD_BITS, (first + count - 1) // _WORD_BITS
    index = torch.arange(lowest, last + 1, dtype=torch.int64, device=device)
    return _hash_words(*key, index).to(torch.int32)


def signs_in(words: Tensor, skip: int, count: int, dtype: torch.dtype) -> Tensor:
    """Signs of ``count`` elements, from bit ``skip`` of the first of consecutive words on.

    A bit is brought to where a float32 has its sign, and turns that of -1.
    """
    shifts = torch.arange(_WORD_BITS - 1, -1, -1, dtype=torch.int32, device=words.device)
    bits = (words[:, None] << shifts).bitwise_and_(_SIGN_BIT).bitwise_xor_(_MINUS_ONE)
    return bits.view(torch.float32).view(-1)[skip : skip + count].to(dtype)


def joined_words(keys: Sequence[Key], counts: Sequence[int], device: torch.device | str) -> Tensor:
    """The hash words (int32) of several tensors of ``counts`` elements, one after the other.

    As many operations as for one of them.
    """
    lengths = [-(-count // _WORD_BITS) for count in counts]
    starts = [0, *accumulate(lengths)][:-1]
    own = torch.tensor([*zip(*keys, strict=True), starts], dtype=torch.int64, device=device)
    repeats = torch.tensor(lengths, dtype=torch.int64, device=device)
    low, high, start = own.repeat_interleave(repeats, 1, output_size=sum(lengths)).unbind()
    index = torch.arange(sum(lengths), dtype=torch.int64, device=device) - start
    return _hash_words(low, high, index).to(torch.int32)


def joined_signs(words: Tensor, counts: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The signs of several tensors of ``counts`` elements in one row, from their `joined_words`.

    >>> keys = [sign_key(0, 0, 0), sign_key(0, 0, 1)]
    >>> row = joined_signs(joined_words(keys, [40, 3], "cpu"), [40, 3], torch.float32)
    >>> bool((row[40:] == block_signs(keys[1], (3,))).all())
    True
    """
    signs = signs_in(words, 0, _WORD_BITS * len(words), dtype)
    if all(count % _WORD_BITS == 0 for count in counts):
        return signs
    sizes = chain.from_iterable((count, -count % _WORD_BITS) for count in counts)
    return torch.cat(signs.split(list(sizes))[::2])


def _check_block(size: Sequence[int], start: Sequence[int], block: Sequence[int]) -> None:
    fits = len(size) == len(start) == len(block) and all(
        o >= 0 and n >= 0 and o + n <= full for full, o, n in zip(size, start, block, strict=True)
    )
    if not fits:
        raise ValueError(
            f"block of shape {tuple(block)} at offsets {tuple(start)} must lie within {tuple(size)}"
        )
