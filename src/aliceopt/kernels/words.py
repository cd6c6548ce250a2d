"""Signs as bits, 32 to a word, in memory order: what the CPU forms expand while they move.

A whole word costs one hash, so a tensor's words are cheap to make and eight times smaller than a
byte a sign. Bit ``i % 32`` of word ``i // 32`` is 1 where the sign of element ``i`` is +1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..layout import local
from ..signs import Key, _hash_words, sign_key
from ..site import Draw, Site
from .memory import memory_order

__all__ = ["WORD_BITS", "SignWords", "displacements", "hash_span_"]

WORD_BITS = 32
MORE = 3
"""Words behind those of the elements: for the last bits, and for 64 elements of padding."""
_SLICE = 1 << 16  # words hashed at a time, so that the hash's own temporaries stay in the cache


def hash_span_(words: Tensor, key: Key, first: int) -> None:
    """Fill ``words`` with those of the word indices from ``first`` on."""
    for start in range(0, words.numel(), _SLICE):
        part = words[start : start + _SLICE]
        begin = first + start
        index = torch.arange(begin, begin + part.numel(), dtype=torch.int64, device="cpu")
        part.copy_(_hash_words(key, index))


class SignWords:
    """The words of one step, each made once: both sides and the signed Hessian need them.

    ``hash_span_`` fills a tensor with the words of consecutive indices.
    """

    def __init__(self, hash_span_: Callable[[Tensor, Key, int], None] = hash_span_) -> None:
        self._hash_span_ = hash_span_
        self._draw: Draw | None = None
        self._made: dict[tuple[int, ...], Tensor] = {}
        self._spans: dict[tuple[Any, ...], tuple[list[int], list[range], bool]] = {}

    def of(self, sites: Sequence[Site], draw: Draw) -> Tensor:
        """Words of all elements of these sites, end to end, and some more, all zero."""
        if draw != self._draw:
            self.clear()
            self._draw = draw
        key = tuple(site.index for site in sites)
        if key not in self._made:
            self._made[key] = self._make(sites, draw)
        return self._made[key]

    def clear(self) -> None:
        """Let go of them."""
        self._draw = None
        self._made.clear()

    def _make(self, sites: Sequence[Site], draw: Draw) -> Tensor:
        firsts, spans, plain = self._layout(sites)
        keys = [sign_key(draw.seed, draw.step, site.index) for site in sites]
        if len(sites) == 1:
            words = torch.empty(len(spans[0]) + MORE, dtype=torch.int32, device="cpu")
            words[-MORE:] = 0
            self._hash_span_(words[:-MORE], keys[0], spans[0].start)
            if plain:
                return words
        else:
            words = _hash_spans(keys, spans)
        bits = np.unpackbits(
            words.numpy().astype("<i4", copy=False).view(np.uint8), bitorder="little"
        )
        parts, at = [], 0
        for site, first, span in zip(sites, firsts, spans, strict=True):
            start = at + first % WORD_BITS
            parts.append(_in_memory_order(bits[start : start + site.numel], site))
            at += len(span) * WORD_BITS
        return _packed(parts)

    def _layout(self, sites: Sequence[Site]) -> tuple[list[int], list[range], bool]:
        """Each site's first global index and word indices, and whether these are in memory order.

        That stays the same from step to step.
        """
        key = tuple((site.index, site.param.shape, site.param.stride()) for site in sites)
        if key not in self._spans:
            orders = [memory_order(site) for site in sites]
            firsts = [first for first, _, _ in orders]
            spans = [
                range(first // WORD_BITS, (first + site.numel - 1) // WORD_BITS + 1)
                for site, first in zip(sites, firsts, strict=True)
            ]
            plain = orders[0][2] in ([], [1]) and firsts[0] % WORD_BITS == 0
            self._spans[key] = firsts, spans, plain
        return self._spans[key]


def displacements(words: Tensor, radius: float, dtype: torch.dtype) -> Tensor:
    """``+radius`` for every bit that is 1 and ``-radius`` for every 0.

    A number and its negative differ in one bit, so the sign is put there as it is.
    """
    integer, top = (torch.int64, 63) if dtype == torch.float64 else (torch.int32, 31)
    shifts = top - torch.arange(WORD_BITS, dtype=integer, device="cpu")
    flips = words.to(integer)[:, None] << shifts
    flips &= torch.iinfo(integer).min
    flips ^= torch.tensor(-radius, dtype=dtype, device="cpu").view(integer)
    return flips.view(dtype).view(-1)


def _hash_spans(keys: Sequence[Key], spans: Sequence[range]) -> Tensor:
    """Words of many short spans, each under its own key, in one go."""
    counts = [len(span) for span in spans]
    low, high = (
        torch.from_numpy(np.repeat(np.asarray(half, dtype=np.int64), counts))
        for half in zip(*keys, strict=True)
    )
    index = np.concatenate([np.arange(span.start, span.stop, dtype=np.int64) for span in spans])
    key = Key(low, high)  # type: ignore[arg-type]
    return _hash_words(key, torch.from_numpy(index)).to(torch.int32)


def _in_memory_order(bits: np.ndarray, site: Site) -> np.ndarray:
    """Row-major values of a site's elements, in the order in which its memory holds them."""
    here = local(site.param)
    order = sorted(range(here.dim()), key=lambda d: (-here.stride()[d], d))
    return bits.reshape(here.shape).transpose(order).reshape(-1)


def _packed(parts: Sequence[np.ndarray]) -> Tensor:
    count = sum(part.size for part in parts)
    room = np.zeros((count // WORD_BITS + MORE) * WORD_BITS, dtype=np.uint8)
    np.concatenate(parts, out=room[:count])
    return torch.from_numpy(np.packbits(room, bitorder="little").view("<i4").astype(np.int32))
