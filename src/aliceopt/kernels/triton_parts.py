"""What the Triton kernels share: the layout of tables and numbers, codes of options, and parts.

A launch covers any number of tensors. Program ``i`` works on chunk ``chunk_index[i]`` of tensor
``chunk_tensor[i]``, whose addresses and sizes stand in column ``t`` of ``table`` (int64, one row a
quantity). What changes from step to step stands in ``numbers`` (int64): seed, step count, then one
row of float64 bit patterns a configuration. Nothing is read back by the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Rows of the table: addresses, up to NUMEL, and numbers.
PARAM = tl.constexpr(0)
POSITION = tl.constexpr(1)
CENTER = tl.constexpr(2)
MASTER = tl.constexpr(3)
GRAD = tl.constexpr(4)
PLUS = tl.constexpr(5)
MINUS = tl.constexpr(6)
GRAD_AVG = tl.constexpr(7)
GRAD_SQ = tl.constexpr(8)
GLASS = tl.constexpr(9)
HESS = tl.constexpr(10)
SKIPPED = tl.constexpr(11)
AT_PLUS = tl.constexpr(12)
AT_MINUS = tl.constexpr(13)
NUMEL = tl.constexpr(14)
INDEX = tl.constexpr(15)
FIRST = tl.constexpr(16)
CONFIG = tl.constexpr(17)
SIZES = tl.constexpr(18)
STRIDES = tl.constexpr(23)
ROWS = 28
DIMS = 5

# Columns of a configuration in the numbers.
RADIUS = tl.constexpr(0)
LR = tl.constexpr(1)
LR_MIN = tl.constexpr(2)
EPS = tl.constexpr(3)
STEP_FRACTION = tl.constexpr(4)
LOOKAHEAD = tl.constexpr(5)
DECAY = tl.constexpr(6)
BETA1 = tl.constexpr(7)
BETA2 = tl.constexpr(8)
BETA_TOPO = tl.constexpr(9)
GRAD_WEIGHT = tl.constexpr(10)
SQ_WEIGHT = tl.constexpr(11)
TOPO_WEIGHT = tl.constexpr(12)
RADIUS_AHEAD = tl.constexpr(13)
CONFIG_WIDTH = tl.constexpr(14)
HEADER = tl.constexpr(2)

# Codes of the options.
LIMITS = {"adam": 0, "fixed": 1, "sgd": 2}
HESSIANS = {"none": 0, "abs": 1, "rms": 2, "signed": 3}
ADAM = tl.constexpr(0)
FIXED = tl.constexpr(1)
NO_HESS = tl.constexpr(0)
ABS = tl.constexpr(1)
RMS = tl.constexpr(2)
SIGNED = tl.constexpr(3)

# Codes of where to go.
GOALS = {"center": 0, "plus": 1, "minus": 2, "rest": 3}
TO_PLUS = tl.constexpr(1)
TO_MINUS = tl.constexpr(2)
TO_REST = tl.constexpr(3)

GLASS_FACTOR = tl.constexpr(3 / (4 * 3.141592653589793))


@triton.jit
def _mix(x):
    """The 32-bit permutation of `aliceopt.signs`."""
    x = x ^ (x >> 16)
    x = x * tl.full((), 0x7FEB352D, tl.uint32)
    x = x ^ (x >> 15)
    x = x * tl.full((), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _sign_bits(seed, step, parameter, index):
    """0 or 1 for every global element index (int64): `sign_key` and `signs_at` in one."""
    golden = tl.full((), 0x9E3779B9, tl.uint32)
    low = golden
    high = tl.full((), 0, tl.uint32)
    low = _mix(low + seed.to(tl.uint32))
    high = _mix((high ^ low) + golden)
    low = _mix(low + (seed >> 32).to(tl.uint32) + 1)
    high = _mix((high ^ low) + golden)
    low = _mix(low + step.to(tl.uint32) + 2)
    high = _mix((high ^ low) + golden)
    low = _mix(low + (step >> 32).to(tl.uint32) + 3)
    high = _mix((high ^ low) + golden)
    low = _mix(low + parameter.to(tl.uint32) + 4)
    high = _mix((high ^ low) + golden)
    word = index >> 5
    x = _mix(word.to(tl.uint32) ^ low)
    x = _mix(x + (word >> 32).to(tl.uint32) + high)
    return (x >> (index & 31).to(tl.uint32)) & 1


@triton.jit
def chunk_signs(
    table, numbers, n, t, start, within, later, PERMUTED: tl.constexpr, dtype: tl.constexpr
):
    """+1 or -1 for the elements of this chunk of the local tensor, this many steps later."""
    index = start + within.to(tl.int64)
    if PERMUTED:
        rest = index
        index = tl.zeros_like(rest)
        for d in tl.static_range(5):
            size = tl.load(table + (SIZES + 4 - d) * n + t)
            stride = tl.load(table + (STRIDES + 4 - d) * n + t)
            index += (rest % size) * stride
            rest = rest // size
    index += tl.load(table + FIRST * n + t)
    parameter = tl.load(table + INDEX * n + t)
    bits = _sign_bits(tl.load(numbers), tl.load(numbers + 1) + later, parameter, index)
    return (2 * bits.to(tl.int32) - 1).to(dtype)


@triton.jit
def chunk(table, chunk_tensor, chunk_index, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    """This program's tensor, first element, offsets within the chunk, and which of them exist.

    EVEN: all sizes are multiples of 4, so that the mask allows loads of four elements at once.
    """
    pid = tl.program_id(0)
    t = tl.load(chunk_tensor + pid)
    start = tl.load(chunk_index + pid).to(tl.int64) * BLOCK
    within = tl.arange(0, BLOCK)
    left = tl.load(table + NUMEL * n + t) - start
    if EVEN:
        left = tl.multiple_of(left, 4)
    return t, start, within, within < left


@triton.jit
def address(table, n, t, row, start, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    """Where this chunk of a tensor begins."""
    pointer = tl.load(table + row * n + t).to(tl.pointer_type(dtype))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer + start


@triton.jit
def number(numbers, config, column, dtype: tl.constexpr):
    """One of a configuration's numbers."""
    bits = tl.load(numbers + HEADER + config * CONFIG_WIDTH + column)
    return bits.to(tl.float64, bitcast=True).to(dtype)


