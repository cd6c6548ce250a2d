"""The Triton source: moving to probe points, topography + step, and a clip norm.

A launch covers any number of tensors. Program ``i`` works on chunk ``chunk_index[i]`` of the tensor
in column ``chunk_tensor[i]`` of the `table`. Nothing is read back by the host. The arithmetic is
that of `aliceopt.topography` and `aliceopt.step`, the signs those of `aliceopt.signs`. P, G and
SIDE are the dtypes of parameter, gradient and sides' gradients, S that of the state; LOW says that
P is not S, ALIGNED that all addresses are multiples of 16, EVEN that all sizes are multiples of 4.
RUNS is how many runs of memory a tensor consists of at most, 0 where all lie in row-major order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import triton
import triton.language as tl

from ..options import HESSIANS, LIMITS
from ..theory.curvature import GLASS_CURVATURE_FACTOR
from .table import DIMS, Goal, Row


def _constants(name: str, values: Mapping[str, float]) -> ModuleType:
    """A module: every other global that a kernel refers to, Triton compares at each launch."""
    module = ModuleType(name)
    module.__dict__.update(values)
    return module


rows = _constants(
    "rows",
    {row.name: row.value for row in Row}
    | {"LAST_SIZE": Row.SIZES + DIMS - 1, "LAST_STRIDE": Row.STRIDES + DIMS - 1},
)
goals = _constants("goals", {goal.name: goal.value for goal in Goal})
codes = _constants(
    "codes",
    {name.upper(): i for names in (LIMITS, HESSIANS) for i, name in enumerate(names)}
    | {"GLASS_FACTOR": GLASS_CURVATURE_FACTOR},
)


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
def _signs(column, start, within, RUNS: tl.constexpr, dtype: tl.constexpr):
    """+1 or -1 for the elements of this chunk of the local tensor."""
    index = _global_index(column, start, within, RUNS)
    seed = tl.load(column + rows.SEED)
    step = tl.load(column + rows.STEP)
    bits = _sign_bits(seed, step, tl.load(column + rows.INDEX), index)
    return (2 * bits.to(tl.int32) - 1).to(dtype)


@triton.jit
def _global_index(column, start, within, RUNS: tl.constexpr):
    """The row-major index in the whole tensor of what lies at ``start + within`` in local memory.

    A place in memory is written in digits, one a run, the fastest run first. The chunk's start,
    the same for all, is divided in 64 bits; what ``within`` adds to a digit and carries to the
    next fits in 32, where a quotient costs a fifth.
    """
    index = start + within.to(tl.int64)
    if RUNS > 0:
        index = tl.zeros_like(index)
        carry = within.to(tl.uint32)
        for run in tl.static_range(RUNS):
            size = tl.load(column + rows.LAST_SIZE - run)
            place = carry + (start % size).to(tl.uint32)
            carry = place // size.to(tl.uint32)
            digit = place - carry * size.to(tl.uint32)
            index += digit.to(tl.int64) * tl.load(column + rows.LAST_STRIDE - run)
            start = start // size
    return index + tl.load(column + rows.FIRST)


@triton.jit
def _chunk(table, chunk_tensor, chunk_index, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    """This program's column, first element, offsets within the chunk, and how many of them exist.

    EVEN lets the mask allow loads of four elements at once.
    """
    pid = tl.program_id(0)
    column = table + tl.load(chunk_tensor + pid).to(tl.int64) * rows.ROWS
    start = tl.load(chunk_index + pid).to(tl.int64) * BLOCK
    left = tl.load(column + rows.NUMEL) - start
    if EVEN:
        left = tl.multiple_of(left, 4)
    return column, start, tl.arange(0, BLOCK), left


@triton.jit
def _at(column, row, start, within, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    """Where the elements of this chunk of a tensor are."""
    pointer = tl.load(column + row).to(tl.pointer_type(dtype))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer + start + within


@triton.jit
def _number(column, row, dtype: tl.constexpr):
    """One of this step's numbers."""
    return tl.load(column + row).to(tl.float64, bitcast=True).to(dtype)


