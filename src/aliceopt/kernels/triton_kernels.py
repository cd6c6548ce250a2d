"""Multi-tensor Triton kernels: moving to probe points, topography + step, and a clip norm.

Tables, numbers and what the kernels share are described in `triton_parts`. The arithmetic is that
of `aliceopt.topography` and `aliceopt.step`, the signs that of `aliceopt.signs`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_parts import (
    ABS,
    ADAM,
    BETA1,
    BETA2,
    BETA_TOPO,
    CENTER,
    CONFIG,
    DECAY,
    EPS,
    FIXED,
    GLASS,
    GLASS_FACTOR,
    GRAD,
    GRAD_AVG,
    GRAD_SQ,
    GRAD_WEIGHT,
    HESS,
    LOOKAHEAD,
    LR,
    LR_MIN,
    MASTER,
    MINUS,
    NO_HESS,
    PARAM,
    PLUS,
    POSITION,
    RADIUS,
    RADIUS_AHEAD,
    RMS,
    SIGNED,
    SKIPPED,
    SQ_WEIGHT,
    STEP_FRACTION,
    TO_MINUS,
    TO_PLUS,
    TO_REST,
    TOPO_WEIGHT,
    address,
    chunk,
    chunk_signs,
    finite,
    gradient,
    number,
    realised,
    store_sides,
    total_curvature,
)


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
    t, start, within, mask = chunk(table, chunk_tensor, chunk_index, n, EVEN, BLOCK)
    param = address(table, n, t, PARAM, start, P, ALIGNED) + within
    position = address(table, n, t, POSITION, start, S, ALIGNED) + within
    if DEPART:
        here = tl.load(param, mask=mask)
        mu = here.to(S)
        if LOW:
            master = tl.load(address(table, n, t, MASTER, start, S, ALIGNED) + within, mask=mask)
            mu = tl.where(master.to(P) == here, master, mu)
        tl.store(position, mu, mask=mask)
    if GOAL == TO_REST:
        goal = tl.load(position, mask=mask)
    else:
        goal = tl.load(address(table, n, t, CENTER, start, S, ALIGNED) + within, mask=mask)
        if GOAL == TO_PLUS or GOAL == TO_MINUS:  # noqa: SIM109
            radius = number(numbers, tl.load(table + CONFIG * n + t), RADIUS, S)
            if radius > 0:
                signs = chunk_signs(table, numbers, n, t, start, within, 0, PERMUTED, S)
                if LOW:
                    goal, length = realised(goal, radius, P, S)
                    away = length * signs
                else:
                    away = radius * signs
                goal = goal + away if GOAL == TO_PLUS else goal - away
    tl.store(param, goal.to(P), mask=mask)


@triton.jit
def sides_kernel(
    table,
    chunk_tensor,
    chunk_index,
    numbers,
    n,
    S: tl.constexpr,
    PERMUTED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write both probe points of this step to memory of their own."""
    t, start, within, mask = chunk(table, chunk_tensor, chunk_index, n, EVEN, BLOCK)
    nu = tl.load(address(table, n, t, CENTER, start, S, ALIGNED) + within, mask=mask)
    radius = number(numbers, tl.load(table + CONFIG * n + t), RADIUS, S)
    store_sides(table, numbers, n, t, start, within, mask, nu, radius, 0, S, PERMUTED, ALIGNED)


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
    AHEAD: tl.constexpr,
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
    """Averages, step, position and probe center of every element, in one pass.

    AHEAD: the two sides have memory, and their next positions are written there if the number
    RADIUS_AHEAD is not negative. That number is loaded first: after the stores it would be waited
    for, in every step that writes no sides too.
    """
    t, start, within, mask = chunk(table, chunk_tensor, chunk_index, n, EVEN, BLOCK)
    config = tl.load(table + CONFIG * n + t)
    eps = number(numbers, config, EPS, S)
    if AHEAD:
        radius_ahead = number(numbers, config, RADIUS_AHEAD, S)

    factor = tl.full((), 1.0, S)
    if CLIP:
        factor = tl.load(clip).to(S)
    if MAXIMIZE:
        factor = -factor
    g0 = gradient(table, n, t, GRAD, start, within, mask, factor, G, S, ALIGNED)
    ok = finite(g0)

    center = address(table, n, t, CENTER, start, S, ALIGNED) + within
    avg_at = address(table, n, t, GRAD_AVG, start, S, ALIGNED) + within
    sq_at = address(table, n, t, GRAD_SQ, start, S, ALIGNED) + within
    glass_at = address(table, n, t, GLASS, start, S, ALIGNED) + within
    hess_at = address(table, n, t, HESS, start, S, ALIGNED) + within
    param = address(table, n, t, PARAM, start, P, ALIGNED) + within
    master = address(table, n, t, MASTER, start, S, ALIGNED) + within
    old_avg = tl.load(avg_at, mask=mask)
    old_sq = tl.load(sq_at, mask=mask)
    mu = tl.load(address(table, n, t, POSITION, start, S, ALIGNED) + within, mask=mask)

    if USE_GLASS:
        rho = tl.load(glass_at, mask=mask)
    if HESSIAN != NO_HESS:
        h = tl.load(hess_at, mask=mask)

    if MEASURING:
        bt = number(numbers, config, BETA_TOPO, S)
        radius = number(numbers, config, RADIUS, S)
        plus = gradient(table, n, t, PLUS, start, within, mask, factor, SIDE, S, ALIGNED)
        minus = gradient(table, n, t, MINUS, start, within, mask, factor, SIDE, S, ALIGNED)
        ok = ok & finite(plus) & finite(minus)
        if LOW:
            nu = tl.load(center, mask=mask)
            _, length = realised(nu, radius, P, S)
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
                x = x * chunk_signs(table, numbers, n, t, start, within, 0, PERMUTED, S)
            h = tl.where(ok, tl.where(radius > 0, bt * h + (1 - bt) * x, h), h)
            tl.store(hess_at, h, mask=mask)

    b1 = number(numbers, config, BETA1, S)
    b2 = number(numbers, config, BETA2, S)
    avg = b1 * old_avg + (1 - b1) * g0
    sq = b2 * old_sq + (1 - b2) * (g0 * g0)

    # The step: quasi-Newton between the bounds.
    g = avg * (1 / number(numbers, config, GRAD_WEIGHT, S))
    size = tl.abs(g)
    if LIMIT == FIXED:
        unit = tl.full((BLOCK,), 1.0, S)
    elif LIMIT == ADAM:
        unit = size / (tl.sqrt(sq * (1 / number(numbers, config, SQ_WEIGHT, S))) + eps)
    else:
        unit = tl.abs(avg)
    upper = number(numbers, config, LR, S) * unit
    length_of_step = upper
    if USE_GLASS or HESSIAN != NO_HESS:
        weight = number(numbers, config, TOPO_WEIGHT, S)
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
        newton = size / total_curvature(hg, curvature, eps)
        lower = number(numbers, config, LR_MIN, S) * unit
        # With nothing measured yet the step is the upper bound.
        bounded = tl.minimum(tl.maximum(newton, lower), upper)
        length_of_step = tl.where(weight > 0, bounded, upper)
    step = tl.where(g > 0, -length_of_step, length_of_step)
    step = tl.where(g == 0, 0.0, step)

    u = step - number(numbers, config, DECAY, S) * mu
    new_mu = tl.where(ok, mu + number(numbers, config, STEP_FRACTION, S) * u, mu)
    new_nu = mu + number(numbers, config, LOOKAHEAD, S) * u
    # Whole vectors are stored; the old nu is read only where some coordinate must keep it.
    bad = tl.sum((mask & (ok == 0)).to(tl.int32), axis=0)
    if bad > 0:
        new_nu = tl.where(ok, new_nu, tl.load(center, mask=mask))
        counter = tl.load(table + SKIPPED * n + t).to(tl.pointer_type(tl.int64))
        tl.atomic_add(counter, bad.to(tl.int64))
    tl.store(param, new_mu.to(P), mask=mask)
    if LOW:
        tl.store(master, new_mu, mask=mask)
    tl.store(center, new_nu, mask=mask)
    tl.store(avg_at, tl.where(ok, avg, old_avg), mask=mask)
    tl.store(sq_at, tl.where(ok, sq, old_sq), mask=mask)
    if AHEAD:  # noqa: SIM102, without it there is no number to look at
        if radius_ahead >= 0:
            store_sides(
                table,
                numbers,
                n,
                t,
                start,
                within,
                mask,
                new_nu,
                radius_ahead,
                1,
                S,
                PERMUTED,
                ALIGNED,
            )


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
    t, start, within, mask = chunk(table, chunk_tensor, chunk_index, n, EVEN, BLOCK)
    grad = tl.load(address(table, n, t, GRAD, start, G, ALIGNED) + within, mask=mask, other=0.0).to(
        S
    )
    grad = tl.where(finite(grad), grad, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(grad * grad, axis=0))