@triton.jit
def realised(nu, radius, P: tl.constexpr, S: tl.constexpr):
    """The rounded center and radius of low precision, as `aliceopt.site.realised_radius`."""
    center = nu.to(P).to(S)
    size = tl.abs(center)
    return center, (size + radius).to(P).to(S) - size


@triton.jit
def store_sides(
    table,
    numbers,
    n,
    t,
    start,
    within,
    mask,
    nu,
    radius,
    later,
    S: tl.constexpr,
    PERMUTED: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Write both probe points of the full step that comes this many steps later."""
    plus = nu
    minus = nu
    if radius > 0:
        away = radius * chunk_signs(table, numbers, n, t, start, within, later, PERMUTED, S)
        plus = nu + away
        minus = nu - away
    tl.store(address(table, n, t, AT_PLUS, start, S, ALIGNED) + within, plus, mask=mask)
    tl.store(address(table, n, t, AT_MINUS, start, S, ALIGNED) + within, minus, mask=mask)


@triton.jit
def finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
def gradient(
    table, n, t, row, start, within, mask, factor, G: tl.constexpr, S: tl.constexpr, A: tl.constexpr
):
    """A gradient of this chunk in state precision, times a factor."""
    grad = tl.load(address(table, n, t, row, start, G, A) + within, mask=mask, other=0.0).to(S)
    return grad * factor


@triton.jit
def total_curvature(hg, h, eps):
    """Where the product overflows the curvature is infinite and the step at its lower bound."""
    return hg + h + tl.sqrt(hg * (hg + 2 * h)) + eps