@triton.jit
def _realised(nu, radius, P: tl.constexpr, S: tl.constexpr):
    """The rounded center and radius of low precision, as `realised_radius` of displacement.py."""
    center = nu.to(P).to(S)
    size = tl.abs(center)
    return center, (size + radius).to(P).to(S) - size


@triton.jit
def _finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
def _exchange(param, mu, flag, away, mask, left, TO: tl.constexpr):
    """Parameter and probe center change places, unless they have."""
    if away != TO:
        here = tl.load(param, mask=mask)
        there = tl.load(mu, mask=mask)
        tl.store(mu, here, mask=mask)
        tl.store(param, there, mask=mask)
        tl.store(flag, TO, mask=left > 0)


@triton.jit
def move_kernel(
    table, chunk_tensor, chunk_index, GOAL: tl.constexpr, DEPART: tl.constexpr, SWAP: tl.constexpr,
    P: tl.constexpr, S: tl.constexpr, LOW: tl.constexpr, RUNS: tl.constexpr,
    ALIGNED: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):
    """Send every parameter to a probe point or back; departing, take its position aside.

    What was taken aside is marked, chunk by chunk. So departing twice takes nothing twice, and
    going back from where one never was does nothing.
    """
    column, start, within, left = _chunk(table, chunk_tensor, chunk_index, EVEN, BLOCK)
    mask = within < left
    param = _at(column, rows.PARAM, start, within, P, ALIGNED)
    mu_at = _at(column, rows.MU, start, within, S, ALIGNED)
    flag = tl.load(column + rows.AWAY).to(tl.pointer_type(tl.int32)) + start // BLOCK
    away = tl.load(flag)
    tl.debug_barrier()  # all threads must have looked before one of them writes
    if SWAP:
        _exchange(param, mu_at, flag, away, mask, left, 0 if GOAL == goals.REST else 1)
    elif GOAL == goals.REST:
        if away != 0:
            tl.store(param, tl.load(mu_at, mask=mask).to(P), mask=mask)
            tl.store(flag, 0, mask=left > 0)
    else:
        nu = tl.load(_at(column, rows.NU, start, within, S, ALIGNED), mask=mask)
        if DEPART:
            if away == 0:
                here = tl.load(param, mask=mask)
                mu = here.to(S)
                if LOW:
                    master = tl.load(mu_at, mask=mask)
                    mu = tl.where(master.to(P) == here, master, mu)
                tl.store(mu_at, mu, mask=mask)
                tl.store(flag, 1, mask=left > 0)
        goal = nu
        if GOAL != goals.CENTER:
            radius = _number(column, rows.RADIUS, S)
            if radius > 0:
                signs = _signs(column, start, within, RUNS, S)
                if LOW:
                    goal, length = _realised(nu, radius, P, S)
                    away_by = length * signs
                else:
                    away_by = radius * signs
                if GOAL == goals.BOTH:
                    minus_at = _at(column, rows.AT_MINUS, start, within, S, ALIGNED)
                    tl.store(minus_at, nu - away_by, mask=mask)
                goal = goal - away_by if GOAL == goals.MINUS else goal + away_by
            elif GOAL == goals.BOTH:
                tl.store(_at(column, rows.AT_MINUS, start, within, S, ALIGNED), nu, mask=mask)
        if GOAL == goals.BOTH:
            param = _at(column, rows.AT_PLUS, start, within, S, ALIGNED)
        tl.store(param, goal.to(P), mask=mask)


