"""The signs: one definition, the same bits for whole and part, and nothing random about torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aliceopt.signs import (
    Key,
    block_signs,
    joined_signs,
    joined_words,
    sign_key,
    signs_at,
)

WORD = 2**32
STANDARD_ERRORS = 4.0


# ---- the definition, once more, in plain integers --------------------------------------------


def mixed(x: int) -> int:
    """Wellons' lowbias32: xorshift 16, multiply, xorshift 15, multiply, xorshift 16."""
    x ^= x >> 16
    x = x * 0x7FEB352D % WORD
    x ^= x >> 15
    x = x * 0x846CA68B % WORD
    return x ^ (x >> 16)


def plain_key(seed: int, step: int, parameter: int) -> tuple[int, int]:
    """Absorb the halves of seed and step, then the parameter, into two words."""
    low, high = 0x9E3779B9, 0
    halves = [seed % WORD, seed // WORD, step % WORD, step // WORD, parameter]
    for position, word in enumerate(halves):
        low = mixed((low + word + position) % WORD)
        high = mixed(((high ^ low) + 0x9E3779B9) % WORD)
    return low, high


def plain_sign(seed: int, step: int, parameter: int, index: int) -> int:
    """The sign of one element: bit ``index % 32`` of hash word ``index // 32``."""
    low, high = plain_key(seed, step, parameter)
    word, bit = divmod(index, 32)
    first = mixed((word % WORD) ^ low)
    second = mixed((first + word // WORD + high) % WORD)
    return 1 if second >> bit & 1 else -1


def row_major(shape: tuple[int, ...], offsets: tuple[int, ...], block: tuple[int, ...]) -> list:
    """Row-major indices in ``shape`` of the elements of a block, in the block's own order."""
    places = itertools.product(*(range(o, o + n) for o, n in zip(offsets, block, strict=True)))
    indices = []
    for place in places:
        index = 0
        for length, coordinate in zip(shape, place, strict=True):
            index = index * length + coordinate
        indices.append(index)
    return indices


@st.composite
def blocks(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A shape of 1 to 4 dimensions, and offsets and shape of a block in it, empty ones too."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    offsets = tuple(draw(st.integers(0, n)) for n in shape)
    block = tuple(draw(st.integers(0, n - o)) for n, o in zip(shape, offsets, strict=True))
    return shape, offsets, block


SEEDS = st.integers(0, 2**63 - 1)
STEPS = st.integers(0, 2**40)
PARAMETERS = st.integers(0, 2**32 - 1)


@given(SEEDS, STEPS, PARAMETERS)
@settings(deadline=None)
def test_key_is_the_documented_hash(seed: int, step: int, parameter: int) -> None:
    """Seed, step and parameter fold into the two words that plain integers give."""
    assert tuple(sign_key(seed, step, parameter)) == plain_key(seed, step, parameter)


@given(SEEDS, STEPS, PARAMETERS, blocks())
@settings(max_examples=60, deadline=None)
def test_block_has_the_signs_of_its_global_indices(
    seed: int, step: int, parameter: int, block: tuple
) -> None:
    """Any block of any shape has the plain-integer signs of its global row-major indices."""
    shape, offsets, part = block
    key = sign_key(seed, step, parameter)
    signs = block_signs(key, shape, offsets=offsets, shape=part)
    expected = [plain_sign(seed, step, parameter, i) for i in row_major(shape, offsets, part)]
    assert tuple(signs.shape) == part
    assert signs.flatten().tolist() == expected


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_large_indices(indices: list[int]) -> None:
    """Elements beyond 2^32, and words beyond 2^32, have their own signs, in any shape."""
    signs = signs_at(sign_key(1, 2, 3), torch.tensor(indices).view(-1, 1))
    assert signs.shape == (len(indices), 1)
    assert signs.flatten().tolist() == [plain_sign(1, 2, 3, i) for i in indices]


@pytest.mark.parametrize("base", [2**31, 2**32, 2**37, 2**40 + 17])
def test_large_indices_do_not_repeat_small_ones(base: int) -> None:
    """An index is not cut to 32 bits, neither in elements nor in words."""
    key, run = sign_key(0, 0, 0), torch.arange(4096)
    agreement = (signs_at(key, run) * signs_at(key, run + base)).mean().item()
    assert abs(agreement) < STANDARD_ERRORS / math.sqrt(len(run))


def test_block_far_into_a_huge_tensor() -> None:
    """A row and a patch near the end of a tensor of 2^44 elements, which is never made."""
    key, shape = sign_key(7, 8, 9), (2**22, 2**22)
    corner = (2**22 - 2, 2**22 - 5)
    for offsets, part in [((corner[0], 0), (1, 2**22)), (corner, (2, 5))]:
        signs = block_signs(key, shape, offsets=offsets, shape=part)
        tail = signs[:, -5:].flatten().tolist()
        start = (offsets[0], corner[1])
        expected = row_major(shape, start, (part[0], 5))
        assert tail == [plain_sign(7, 8, 9, i) for i in expected]


PINNED = {
    # (seed, step, parameter): key, and the signs of elements 0 to 31, element 0 first
    (0, 0, 0): ((3957584659, 3354768387), "++--+++---++--++++++-+-++-++--+-"),
    (0, 1, 0): ((1460037816, 374848341), "+-++-+++-+-++-+++--++----++++--+"),
    (0, 0, 1): ((4288438473, 2812937890), "-++++++++-+---++---+-+-++-+--++-"),
    (1, 0, 0): ((3366569327, 2313154613), "++-+-++++++++-++-+--+-++++-----+"),
    (9223372036854775807, 8589934597, 7): (
        (3068496962, 1935375491),
        "++----++-+--+++-+-+---+--++--+++",
    ),
}


@pytest.mark.parametrize("name", PINNED)
def test_pinned_values(name: tuple[int, int, int]) -> None:
    """These bits never change: a resumed run must probe where the old one would have."""
    key, signs = PINNED[name]
    assert sign_key(*name) == key
    text = "".join("+" if s > 0 else "-" for s in block_signs(Key(*key), (32,)).tolist())
    assert text == signs


# ---- whole and parts -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(10, 33), (64, 32), (7, 5, 6)])
@pytest.mark.parametrize("dim", [0, 1])
def test_halves_are_those_of_the_whole(shape: tuple[int, ...], dim: int) -> None:
    """Cut row-wise or column-wise, with global offsets, the parts have the bits of the whole."""
    key = sign_key(3, 14, 15)
    whole = block_signs(key, shape)
    middle = shape[dim] // 2
    for start, length in [(0, middle), (middle, shape[dim] - middle)]:
        offsets = [start if d == dim else 0 for d in range(len(shape))]
        part = [length if d == dim else n for d, n in enumerate(shape)]
        signs = block_signs(key, shape, offsets=offsets, shape=part)
        assert torch.equal(signs, whole.narrow(dim, start, length))


def test_scalar_and_empty() -> None:
    """A 0-dim parameter has one sign, an empty one has none."""
    assert block_signs(sign_key(0, 0, 0), ()).item() == plain_sign(0, 0, 0, 0)
    assert block_signs(sign_key(0, 0, 0), (0, 3)).shape == (0, 3)
    assert block_signs(sign_key(0, 0, 0), (4, 3), offsets=(2, 0), shape=(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int32])
def test_dtype(dtype: torch.dtype) -> None:
    """The dtype asked for, the same signs in each, and nothing but +1 and -1."""
    key = sign_key(0, 1, 2)
    inside = block_signs(key, (40, 50), offsets=(0, 3), shape=(40, 21), dtype=dtype)
    for signs in (block_signs(key, (40, 50), dtype=dtype), inside):
        assert signs.dtype == dtype
        assert sorted(signs.double().unique().tolist()) == [-1.0, 1.0]
    assert torch.equal(inside.double(), block_signs(key, (40, 50))[:, 3:24].double())
    assert signs_at(key, torch.arange(3), dtype).dtype == dtype


@pytest.mark.parametrize(
    ("offsets", "shape"),
    [
        ((0, 4), (4, 3)),  # sticks out on the right
        ((4, 0), (1, 6)),  # starts below the end
        ((-1, 0), (2, 6)),
        ((0, 0), (-1, 6)),
        ((0,), (4,)),  # too few dimensions
        ((0, 0), (4, 6, 1)),
        ((0, 0, 0), (4, 6)),
    ],
)
def test_bad_blocks_are_refused(offsets: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """A block that does not lie within the tensor is refused, naming all three."""
    with pytest.raises(ValueError, match=r"must lie within \(4, 6\)"):
        block_signs(sign_key(0, 0, 0), (4, 6), offsets=offsets, shape=shape)


def test_other_index_types_are_refused() -> None:
    """Indices that are not int64 would overflow; they are refused by name."""
    with pytest.raises(ValueError, match=r"torch\.int32"):
        signs_at(sign_key(0, 0, 0), torch.arange(3, dtype=torch.int32))


def test_random_state_of_torch_is_left_alone() -> None:
    """Neither read nor changed: same state after, same signs whatever the state."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    signs = block_signs(sign_key(0, 0, 0), (100, 100))
    patch = block_signs(sign_key(0, 0, 0), (100, 100), offsets=(1, 1), shape=(9, 9))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(block_signs(sign_key(0, 0, 0), (100, 100)), signs)
    assert torch.equal(signs[1:10, 1:10], patch)


# ---- as good as random -----------------------------------------------------------------------

COUNT = 2**16
KEYS = {
    "steps": [(0, step, 0) for step in range(8)],
    "late steps": [(0, 2**32 + step, 0) for step in range(-2, 3)],
    "parameters": [(0, 0, parameter) for parameter in range(8)],
    "seeds": [(seed, 0, 0) for seed in range(8)],
    "high seeds": [(seed << 32, 0, 0) for seed in range(5)],
    "swapped": list(itertools.permutations([0, 1, 2])),
}


def drawn(names: list[tuple[int, int, int]]) -> Tensor:
    """`COUNT` signs for every (seed, step, parameter), in rows."""
    rows = [block_signs(sign_key(*name), (COUNT,), dtype=torch.float64) for name in names]
    return torch.stack(rows)


def pairs_in(rows: Tensor) -> Iterator[float]:
    """Mean products of all pairs of different rows, in units of their standard error."""
    correlation = rows @ rows.T / math.sqrt(rows.shape[1])
    upper = torch.triu_indices(len(rows), len(rows), offset=1)
    yield from correlation[upper[0], upper[1]].tolist()


@pytest.mark.parametrize("family", KEYS)
def test_balanced_and_independent(family: str) -> None:
    """Means and pairwise correlations of neighbouring keys vanish within 4 standard errors."""
    rows = drawn(KEYS[family])
    means = rows.sum(1) / math.sqrt(COUNT)
    assert means.abs().max() < STANDARD_ERRORS
    assert max(map(abs, pairs_in(rows))) < STANDARD_ERRORS


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 16, 31, 32, 33, 64, 96, 128, 1024, 4096])
def test_no_correlation_at_a_lag(lag: int) -> None:
    """Neighbours, the same bit of neighbouring words, and rows of a matrix are independent."""
    (row,) = drawn([(0, 0, 0)])
    products = row[lag:] * row[:-lag]
    assert abs(products.sum().item()) < STANDARD_ERRORS * math.sqrt(len(products))


def test_every_bit_of_a_word_is_balanced() -> None:
    """Each of the 32 bits is as often set as not, and none follows another."""
    (row,) = drawn([(0, 0, 0)])
    bits = row.view(-1, 32).T
    assert (bits.sum(1) / math.sqrt(bits.shape[1])).abs().max() < STANDARD_ERRORS
    assert max(map(abs, pairs_in(bits))) < STANDARD_ERRORS


def test_one_element_over_many_steps() -> None:
    """A single coordinate's signs are balanced and uncorrelated in time and with neighbours."""
    steps = range(4096)
    rows = torch.stack([block_signs(sign_key(0, s, 0), (4,), dtype=torch.float64) for s in steps])
    assert (rows.sum(0).abs() < STANDARD_ERRORS * math.sqrt(len(steps))).all()
    assert max(map(abs, pairs_in(rows.T.contiguous()))) < STANDARD_ERRORS
    products = (rows[1:] * rows[:-1]).sum(0)
    assert (products.abs() < STANDARD_ERRORS * math.sqrt(len(steps) - 1)).all()


# ---- devices ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_has_the_same_bits() -> None:
    """Whole, patch and far indices come out on CUDA as on the CPU."""
    key = sign_key(2**40 + 1, 12345, 6)
    inside = {"offsets": (3, 70), "shape": (90, 31)}
    for options in ({}, inside):
        cuda = block_signs(key, (100, 333), device="cuda", **options)
        assert cuda.is_cuda
        assert torch.equal(cuda.cpu(), block_signs(key, (100, 333), **options))
    far = torch.arange(2**40 - 500, 2**40 + 500)
    assert torch.equal(signs_at(key, far.cuda()).cpu(), signs_at(key, far))


# ---- many tensors at once --------------------------------------------------------------------


@given(
    counts=st.lists(st.integers(0, 100), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**64 - 1),
)
@settings(max_examples=30, deadline=None)
def test_joined_signs_are_those_of_each_tensor(counts: list[int], seed: int, step: int) -> None:
    """One after the other, whatever their sizes, empty ones included."""
    keys = [sign_key(seed, step, parameter) for parameter in range(len(counts))]
    row = joined_signs(joined_words(keys, counts, "cpu"), counts, torch.float64)
    expected = [
        plain_sign(seed, step, parameter, index)
        for parameter, count in enumerate(counts)
        for index in range(count)
    ]
    assert (row.dtype, row.tolist()) == (torch.float64, expected)
