// The CPU kernels: any number of tensors in one call, threads taking their chunks.
//
// native.py compiles this text after enums of its own, which are row:: (a column's words), goal::,
// limit::, hessian:: and dtype::, and after cpu_elements.hpp. The arithmetic is that of
// topography.py, step.py and signs.py, operation by operation, so that results are equal in every
// bit; hence no contraction of a * b + c and no reassociation. Rows may share memory (mu with the
// center, the center with the parameter), always index by index: every loop loads an element's old
// values before it stores new ones.

namespace {

constexpr int64_t LARGE = 1 << 23;  // elements

// ---- what native.py passes: 64-bit words in this order

struct Launch {
    const int64_t* table;
    const int32_t *chunk_tensor, *chunk_index;
    int64_t count, block, param, permuted, threads;

    Span chunk(int64_t i) const {
        const int64_t* words = table + chunk_tensor[i] * int64_t(row::ROWS);
        const int64_t start = chunk_index[i] * block, left = words[row::NUMEL] - start;
        return {words, int(param), start, int(least(left, block))};
    }

    // Whether no cache will keep the parameters, so that stores may as well go past it.
    bool past() const { return count * block >= LARGE; }

    // Whether the chunk's mu has been taken aside.
    int32_t& away(const Span& chunk) const {
        return chunk.address<int32_t>(row::AWAY)[chunk.start / block];
    }
};

struct Move {
    int64_t goal, depart, swap;
};

struct Update {
    const double* clip;
    int64_t limit, hessian, glass, measuring, maximize, grad, side;
};

// ---- moves

// nu, or the probe point on this side of it: 1, or -1.
template <class S> void find_point(const Span& span, const Signs& signs, int side, S* point) {
    const S radius = span.number<S>(row::RADIUS);
    const S* nu = span.at<S>(row::NU);
    S length[SPAN], buffer[SPAN + 2 * WORD];
    if (side == 0 || radius == 0) {
        std::memcpy(point, nu, span.count * sizeof(S));
    } else if (span.rounds<S>()) {
        const S* unit = signs.times<S>(side, span, buffer);
        realised(span, point, length);
        #pragma omp simd
        for (int i = 0; i < span.count; ++i) point[i] += length[i] * unit[i];
    } else {
        const S* away = signs.times(side * radius, span, buffer);
        #pragma omp simd
        for (int i = 0; i < span.count; ++i) point[i] = nu[i] + away[i];
    }
}

// Takes aside where a parameter that rounds is. Its master copy counts if it rounds to that.
template <class S> void take_rounded(const Span& span) {
    S buffer[SPAN], rounded[SPAN], *mu = span.at<S>(row::MU);
    const S* here = read(span, row::PARAM, span.param, buffer);
    round_to_param(span, mu, rounded);
    #pragma omp simd
    for (int i = 0; i < span.count; ++i) mu[i] = rounded[i] == here[i] ? mu[i] : here[i];
}

template <class S>
void move_span(const Span& span, const Move& move, const Signs& signs, bool take, bool past) {
    S there[SPAN], *param = span.at<S>(row::PARAM), *mu = span.at<S>(row::MU);
    const bool rounds = span.rounds<S>();
    if (move.swap) {
        #pragma omp simd
        for (int i = 0; i < span.count; ++i) std::swap(param[i], mu[i]);
        return;
    }
    if (move.goal == goal::REST) return write_param(span, mu);
    if (move.goal == goal::BOTH) {
        find_point(span, signs, 1, span.at<S>(row::AT_PLUS));
        return find_point(span, signs, -1, span.at<S>(row::AT_MINUS));
    }
    fetch(span.at<S>(row::NU) + SPAN, SPAN);
    if (take) fetch((rounds ? mu : param) + SPAN, SPAN);
    find_point(span, signs, (move.goal == goal::PLUS) - (move.goal == goal::MINUS), there);
    if (rounds) {
        if (take) take_rounded<S>(span);
        return write_param(span, there);
    }
    if (take) copy(mu, param, span.count, past);
    copy(param, there, span.count, past && !take);  // what was taken is in the cache by now
}

template <class S> void move_chunk(const Span& chunk, const Launch& launch, const Move& move) {
    int32_t& away = launch.away(chunk);
    const bool resting = move.goal == goal::REST, leaving = move.depart && !away;
    if (resting ? !away : move.swap && !leaving) return;
    const Signs signs(chunk, launch.permuted);
    for (int i = 0; i < chunk.count; i += SPAN) {
        move_span<S>(chunk.part(i, SPAN), move, signs, leaving, launch.past());
    }
    if (leaving || resting) away = leaving;
    settle();
}

// ---- updates

// What an update works on, element by element; null where it has no use for it.
template <class S> struct Rows {
    const S *g0, *plus, *minus, *mu, *nu;
    S *position, *center, *grad_avg, *grad_sq, *glass, *hess;

    bool are_finite(int first, int count) const {
        int bad = 0;
        for (const S* g : {g0, plus, minus}) {
            if (!g) continue;
            #pragma omp simd reduction(+ : bad)
            for (int i = first; i < first + count; ++i) bad += !is_finite(g[i]);
        }
        return !bad;
    }
};

// Calls f with the value, one of these, as a constant.
template <int... values, class F> void with_constant(int value, F f) {
    (void)((value == values && (f(std::integral_constant<int, values>()), true)) || ...);
}

// Calls f with the curvature terms as constants.
template <class F> void with_terms(bool glass, int hess, F f) {
    using namespace hessian;
    with_constant<false, true>(glass, [&](auto glass) {
        with_constant<NONE, ABS, RMS, SIGNED>(hess, [&](auto hess) { f(glass, hess); });
    });
}

// A gradient in S, clipped and, to maximize, negated; null for a side that was not measured.
template <class S> const S* gradient(const Span& span, const Update& update, int row, S* buffer) {
    if (row != row::GRAD && !update.measuring) return nullptr;
    const S* raw = read(span, row, row == row::GRAD ? update.grad : update.side, buffer);
    if (!update.clip && !update.maximize) return raw;
    const S factor = (update.maximize ? -1 : 1) * (update.clip ? static_cast<S>(*update.clip) : 1);
    #pragma omp simd
    for (int i = 0; i < span.count; ++i) buffer[i] = raw[i] * factor;
    return buffer;
}

// rho <- bt rho + (1-bt) (2/lambda) ((g+ + g-)/2 - g0)^2 and h <- bt h + (1-bt) x. What is beyond
// the largest number counts as that: infinities of both signs would add up to NaN. `half` is 1/2
// over the radius, and `share` that times 1-bt.
template <class S, int GLASS, int HESS>
void average(const Span& span, Rows<S> at, const S* half, const S* share, const S* unit) {
    const S beta = span.number<S>(row::BETA_TOPO), fresh = span.number<S>(row::NEW_TOPO);
    const S most = S(span.number(row::NEW_TOPO) * std::numeric_limits<S>::max());
    #pragma omp simd
    for (int i = 0; i < span.count; ++i) {
        const S plus = at.plus[i], minus = at.minus[i];
        if (GLASS) {
            const S difference = plus / 2 + minus / 2 - at.g0[i];
            const S y = difference * difference * (4 * share[i]);
            at.glass[i] = beta * at.glass[i] + (y > most ? most : y);
        }
        if (HESS != hessian::NONE) {
            S x = (plus - minus) * (HESS == hessian::RMS ? half : share)[i];
            if (HESS == hessian::ABS) x = std::fabs(x);
            if (HESS == hessian::RMS) x = x * x * fresh;
            if (HESS == hessian::SIGNED) x = unit[i] * x;
            x = x > most ? most : x < -most ? -most : x;
            at.hess[i] = beta * at.hess[i] + x;
        }
    }
}

template <class S>
void measure(const Span& span, const Update& update, const Signs& signs, const Rows<S>& at) {
    const double radius = span.number(row::RADIUS), fresh = span.number(row::NEW_TOPO);
    S half[SPAN], share[SPAN], buffer[SPAN + 2 * WORD];
    if (span.rounds<S>()) {
        const S nominal = static_cast<S>(radius);
        realised(span, buffer, half);
        #pragma omp simd
        for (int i = 0; i < span.count; ++i) {
            half[i] = 1 / (half[i] > 0 ? half[i] : nominal) / 2;
            share[i] = S(fresh) * half[i];
        }
    } else {
        const S one_half = S(0.5 / radius), of_it = S(fresh * (0.5 / radius));
        #pragma omp simd
        for (int i = 0; i < span.count; ++i) half[i] = one_half, share[i] = of_it;
    }
    const S* unit = update.hessian == hessian::SIGNED ? signs.times<S>(1, span, buffer) : nullptr;
    with_terms(update.glass, update.hessian, [&](auto glass, auto hess) {
        average<S, glass(), hess()>(span, at, half, share, unit);
    });
}

// `total_curvature` of theory/curvature.py.
template <class S> inline S total_curvature(S hg, S h) {
    const S half = hg / 2, root = std::sqrt(half + h) + std::sqrt(half);
    return root * root;
}

// `newton` between the bounds; NaN is not hidden by them. Written without selecting a condition by
// a condition, which gcc does not vectorise.
template <class S> inline S clamped(S newton, S lower, S upper) {
    const S above = newton > lower ? newton : lower, between = above < upper ? above : upper;
    return newton != newton ? newton : between;
}

// Averages of the gradient, the bounded step and the move; the curvature's averages are given.
template <class S, int LIMIT, int GLASS, int HESS> void step(const Span& span, Rows<S> at) {
    const auto number = [&](int row) { return span.number<S>(row); };
    const S beta1 = number(row::BETA1), new1 = number(row::NEW1);
    const S beta2 = number(row::BETA2), new2 = number(row::NEW2);
    const S lr = number(row::LR), lr_min = number(row::LR_MIN), eps = number(row::EPS);
    const S fraction = number(row::STEP_FRACTION), lookahead = number(row::LOOKAHEAD);
    const S decay = number(row::DECAY), glass_factor = static_cast<S>(3 / (4 * 3.141592653589793));
    const auto inverse = [&](int row) { return static_cast<S>(1 / span.number(row)); };
    const S per_grad = inverse(row::GRAD_WEIGHT), per_sq = inverse(row::SQ_WEIGHT);
    const S per_topo = inverse(row::TOPO_WEIGHT);
    const bool decays = span.number(row::DECAY) != 0;
    // No lower bound is 0, also where the unit is infinite because s underflows and eps is 0.
    const S largest = std::numeric_limits<S>::max();
    const S unit_max = span.number(row::LR_MIN) > 0 ? std::numeric_limits<S>::infinity() : largest;
    for (int first = 0; first < span.count; first += GROUP) {
        const int last = first + span.part(first, GROUP).count;
        const int next = first + 2 * SPAN;  // what will be read there is fetched meanwhile
        fetch(at.g0 + next, GROUP), fetch(at.mu + next, GROUP);
        fetch(at.grad_avg + next, GROUP), fetch(at.grad_sq + next, GROUP);
        if (GLASS) fetch(at.glass + next, GROUP);
        if (HESS != hessian::NONE) fetch(at.hess + next, GROUP);
        if (at.plus) fetch(at.plus + next, GROUP), fetch(at.minus + next, GROUP);
        #pragma omp simd
        for (int i = first; i < last; ++i) {
            const S g0 = at.g0[i], mu = at.mu[i];
            const S avg = beta1 * at.grad_avg[i] + new1 * g0;
            const S sq = beta2 * at.grad_sq[i] + new2 * g0 * g0;
            const S g = avg * per_grad, whole = std::fabs(g);
            const S size = whole > largest ? largest : whole;  // exceeded by rounding
            S unit = 1;
            if (LIMIT == limit::SGD) unit = std::fabs(avg);
            if (LIMIT == limit::ADAM) unit = size / (std::sqrt(sq * per_sq) + eps);
            S length = lr * unit, hg = 0, h = 0;
            if (GLASS) {
                const S rho = at.glass[i] * per_topo, stiff = rho / (size + eps) * glass_factor;
                hg = rho == 0 ? 0 : stiff;
            }
            if (HESS != hessian::NONE) h = at.hess[i] * per_topo;
            if (HESS == hessian::RMS) h = std::sqrt(h);
            if (HESS == hessian::ABS) h = std::fabs(h);
            if (GLASS || HESS != hessian::NONE) {
                const S total = GLASS ? total_curvature(hg, h) : h;
                const S lower = lr_min * (unit > unit_max ? unit_max : unit);
                length = clamped(size / (total + eps), lower, length);
            }
            const S still = g == 0 ? 0 : 0 * length;
            const S step = g > 0 ? -length : g < 0 ? length : still;
            const S decayed = step - decay * mu, u = decays ? decayed : step;
            at.position[i] = mu + fraction * u;
            at.center[i] = mu + lookahead * u;
            at.grad_avg[i] = avg;
            at.grad_sq[i] = sq;
        }
    }
}

template <class S>
void update_finite(const Span& span, const Update& update, const Signs& signs, const Rows<S>& at) {
    if (update.measuring && span.number(row::RADIUS) > 0) measure(span, update, signs, at);
    const bool measured = span.number(row::TOPO_WEIGHT) > 0;
    const int hess = measured ? update.hessian : hessian::NONE;
    with_terms(measured && update.glass, hess, [&](auto glass, auto hess) {
        // What "abs" averages is its own absolute value.
        constexpr int G = glass(), H = hess() == hessian::SIGNED ? int(hessian::ABS) : hess();
        with_constant<limit::FIXED, limit::ADAM, limit::SGD>(update.limit, [&](auto limit) {
            step<S, limit(), G, H>(span, at);
        });
    });
}

// Elements of gradients that are not finite are left alone, with their state, and counted.
template <class S>
void update_span(const Span& span, const Update& update, const Signs& signs, bool past) {
    S g0[SPAN], plus[SPAN], minus[SPAN], moved[SPAN], ahead[SPAN];
    const auto found = [&](int row, bool used = true) { return used ? span.at<S>(row) : nullptr; };
    Rows<S> at{gradient(span, update, row::GRAD, g0),
               gradient(span, update, row::PLUS, plus),
               gradient(span, update, row::MINUS, minus), found(row::MU), found(row::NU),
               found(span.rounds<S>() ? row::MU : row::PARAM), found(row::CENTER),
               found(row::GRAD_AVG), found(row::GRAD_SQ), found(row::GLASS, update.glass),
               found(row::HESS, update.hessian != hessian::NONE)};
    if (at.are_finite(0, span.count)) {
        S *position = at.position, *center = at.center;
        if (past && position != at.mu) at.position = moved;  // what is read is in the cache
        if (past && center != at.mu) at.center = ahead;
        update_finite(span, update, signs, at);
        if (at.position == moved) copy(position, moved, span.count, past);
        if (at.center == ahead) copy(center, ahead, span.count, past);
    } else {
        int64_t skipped = 0;
        for (int i = 0, end = 0; i < span.count; i = end) {
            while (end < span.count && at.are_finite(end, 1)) ++end;
            update_span<S>(span.part(i, end - i), update, signs, false);
            for (; end < span.count && !at.are_finite(end, 1); ++end, ++skipped) {
                const S mu = at.mu[end], nu = at.nu[end];
                at.position[end] = mu;
                at.center[end] = nu;
            }
        }
        __atomic_fetch_add(span.address<int64_t>(row::SKIPPED), skipped, __ATOMIC_RELAXED);
    }
    if (span.rounds<S>()) write_param(span, at.position);
}

template <class S>
void update_chunk(const Span& chunk, const Launch& launch, const Update& update) {
    const Signs signs(chunk, launch.permuted);
    for (int i = 0; i < chunk.count; i += SPAN) {
        update_span<S>(chunk.part(i, SPAN), update, signs, launch.past());
    }
    launch.away(chunk) = 0;
    settle();
}

template <class S> double square_sum_of_chunk(const Span& chunk, int code) {
    S buffer[SPAN];
    double sum = 0;
    for (int i = 0; i < chunk.count; i += SPAN) {
        const Span span = chunk.part(i, SPAN);
        const S* g = read(span, row::GRAD, code, buffer);
        #pragma omp simd reduction(+ : sum)
        for (int j = 0; j < span.count; ++j) {
            const double x = is_finite(g[j]) ? g[j] : 0;
            sum += x * x;
        }
    }
    return sum;
}

// Calls work(i, chunk, zero) for every chunk, with a zero of the state's dtype.
template <class F> void for_chunks(const Launch& launch, F work) {
    #pragma omp parallel for schedule(dynamic) num_threads(launch.threads)
    for (int64_t i = 0; i < launch.count; ++i) {
        const Span chunk = launch.chunk(i);
        launch.param == dtype::FLOAT64 ? work(i, chunk, double()) : work(i, chunk, float());
    }
}

}  // namespace

extern "C" {

int knows_dtype(int code) {
    bool known = false;
    with_dtype(code, [&](auto) { known = true; });
    return known;
}

void move(const Launch& launch, const Move& move) {
    for_chunks(launch, [&](int64_t, const Span& chunk, auto zero) {
        move_chunk<decltype(zero)>(chunk, launch, move);
    });
}

void update(const Launch& launch, const Update& update) {
    for_chunks(launch, [&](int64_t, const Span& chunk, auto zero) {
        update_chunk<decltype(zero)>(chunk, launch, update);
    });
}

void square_sum(const Launch& launch, double* partial, int64_t grad) {
    for_chunks(launch, [&](int64_t i, const Span& chunk, auto zero) {
        partial[i] = square_sum_of_chunk<decltype(zero)>(chunk, grad);
    });
}

}  // extern "C"