@triton.jit
def update_kernel(
    table, chunk_tensor, chunk_index, clip, LIMIT: tl.constexpr, HESSIAN: tl.constexpr,
    USE_GLASS: tl.constexpr, MEASURING: tl.constexpr, MAXIMIZE: tl.constexpr, CLIP: tl.constexpr,
    LARGEST: tl.constexpr, P: tl.constexpr, G: tl.constexpr, SIDE: tl.constexpr, S: tl.constexpr,
    LOW: tl.constexpr, RUNS: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr,
    BLOCK: tl.constexpr, MOVE_BLOCK: tl.constexpr,
):
    """Averages, step, position and probe center of every element, in one pass."""
    column, start, within, left = _chunk(table, chunk_tensor, chunk_index, EVEN, BLOCK)
    mask = within < left
    eps = _number(column, rows.EPS, S)

    factor = tl.full((), 1.0, S)
    if CLIP:
        factor = tl.load(clip).to(S)
    if MAXIMIZE:
        factor = -factor
    grad_at = _at(column, rows.GRAD, start, within, G, ALIGNED)
    g0 = tl.load(grad_at, mask=mask, other=0.0).to(S) * factor
    ok = _finite(g0)

    avg_at = _at(column, rows.GRAD_AVG, start, within, S, ALIGNED)
    sq_at = _at(column, rows.GRAD_SQ, start, within, S, ALIGNED)
    mu_at = _at(column, rows.MU, start, within, S, ALIGNED)
    nu_at = _at(column, rows.NU, start, within, S, ALIGNED)
    old_avg = tl.load(avg_at, mask=mask)
    old_sq = tl.load(sq_at, mask=mask)
    mu = tl.load(mu_at, mask=mask)
    if USE_GLASS:
        glass_at = _at(column, rows.GLASS, start, within, S, ALIGNED)
        rho = tl.load(glass_at, mask=mask)
    if HESSIAN != codes.NONE:
        hess_at = _at(column, rows.HESS, start, within, S, ALIGNED)
        h = tl.load(hess_at, mask=mask)

    if MEASURING:
        bt = _number(column, rows.BETA_TOPO, S)
        new = _number(column, rows.NEW_TOPO, S)
        radius = _number(column, rows.RADIUS, S)
        plus_at = _at(column, rows.PLUS, start, within, SIDE, ALIGNED)
        minus_at = _at(column, rows.MINUS, start, within, SIDE, ALIGNED)
        plus = tl.load(plus_at, mask=mask, other=0.0).to(S) * factor
        minus = tl.load(minus_at, mask=mask, other=0.0).to(S) * factor
        ok = ok & _finite(plus) & _finite(minus)
        if LOW:
            _, length = _realised(tl.load(nu_at, mask=mask), radius, P, S)
            inverse = 1 / tl.where(length > 0, length, radius)
        else:
            inverse = 1 / tl.where(radius > 0, radius, 1.0)
        if USE_GLASS:
            difference = plus * 0.5 + minus * 0.5 - g0
            sample = tl.minimum(difference * difference * (new * (2 * inverse)), new * LARGEST)
            # A captured measuring step may find a group whose lr, and so its radius, is zero.
            rho = tl.where(ok, tl.where(radius > 0, bt * rho + sample, rho), rho)
            tl.store(glass_at, rho, mask=mask)
        if HESSIAN != codes.NONE:
            x = (plus - minus) * (0.5 * inverse)
            if HESSIAN == codes.ABS:
                x = tl.abs(x)
            if HESSIAN == codes.RMS:
                x = x * x
            if HESSIAN == codes.SIGNED:
                x = x * _signs(column, start, within, RUNS, S)
            x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
            h = tl.where(ok, tl.where(radius > 0, bt * h + new * x, h), h)
            tl.store(hess_at, h, mask=mask)

    avg = _number(column, rows.BETA1, S) * old_avg + _number(column, rows.NEW1, S) * g0
    sq = _number(column, rows.BETA2, S) * old_sq + _number(column, rows.NEW2, S) * g0 * g0

    # The step: quasi-Newton between the bounds.
    g = avg * (1 / _number(column, rows.GRAD_WEIGHT, S))
    size = tl.minimum(tl.abs(g), LARGEST)  # which a gradient that large may exceed by rounding
    if LIMIT == codes.FIXED:
        unit = tl.full((BLOCK,), 1.0, S)
    elif LIMIT == codes.ADAM:
        unit = size / (tl.sqrt(sq * (1 / _number(column, rows.SQ_WEIGHT, S))) + eps)
    else:
        unit = tl.abs(avg)
    upper = _number(column, rows.LR, S) * unit
    length_of_step = upper
    if USE_GLASS or HESSIAN != codes.NONE:
        weight = _number(column, rows.TOPO_WEIGHT, S)
        inverse_weight = 1 / tl.where(weight > 0, weight, 1.0)
        if USE_GLASS:
            corrected = rho * inverse_weight
            hg = tl.where(corrected == 0, 0.0, corrected / (size + eps) * codes.GLASS_FACTOR)
        curvature = tl.zeros((BLOCK,), S)
        if HESSIAN != codes.NONE:
            curvature = h * inverse_weight
            if HESSIAN == codes.RMS:
                curvature = tl.sqrt(curvature)
            if HESSIAN == codes.SIGNED:
                curvature = tl.abs(curvature)
        if USE_GLASS:
            root = tl.sqrt(hg / 2 + curvature) + tl.sqrt(hg / 2)
            curvature = root * root
        newton = size / (curvature + eps)
        least = _number(column, rows.LR_MIN, S)
        lower = tl.where(least > 0, least * unit, 0.0)
        # With nothing measured yet the step is the upper bound.
        bounded = tl.minimum(tl.maximum(newton, lower), upper)
        length_of_step = tl.where(weight > 0, bounded, upper)
    step = tl.where(g > 0, -length_of_step, length_of_step)
    step = tl.where(g == 0, 0.0, step)

    decay = _number(column, rows.DECAY, S)
    u = step - tl.where(decay > 0, decay * mu, 0.0)
    new_mu = tl.where(ok, mu + _number(column, rows.STEP_FRACTION, S) * u, mu)
    new_nu = mu + _number(column, rows.LOOKAHEAD, S) * u
    # Whole vectors are stored; the old nu is read only where some coordinate must keep it.
    bad = tl.sum((mask & (ok == 0)).to(tl.int32), axis=0)
    if bad > 0:
        new_nu = tl.where(ok, new_nu, tl.load(nu_at, mask=mask))
        counter = tl.load(column + rows.SKIPPED).to(tl.pointer_type(tl.int64))
        tl.atomic_add(counter, bad.to(tl.int64))
    tl.store(_at(column, rows.PARAM, start, within, P, ALIGNED), new_mu.to(P), mask=mask)
    if LOW:
        tl.store(mu_at, new_mu, mask=mask)
    tl.store(_at(column, rows.CENTER, start, within, S, ALIGNED), new_nu, mask=mask)
    tl.store(avg_at, tl.where(ok, avg, old_avg), mask=mask)
    tl.store(sq_at, tl.where(ok, sq, old_sq), mask=mask)
    flag = tl.load(column + rows.AWAY).to(tl.pointer_type(tl.int32)) + start // MOVE_BLOCK
    tl.store(flag, 0, mask=left > 0)


@triton.jit
def square_sum_kernel(
    table, chunk_tensor, chunk_index, partial, G: tl.constexpr, S: tl.constexpr,
    ALIGNED: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):
    """Sum of squares of the finite gradient entries of each chunk, for the clip norm."""
    column, start, within, left = _chunk(table, chunk_tensor, chunk_index, EVEN, BLOCK)
    grad_at = _at(column, rows.GRAD, start, within, G, ALIGNED)
    grad = tl.load(grad_at, mask=within < left, other=0.0).to(S)
    grad = tl.where(_finite(grad), grad, 0.0)
    wide = grad.to(tl.float64)  # squares of what float32 holds may overflow it
    tl.store(partial + tl.program_id(0), tl.sum(wide * wide, axis=0))
