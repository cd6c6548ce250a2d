"""Signs as bits, 32 to a word, in memory order: what the CPU forms expand while they move.

A whole word costs one hash, so a tensor's words are cheap to make and eight times smaller than a
byte a sign. Bit ``i % 32`` of word ``i // 32`` is 1 where the sign of element ``i`` is +1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..layout import local
from ..signs import Key, _hash_words, sign_key
from ..site import Draw, Site
from .memory import memory_order

__all__ = ["WORD_BITS", "SignWords", "Span", "displacements", "hash_span_", "hash_spans_"]

WORD_BITS = 32
MORE = 3
"""Words behind those of the elements: for the last bits, and for 64 elements of padding."""
MOST_PLANS = 8
FEW = 32
_SLICE = 1 << 16  # words hashed at a time, so that the hash's own temporaries stay in the cache


def hash_span_(words: Tensor, key: Key, first: int) -> None:
    """Fill ``words`` with those of the word indices from ``first`` on."""
    for start in range(0, words.numel(), _SLICE):
        part = words[start : start + _SLICE]
        begin = first + start
        index = torch.arange(begin, begin + part.numel(), dtype=torch.int64, device="cpu")
        part.copy_(_hash_words(key, index))


class Span(NamedTuple):
    """Where words go, under which key, and the index of the first one."""

    words: Tensor
    key: Key
    first: int


def hash_spans_(spans: Sequence[Span]) -> None:
    """`hash_span_` for each of these; short ones share its operations."""
    short: list[Span] = []
    for span in spans:
        if span.words.numel() >= _SLICE // 4:
            hash_span_(*span)
            continue
        short.append(span)
        if sum(other.words.numel() for other in short) >= _SLICE:
            _hash_short_(short)
            short = []
    if short:
        _hash_short_(short)


def _hash_short_(spans: Sequence[Span]) -> None:
    ranges = [range(span.first, span.first + span.words.numel()) for span in spans]
    words = _hash_together([span.key for span in spans], ranges)
    places = [span.words for span in spans]
    torch._foreach_copy_(places, list(words.split([len(r) for r in ranges])))


class Plan(NamedTuple):
    """Of many sites those whose words are in plain order, and where these go; and the others."""

    strides: list[tuple[int, ...]]
    indices: list[int]
    starts: list[int]
    places: Sequence[Tensor]
    others: list[int]


class SignWords:
    """The words of one step, each made once: both sides and the signed Hessian need them.

    ``hash_spans_`` fills tensors with the words of consecutive indices.
    """

    def __init__(self, hash_spans_: Callable[[Sequence[Span]], None] = hash_spans_) -> None:
        self._hash_spans_ = hash_spans_
        self._draw: Draw | None = None
        self._made: dict[tuple[int, ...], Tensor] = {}
        self._each: dict[tuple[int, ...], list[Tensor]] = {}
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._spans: dict[tuple[Any, ...], tuple[list[int], list[range], bool]] = {}

    def of(self, sites: Sequence[Site], draw: Draw) -> Tensor:
        """Words of all elements of these sites, end to end, and some more, all zero."""
        self._begin(draw)
        key = tuple(site.index for site in sites)
        if key not in self._made:
            self._made[key] = self._make(sites, draw)
        return self._made[key]

    def each(self, sites: Sequence[Site], draw: Draw) -> list[Tensor]:
        """Words of each of these sites, by itself; those in plain order are made in one go."""
        self._begin(draw)
        key = tuple(site.index for site in sites)
        if key not in self._each:
            plan = self._plan(key, sites)
            keys = _keys(plan.indices, draw)
            if keys:
                self._hash_spans_(list(map(Span, plan.places, keys, plan.starts)))
            words = list(plan.places)
            for i in plan.others:
                words.insert(i, self.of([sites[i]], draw))
            self._each[key] = words
        return self._each[key]

    def _plan(self, key: tuple[int, ...], sites: Sequence[Site]) -> Plan:
        """What stays the same from step to step, memory included."""
        strides = [site.param.stride() for site in sites]
        known = self._plans.get(key)
        if known is None or known.strides != strides:
            layouts = [self._layout([site]) for site in sites]
            others = [i for i, (_, _, plain) in enumerate(layouts) if not plain]
            spans = [spans[0] for _, spans, plain in layouts if plain]
            counts = [len(span) for span in spans]
            places = torch.zeros(sum(counts) + MORE, dtype=torch.int32, device="cpu")[:-MORE]
            indices = [index for i, index in enumerate(key) if layouts[i][2]]
            starts = [span.start for span in spans]
            known = Plan(strides, indices, starts, places.split(counts), others)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = known
        return known

    def _begin(self, draw: Draw) -> None:
        if draw != self._draw:
            self.clear()
            self._draw = draw

    def clear(self) -> None:
        """Let go of them."""
        self._draw = None
        self._made.clear()
        self._each.clear()

    def _make(self, sites: Sequence[Site], draw: Draw) -> Tensor:
        firsts, spans, plain = self._layout(sites)
        keys = _keys([site.index for site in sites], draw)
        if len(sites) == 1:
            words = torch.empty(len(spans[0]) + MORE, dtype=torch.int32, device="cpu")
            words[-MORE:] = 0
            self._hash_spans_([Span(words[:-MORE], keys[0], spans[0].start)])
            if plain:
                return words
        else:
            words = _hash_together(keys, spans)
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


def displacements(
    words: Tensor, radius: float, dtype: torch.dtype, room: Tensor | None = None
) -> Tensor:
    """``+radius`` for every bit that is 1 and ``-radius`` for every 0.

    A sign is put where a number has its own. ``room`` is memory for the result, of integers as
    wide as the dtype; without, new memory is taken.
    """
    integer, top = (torch.int64, 63) if dtype == torch.float64 else (torch.int32, 31)
    # A bit that is 1 means a number that is not negative.
    negative = (words if radius < 0 else ~words).to(integer)[:, None]
    if room is None:
        room = torch.empty(words.numel() * WORD_BITS, dtype=integer, device="cpu")
    there = room[: words.numel() * WORD_BITS].view(-1, WORD_BITS)
    torch.bitwise_left_shift(negative, _shifts(integer, top), out=there)
    flips = there.view(dtype).view(-1)
    return torch.copysign(torch.tensor(abs(radius), dtype=dtype, device="cpu"), flips, out=flips)


@functools.cache
def _shifts(integer: torch.dtype, top: int) -> Tensor:
    return top - torch.arange(WORD_BITS, dtype=integer, device="cpu")


def _keys(indices: Sequence[int], draw: Draw) -> list[Key]:
    """The keys of all these parameters; of many, by the arithmetic of `sign_key` on tensors."""
    if len(indices) < FEW:
        return [sign_key(draw.seed, draw.step, index) for index in indices]
    both = sign_key(draw.seed, draw.step, torch.tensor(indices, device="cpu"))  # type: ignore[arg-type]
    return list(map(Key, *(half.tolist() for half in both)))  # type: ignore[attr-defined]


def _hash_together(keys: Sequence[Key], spans: Sequence[range]) -> Tensor:
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
