"""Multi-tensor Triton kernels: moving to probe points, topography + step, and a clip norm.

A launch covers any number of tensors. Program ``i`` works on chunk ``chunk_index[i]`` of tensor
``chunk_tensor[i]``, whose addresses and sizes stand in column ``t`` of ``table`` (int64, one row a
quantity, `Row`). What changes from step to step stands in ``numbers`` (int64): seed, step count,
then one row of float64 bit patterns a configuration (`Number`). Nothing is read back by the host.

The arithmetic is that of `aliceopt.topography` and `aliceopt.step`, the signs that of
`aliceopt.signs`.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Rows of the table.
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
NUMEL = tl.constexpr(12)
INDEX = tl.constexpr(13)
FIRST = tl.constexpr(14)
CONFIG = tl.constexpr(15)
SIZES = tl.constexpr(16)
STRIDES = tl.constexpr(21)
ROWS = 26
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
CONFIG_WIDTH = tl.constexpr(13)
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
def _signs(table, numbers, n, t, start, within, PERMUTED: tl.constexpr, dtype: tl.constexpr):
    """+1 or -1 for the elements of this chunk of the local tensor."""
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
    bits = _sign_bits(tl.load(numbers), tl.load(numbers + 1), parameter, index)
    return (2 * bits.to(tl.int32) - 1).to(dtype)


@triton.jit
def _chunk(table, chunk_tensor, chunk_index, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
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
def _address(table, n, t, row, start, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    """Where this chunk of a tensor begins."""
    pointer = tl.load(table + row * n + t).to(tl.pointer_type(dtype))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer + start


@triton.jit
def _number(numbers, config, column, dtype: tl.constexpr):
    bits = tl.load(numbers + HEADER + config * CONFIG_WIDTH + column)
    return bits.to(tl.float64, bitcast=True).to(dtype)


@triton.jit
def _realised(nu, radius, P: tl.constexpr, S: tl.constexpr):
    """The rounded center and radius of low precision, as `aliceopt.site.realised_radius`."""
    center = nu.to(P).to(S)
    size = tl.abs(center)
    return center, (size + radius).to(P).to(S) - size


@triton.jit
def move_kernel(
    table,
    chunk_tensor,
    chunk_index,
    numbers,
    n,
    GOAL: tl.constexpr,
    DEPART: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
    LOW: tl.constexpr,
    PERMUTED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Send every parameter to a probe point or back; departing, take its position aside."""
    t, start, within, mask = _chunk(table, chunk_tensor, chunk_index, n, EVEN, BLOCK)
    param = _address(table, n, t, PARAM, start, P, ALIGNED) + within
    position = _address(table, n, t, POSITION, start, S, ALIGNED) + within
    if DEPART:
        here = tl.load(param, mask=mask)
        mu = here.to(S)
        if LOW:
            master = tl.load(_address(table, n, t, MASTER, start, S, ALIGNED) + within, mask=mask)
            mu = tl.where(master.to(P) == here, master, mu)
        tl.store(position, mu, mask=mask)
    if GOAL == TO_REST:
        goal = tl.load(position, mask=mask)
    else:
        goal = tl.load(_address(table, n, t, CENTER, start, S, ALIGNED) + within, mask=mask)
        if GOAL == TO_PLUS or GOAL == TO_MINUS:  # noqa: SIM109
            radius = _number(numbers, tl.load(table + CONFIG * n + t), RADIUS, S)
            if radius > 0:
                signs = _signs(table, numbers, n, t, start, within, PERMUTED, S)
                if LOW:
                    goal, length = _realised(goal, radius, P, S)
                    away = length * signs
                else:
                    away = radius * signs
                goal = goal + away if GOAL == TO_PLUS else goal - away
    tl.store(param, goal.to(P), mask=mask)


@triton.jit
def _finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def _gradient(
    table, n, t, row, start, within, mask, factor, G: tl.constexpr, S: tl.constexpr, A: tl.constexpr
):
    grad = tl.load(_address(table, n, t, row, start, G, A) + within, mask=mask, other=0.0).to(S)
    return grad * factor


@triton.jit
def _total_curvature(hg, h, eps):
    """Where the product overflows the curvature is infinite and the step at its lower bound."""
    return hg + h + tl.sqrt(hg * (hg + 2 * h)) + eps


@triton.jit
def update_kernel(
    table,
    chunk_tensor,
    chunk_index,
    numbers,
    clip,
    n,
    LIMIT: tl.constexpr,
    HESSIAN: tl.constexpr,
    USE_GLASS: tl.constexpr,
    MEASURING: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    CLIP: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    SIDE: tl.constexpr,
    S: tl.constexpr,
    LOW: tl.constexpr,
    PERMUTED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Averages, step, position and probe center of every element, in one pass."""
    t, start, within, mask = _chunk(table, chunk_tensor, chunk_index, n, EVEN, BLOCK)
    config = tl.load(table + CONFIG * n + t)
    eps = _number(numbers, config, EPS, S)

    factor = tl.full((), 1.0, S)
    if CLIP:
        factor = tl.load(clip).to(S)
    if MAXIMIZE:
        factor = -factor
    g0 = _gradient(table, n, t, GRAD, start, within, mask, factor, G, S, ALIGNED)
    ok = _finite(g0)

    center = _address(table, n, t, CENTER, start, S, ALIGNED) + within
    avg_at = _address(table, n, t, GRAD_AVG, start, S, ALIGNED) + within
    sq_at = _address(table, n, t, GRAD_SQ, start, S, ALIGNED) + within
    glass_at = _address(table, n, t, GLASS, start, S, ALIGNED) + within
    hess_at = _address(table, n, t, HESS, start, S, ALIGNED) + within
    old_avg = tl.load(avg_at, mask=mask)
    old_sq = tl.load(sq_at, mask=mask)
    mu = tl.load(_address(table, n, t, POSITION, start, S, ALIGNED) + within, mask=mask)

    if USE_GLASS:
        rho = tl.load(glass_at, mask=mask)
    if HESSIAN != NO_HESS:
        h = tl.load(hess_at, mask=mask)

    if MEASURING:
        bt = _number(numbers, config, BETA_TOPO, S)
        radius = _number(numbers, config, RADIUS, S)
        plus = _gradient(table, n, t, PLUS, start, within, mask, factor, SIDE, S, ALIGNED)
        minus = _gradient(table, n, t, MINUS, start, within, mask, factor, SIDE, S, ALIGNED)
        ok = ok & _finite(plus) & _finite(minus)
        if LOW:
            nu = tl.load(center, mask=mask)
            _, length = _realised(nu, radius, P, S)
            inverse = 1 / tl.where(length > 0, length, radius)
        else:
            inverse = 1 / tl.where(radius > 0, radius, 1.0)
        if USE_GLASS:
            second = (plus + minus) / 2 - g0
            new_rho = bt * rho + (1 - bt) * (second * second * (2 * inverse))
            # A captured full step may find a group whose lr, and so its radius, is zero.
            rho = tl.where(ok, tl.where(radius > 0, new_rho, rho), rho)
            tl.store(glass_at, rho, mask=mask)
        if HESSIAN != NO_HESS:
            x = (plus - minus) * (0.5 * inverse)
            if HESSIAN == ABS:
                x = tl.abs(x)
            if HESSIAN == RMS:
                x = x * x
            if HESSIAN == SIGNED:
                x = x * _signs(table, numbers, n, t, start, within, PERMUTED, S)
            h = tl.where(ok, tl.where(radius > 0, bt * h + (1 - bt) * x, h), h)
            tl.store(hess_at, h, mask=mask)

    b1 = _number(numbers, config, BETA1, S)
    b2 = _number(numbers, config, BETA2, S)
    avg = b1 * old_avg + (1 - b1) * g0
    sq = b2 * old_sq + (1 - b2) * (g0 * g0)

    # The step: quasi-Newton between the bounds.
    g = avg * (1 / _number(numbers, config, GRAD_WEIGHT, S))
    size = tl.abs(g)
    lr = _number(numbers, config, LR, S)
    if LIMIT == FIXED:
        unit = tl.full((BLOCK,), 1.0, S)
    elif LIMIT == ADAM:
        unit = size / (tl.sqrt(sq * (1 / _number(numbers, config, SQ_WEIGHT, S))) + eps)
    else:
        unit = tl.abs(avg)
    upper = lr * unit
    length_of_step = upper
    if USE_GLASS or HESSIAN != NO_HESS:
        weight = _number(numbers, config, TOPO_WEIGHT, S)
        inverse_weight = 1 / tl.where(weight > 0, weight, 1.0)
        hg = tl.zeros((BLOCK,), S)
        if USE_GLASS:
            corrected = rho * inverse_weight
            hg = tl.where(corrected == 0, 0.0, GLASS_FACTOR * corrected / (size + eps))
        curvature = tl.zeros((BLOCK,), S)
        if HESSIAN != NO_HESS:
            curvature = h * inverse_weight
            if HESSIAN == RMS:
                curvature = tl.sqrt(curvature)
            if HESSIAN == SIGNED:
                curvature = tl.abs(curvature)
        newton = size / _total_curvature(hg, curvature, eps)
        lower = _number(numbers, config, LR_MIN, S) * unit
        # With nothing measured yet the step is the upper bound.
        bounded = tl.minimum(tl.maximum(newton, lower), upper)
        length_of_step = tl.where(weight > 0, bounded, upper)
    step = tl.where(g > 0, -length_of_step, length_of_step)
    step = tl.where(g == 0, 0.0, step)

    u = step - _number(numbers, config, DECAY, S) * mu
    new_mu = mu + _number(numbers, config, STEP_FRACTION, S) * u
    new_nu = mu + _number(numbers, config, LOOKAHEAD, S) * u
    new_mu = tl.where(ok, new_mu, mu)
    tl.store(_address(table, n, t, PARAM, start, P, ALIGNED) + within, new_mu.to(P), mask=mask)
    if LOW:
        tl.store(_address(table, n, t, MASTER, start, S, ALIGNED) + within, new_mu, mask=mask)
    tl.store(avg_at, tl.where(ok, avg, old_avg), mask=mask)
    tl.store(sq_at, tl.where(ok, sq, old_sq), mask=mask)
    # Whole vectors are stored; the old nu is read only where some coordinate must keep it.
    bad = tl.sum((mask & (ok == 0)).to(tl.int32), axis=0)
    if bad > 0:
        new_nu = tl.where(ok, new_nu, tl.load(center, mask=mask))
        counter = tl.load(table + SKIPPED * n + t).to(tl.pointer_type(tl.int64))
        tl.atomic_add(counter, bad.to(tl.int64))
    tl.store(center, new_nu, mask=mask)


@triton.jit
def square_sum_kernel(
    table,
    chunk_tensor,
    chunk_index,
    partial,
    n,
    G: tl.constexpr,
    S: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum of squares of the finite gradient entries of each chunk, for the clip norm."""
    t, start, within, mask = _chunk(table, chunk_tensor, chunk_index, n, EVEN, BLOCK)
    grad = tl.load(
        _address(table, n, t, GRAD, start, G, ALIGNED) + within, mask=mask, other=0.0
    ).to(S)
    grad = tl.where(_finite(grad), grad, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(grad * grad, axis=0))
