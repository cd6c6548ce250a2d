// The CPU kernels: any number of tensors in one call, threads taking their chunks.
//
// native.py compiles this text after enums of its own: row:: (a column's words), goal::, limit::,
// hessian:: and dtype::. The arithmetic is that of topography.py, step.py and signs.py, operation
// by operation, so that results are equal in every bit; hence no contraction of a * b + c and no
// reassociation. Rows may share memory (mu with the center, the center with the parameter), always
// index by index: every loop loads an element's old values before it stores new ones.
//
// S is the dtype of the state: double for double parameters, float for all others. What is not S
// is converted a span at a time.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr int SPAN = 512;  // elements at a time: what a loop leaves to the next is in the L1 cache
constexpr int GROUP = 64;  // elements whose successors in the next span are fetched meanwhile
constexpr int WORD = 32;   // signs that come from one hash
constexpr int LINE = 64;   // bytes
constexpr int64_t LARGE = 1 << 25;  // bytes of parameters that no cache will keep

template <int value> using Constant = std::integral_constant<int, value>;

// A parameter's words in the table.
struct Column {
    const int64_t* words;

    int64_t whole(int row) const { return words[row]; }

    template <class S = double> S number(int row) const {
        double value;
        std::memcpy(&value, &words[row], sizeof value);
        return static_cast<S>(value);
    }

    template <class T> T* at(int row, int64_t start) const {
        return reinterpret_cast<T*>(words[row]) + start;
    }
};

struct Chunk {
    int64_t index, start, count;
};

inline int span_at(const Chunk& chunk, int64_t i) {
    return static_cast<int>(chunk.count - i < SPAN ? chunk.count - i : SPAN);
}

// Asks for memory that is needed later, while something else is computed. Inline, always: gcc
// drops calls of functions that do nothing else.
template <class S> [[gnu::always_inline]] inline void fetch(const S* from, int count) {
    #pragma GCC unroll 8
    for (int i = 0; i < count; i += LINE / sizeof(S)) __builtin_prefetch(from + i);
}

// A copy. Past the caches it saves a read: a plain store first fetches the line it overwrites.
template <class S> void copy(S* to, const S* from, int count, bool past) {
    int i = 0;
#ifdef __AVX512F__
    constexpr int STEP = LINE / sizeof(S);
    if (past && reinterpret_cast<uintptr_t>(to) % LINE == 0) {
        for (; i + STEP <= count; i += STEP) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
        }
    }
#endif
    std::memcpy(to + i, from + i, (count - i) * sizeof(S));
}

// ---- dtypes

struct Bfloat16 {
    uint16_t bits;

    Bfloat16() = default;

    explicit Bfloat16(float x) {
        uint32_t u;
        std::memcpy(&u, &x, sizeof u);
        const uint32_t rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
        bits = static_cast<uint16_t>(x != x ? 0x7FC0 : rounded);
    }

    explicit operator float() const {
        const uint32_t u = static_cast<uint32_t>(bits) << 16;
        float x;
        std::memcpy(&x, &u, sizeof x);
        return x;
    }
};

template <class S> constexpr int code_of() {
    return std::is_same<S, float>() ? dtype::FLOAT32 : dtype::FLOAT64;
}

// Calls f with a value of the dtype.
template <class F> void with_dtype(int code, F f) {
    switch (code) {
        case dtype::FLOAT32: return f(float());
        case dtype::FLOAT64: return f(double());
        case dtype::BFLOAT16: return f(Bfloat16());
#ifdef __FLT16_MANT_DIG__
        case dtype::FLOAT16: return f(_Float16());
#endif
    }
}

template <class S, class T> S to_state(T x) { return static_cast<S>(x); }
template <class S> S to_state(Bfloat16 x) { return static_cast<float>(x); }

// A row's elements in S: in place where they are of that dtype, otherwise in the buffer.
template <class S>
const S* read(const Column& column, int row, int code, int64_t start, int count, S* buffer) {
    if (code == code_of<S>()) return column.at<S>(row, start);
    with_dtype(code, [&](auto zero) {
        const auto* from = column.at<decltype(zero)>(row, start);
        #pragma omp simd
        for (int i = 0; i < count; ++i) buffer[i] = to_state<S>(from[i]);
    });
    return buffer;
}

template <class S>
void write(const Column& column, int row, int code, int64_t start, int count, const S* from) {
    with_dtype(code, [&](auto zero) {
        using T = decltype(zero);
        T* to = column.at<T>(row, start);
        #pragma omp simd
        for (int i = 0; i < count; ++i) to[i] = T(from[i]);
    });
}

// What S becomes by a stay in the parameter.
template <class S> void round_to(S* to, const S* from, int code, int count) {
    with_dtype(code, [&](auto zero) {
        using T = decltype(zero);
        #pragma omp simd
        for (int i = 0; i < count; ++i) to[i] = to_state<S>(T(from[i]));
    });
}

template <class S> bool is_finite(S x) { return std::fabs(x) <= std::numeric_limits<S>::max(); }

// ---- signs, as in signs.py

inline uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352D;
    x ^= x >> 15;
    x *= 0x846CA68B;
    return x ^ (x >> 16);
}

struct Key {
    uint32_t low = 0x9E3779B9, high = 0;

    explicit Key(const Column& column) {
        const uint64_t seed = column.whole(row::SEED), step = column.whole(row::STEP);
        const uint64_t parameter = column.whole(row::INDEX);
        uint32_t position = 0;
        for (uint64_t word : {seed, seed >> 32, step, step >> 32, parameter}) {
            low = mix(low + static_cast<uint32_t>(word) + position++);
            high = mix((high ^ low) + 0x9E3779B9);
        }
    }

    uint32_t hash(int64_t word) const {
        const uint32_t x = mix(static_cast<uint32_t>(word) ^ low);
        return mix(x + static_cast<uint32_t>(word >> 32) + high);
    }
};

// Global indices of a span of a parameter whose memory order is not row-major.
void permuted_indices(const Column& column, int64_t start, int count, int64_t* index) {
    constexpr int last = DIMS - 1;
    int64_t size[DIMS], stride[DIMS], at[DIMS];
    for (int d = last; d >= 0; --d) {
        size[d] = column.whole(row::SIZES + d);
        stride[d] = column.whole(row::STRIDES + d);
        at[d] = start % size[d];
        start /= size[d];
    }
    for (int i = 0; i < count;) {
        int64_t base = column.whole(row::FIRST);
        for (int d = 0; d < DIMS; ++d) base += at[d] * stride[d];
        const int64_t left = size[last] - at[last];
        const int run = left < count - i ? static_cast<int>(left) : count - i;
        for (int j = 0; j < run; ++j) index[i + j] = base + j * stride[last];
        i += run;
        at[last] += run;
        for (int d = last; d > 0 && at[d] == size[d]; --d) {
            at[d] = 0;
            ++at[d - 1];
        }
    }
}

// scale times the signs of a span. The buffer has room for a word on either side of it.
template <class S>
const S* signs(const Column& column, const Key& key, bool permuted, int64_t start, int count,
               S scale, S* buffer) {
    if (permuted) {
        int64_t index[SPAN];
        permuted_indices(column, start, count, index);
        #pragma omp simd
        for (int i = 0; i < count; ++i) {
            const uint32_t bits = key.hash(index[i] >> 5) >> (index[i] & 31);
            buffer[i] = bits & 1 ? scale : -scale;
        }
        return buffer;
    }
    const int64_t first = column.whole(row::FIRST) + start;
    const int skip = static_cast<int>(first % WORD);
    int64_t word = first / WORD;
    for (int at = 0; at < skip + count; at += WORD, ++word) {
        const uint32_t bits = key.hash(word);
        #pragma omp simd
        for (int j = 0; j < WORD; ++j) buffer[at + j] = bits >> j & 1 ? scale : -scale;
    }
    return buffer + skip;
}

// Center and length of the probe where the parameter rounds: `realised_radius` of site.py.
template <class S>
void realised(const S* nu, S radius, int param, int count, S* center, S* length) {
    S reach[SPAN];
    round_to(center, nu, param, count);
    #pragma omp simd
    for (int i = 0; i < count; ++i) reach[i] = std::fabs(center[i]) + radius;
    round_to(length, reach, param, count);
    #pragma omp simd
    for (int i = 0; i < count; ++i) length[i] -= std::fabs(center[i]);
}

// ---- moves

struct Move {
    int goal;
    bool depart, swap;
    int param;
    bool permuted, past;
};

template <class S> void exchange(S* a, S* b, int64_t count) {
    #pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
        const S x = a[i], y = b[i];
        a[i] = y;
        b[i] = x;
    }
}

// param <- nu + away, or nu; mu <- param before that, if it is to be taken.
template <class S>
void go(const Column& column, const Move& move, int64_t start, int count, bool take,
        const S* away) {
    S *param = column.at<S>(row::PARAM, start), *mu = column.at<S>(row::MU, start);
    const S* nu = column.at<S>(row::NU, start);
    S there[SPAN];
    fetch(nu + SPAN, SPAN);
    if (take) fetch(param + SPAN, SPAN);
    if (away) {
        #pragma omp simd
        for (int i = 0; i < count; ++i) there[i] = nu[i] + away[i];
    } else {
        std::memcpy(there, nu, count * sizeof(S));
    }
    if (take) copy(mu, param, count, move.past);
    copy(param, there, count, move.past && !take);  // what was taken is in the cache by now
}

// The same where the parameter rounds: its master copy counts where it rounds to what is held.
template <class S>
void go_rounding(const Column& column, const Move& move, int64_t start, int count, bool take,
                 S radius, const S* unit) {
    S *mu = column.at<S>(row::MU, start), *nu = column.at<S>(row::NU, start);
    S there[SPAN], length[SPAN], here[SPAN];
    if (unit) {
        realised(nu, radius, move.param, count, there, length);
        #pragma omp simd
        for (int i = 0; i < count; ++i) there[i] += length[i] * unit[i];
    } else {
        std::memcpy(there, nu, count * sizeof(S));
    }
    if (take) {
        read(column, row::PARAM, move.param, start, count, here);
        round_to(length, mu, move.param, count);
        #pragma omp simd
        for (int i = 0; i < count; ++i) mu[i] = length[i] == here[i] ? mu[i] : here[i];
    }
    write(column, row::PARAM, move.param, start, count, there);
}

template <class S> void both_sides(const Column& column, int64_t start, int count, const S* away) {
    const S* nu = column.at<S>(row::NU, start);
    S *plus = column.at<S>(row::AT_PLUS, start), *minus = column.at<S>(row::AT_MINUS, start);
    if (!away) {
        std::memcpy(plus, nu, count * sizeof(S));
        std::memcpy(minus, nu, count * sizeof(S));
        return;
    }
    #pragma omp simd
    for (int i = 0; i < count; ++i) {
        const S center = nu[i], distance = away[i];
        plus[i] = center + distance;
        minus[i] = center - distance;
    }
}

template <class S>
void move_span(const Column& column, const Move& move, const Key& key, int64_t start, int count,
               bool take) {
    const S radius = column.number<S>(row::RADIUS);
    const bool low = move.param != code_of<S>();
    S buffer[SPAN + 2 * WORD];
    const S* away = nullptr;
    if (move.goal == goal::REST) {
        return write(column, row::PARAM, move.param, start, count, column.at<S>(row::MU, start));
    }
    if (move.goal != goal::CENTER && radius != 0) {
        const S scale = (move.goal == goal::MINUS ? -1 : 1) * (low ? 1 : radius);
        away = signs(column, key, move.permuted, start, count, scale, buffer);
    }
    if (move.goal == goal::BOTH) return both_sides(column, start, count, away);
    if (low) return go_rounding(column, move, start, count, take, radius, away);
    go(column, move, start, count, take, away);
}

template <class S> void move_chunk(const Column& column, const Move& move, const Chunk& chunk) {
    int32_t* away = move.goal == goal::BOTH ? nullptr : column.at<int32_t>(row::AWAY, chunk.index);
    const bool home = away && *away == 0, leaving = move.depart && home;
    if (move.goal == goal::REST ? home : move.swap && !leaving) return;
    if (move.swap) {
        exchange(column.at<S>(row::PARAM, chunk.start), column.at<S>(row::MU, chunk.start),
                 chunk.count);
    } else {
        const Key key(column);
        for (int64_t i = 0; i < chunk.count; i += SPAN) {
            move_span<S>(column, move, key, chunk.start + i, span_at(chunk, i), leaving);
        }
    }
    if (leaving) *away = 1;
    if (move.goal == goal::REST) *away = 0;
#ifdef __AVX512F__
    if (move.past) _mm_sfence();
#endif
}

// ---- updates

struct Update {
    const double* clip;
    int limit, hessian;
    bool glass, measuring, maximize;
    int param, grad, side;
    bool permuted;
};

// What an update works on, element by element; null where it has no use for it.
template <class S> struct Rows {
    const S *g0, *plus, *minus, *mu, *nu;
    S *position, *center, *grad_avg, *grad_sq, *glass, *hess;

    Rows from(int i) const {
        const auto moved = [i](auto* at) { return at ? at + i : nullptr; };
        return {moved(g0), moved(plus), moved(minus), moved(mu), moved(nu), moved(position),
                moved(center), moved(grad_avg), moved(grad_sq), moved(glass), moved(hess)};
    }

    bool finite(int i) const {
        return is_finite(g0[i]) && (!plus || (is_finite(plus[i]) && is_finite(minus[i])));
    }

    bool all_finite(int count) const {
        int bad = 0;
        #pragma omp simd reduction(+ : bad)
        for (int i = 0; i < count; ++i) bad += !is_finite(g0[i]);
        if (!plus || bad) return !bad;
        #pragma omp simd reduction(+ : bad)
        for (int i = 0; i < count; ++i) bad += !is_finite(plus[i]) + !is_finite(minus[i]);
        return !bad;
    }
};

// Calls f with the curvature terms as constants.
template <class F> void with_terms(bool glass, int hess, F f) {
    const auto with_hess = [&](auto glass) {
        switch (hess) {
            case hessian::ABS: return f(glass, Constant<hessian::ABS>());
            case hessian::RMS: return f(glass, Constant<hessian::RMS>());
            case hessian::SIGNED: return f(glass, Constant<hessian::SIGNED>());
        }
        return f(glass, Constant<hessian::NONE>());
    };
    glass ? with_hess(Constant<true>()) : with_hess(Constant<false>());
}

// A gradient in S, clipped and, to maximize, negated.
template <class S>
const S* gradient(const Column& column, int row, int code, const Update& update, int64_t start,
                  int count, S* buffer) {
    const S* raw = read(column, row, code, start, count, buffer);
    if (!update.clip && !update.maximize) return raw;
    const S factor = (update.maximize ? -1 : 1) * (update.clip ? static_cast<S>(*update.clip) : 1);
    #pragma omp simd
    for (int i = 0; i < count; ++i) buffer[i] = raw[i] * factor;
    return buffer;
}

// rho <- bt rho + (1-bt) (2/lambda) ((g+ + g-)/2 - g0)^2 and h <- bt h + (1-bt) x. An x beyond the
// largest number counts as that: averages of infinities would become NaN.
template <class S, int GLASS, int HESS>
void average(const Column& column, Rows<S> at, const S* twice, const S* half, const S* unit,
             int count) {
    const S beta = column.number<S>(row::BETA_TOPO), fresh = column.number<S>(row::NEW_TOPO);
    const S most = std::numeric_limits<S>::max();
    #pragma omp simd
    for (int i = 0; i < count; ++i) {
        const S plus = at.plus[i], minus = at.minus[i];
        if (GLASS) {
            const S second = (plus + minus) / 2 - at.g0[i];
            at.glass[i] = beta * at.glass[i] + fresh * (second * second * twice[i]);
        }
        if (HESS != hessian::NONE) {
            S x = (plus - minus) * half[i];
            if (HESS == hessian::ABS) x = std::fabs(x);
            if (HESS == hessian::RMS) x = x * x;
            if (HESS == hessian::SIGNED) x = unit[i] * x;
            x = x > most ? most : x < -most ? -most : x;
            at.hess[i] = beta * at.hess[i] + fresh * x;
        }
    }
}

template <class S>
void measure(const Column& column, const Update& update, const Key& key, const Rows<S>& at,
             int64_t start, int count) {
    const double radius = column.number(row::RADIUS);
    S twice[SPAN], half[SPAN], buffer[SPAN + 2 * WORD];  // 2 and 1/2, over the radius
    if (update.param == code_of<S>()) {
        const S two = static_cast<S>(2 / radius), one_half = static_cast<S>(0.5 / radius);
        #pragma omp simd
        for (int i = 0; i < count; ++i) twice[i] = two, half[i] = one_half;
    } else {
        const S nominal = static_cast<S>(radius);
        realised(at.nu, nominal, update.param, count, buffer, half);
        #pragma omp simd
        for (int i = 0; i < count; ++i) {
            const S inverse = 1 / (half[i] > 0 ? half[i] : nominal);
            twice[i] = inverse * 2;
            half[i] = inverse / 2;
        }
    }
    const S* unit = nullptr;
    if (update.hessian == hessian::SIGNED) {
        unit = signs<S>(column, key, update.permuted, start, count, 1, buffer);
    }
    with_terms(update.glass, update.hessian, [&](auto glass, auto hess) {
        average<S, glass(), hess()>(column, at, twice, half, unit, count);
    });
}

// `total_curvature` of theory/curvature.py; without glass no root, the Hessian may be infinite.
template <class S> inline S total_curvature(S hg, S h) {
    const S root = std::sqrt(2 * hg) * std::sqrt(hg / 2 + h);
    return hg + h + (hg > 0 ? root : hg);
}

// `newton` between the bounds; NaN is not hidden by them. Written without selecting a condition by
// a condition, which gcc does not vectorise.
template <class S> inline S clamped(S newton, S lower, S upper) {
    const S above = newton > lower ? newton : lower, between = above < upper ? above : upper;
    return newton != newton ? newton : between;
}

// What the next span will read.
template <class S, bool GLASS, bool HESS>
[[gnu::always_inline]] inline void fetch_next(const Rows<S>& at, int next) {
    fetch(at.g0 + next, GROUP);
    fetch(at.mu + next, GROUP);
    fetch(at.grad_avg + next, GROUP);
    fetch(at.grad_sq + next, GROUP);
    if (GLASS) fetch(at.glass + next, GROUP);
    if (HESS) fetch(at.hess + next, GROUP);
    if (!at.plus) return;
    fetch(at.plus + next, GROUP);
    fetch(at.minus + next, GROUP);
}

// Averages of the gradient, the bounded step and the move; the curvature's averages are given.
template <class S, int LIMIT, int GLASS, int HESS>
void step(const Column& column, Rows<S> at, int count) {
    const auto number = [&](int row) { return column.number<S>(row); };
    const S beta1 = number(row::BETA1), new1 = number(row::NEW1);
    const S beta2 = number(row::BETA2), new2 = number(row::NEW2);
    const S lr = number(row::LR), lr_min = number(row::LR_MIN), eps = number(row::EPS);
    const S fraction = number(row::STEP_FRACTION), lookahead = number(row::LOOKAHEAD);
    const S decay = number(row::DECAY), glass_factor = static_cast<S>(3 / (4 * 3.141592653589793));
    const auto inverse = [&](int row) { return static_cast<S>(1 / column.number(row)); };
    const S per_grad = inverse(row::GRAD_WEIGHT), per_sq = inverse(row::SQ_WEIGHT);
    const S per_topo = inverse(row::TOPO_WEIGHT);
    const bool decays = column.number(row::DECAY) != 0;
    // No lower bound is 0, also where the unit is infinite because s underflows and eps is 0.
    const S unit_max = column.number(row::LR_MIN) > 0 ? std::numeric_limits<S>::infinity()
                                                      : std::numeric_limits<S>::max();
    for (int first = 0; first < count; first += GROUP) {
        const int last = first + GROUP < count ? first + GROUP : count;
        fetch_next<S, GLASS, HESS != hessian::NONE>(at, first + SPAN);
        #pragma omp simd
        for (int i = first; i < last; ++i) {
            const S g0 = at.g0[i], mu = at.mu[i];
            const S avg = beta1 * at.grad_avg[i] + new1 * g0;
            const S sq = beta2 * at.grad_sq[i] + new2 * (g0 * g0);
            const S g = avg * per_grad, size = std::fabs(g);
            S unit = 1;
            if (LIMIT == limit::SGD) unit = std::fabs(avg);
            if (LIMIT == limit::ADAM) unit = size / (std::sqrt(sq * per_sq) + eps);
            S length = lr * unit, hg = 0, h = 0;
            if (GLASS) {
                const S rho = at.glass[i] * per_topo, stiff = glass_factor * rho / (size + eps);
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
void update_run(const Column& column, const Update& update, const Key& key, const Rows<S>& at,
                int64_t start, int count) {
    if (update.measuring && column.number(row::RADIUS) > 0) {
        measure(column, update, key, at, start, count);
    }
    const bool measured = column.number(row::TOPO_WEIGHT) > 0;
    const int hess = measured ? update.hessian : static_cast<int>(hessian::NONE);
    with_terms(measured && update.glass, hess, [&](auto glass, auto hess) {
        // What "abs" averages is its own absolute value.
        constexpr int G = glass(), H = hess() == hessian::SIGNED ? int(hessian::ABS) : hess();
        switch (update.limit) {
            case limit::ADAM: return step<S, limit::ADAM, G, H>(column, at, count);
            case limit::SGD: return step<S, limit::SGD, G, H>(column, at, count);
        }
        return step<S, limit::FIXED, G, H>(column, at, count);
    });
}

// Returns how many elements were left alone, with their state: those of gradients not finite.
template <class S>
int update_span(const Column& column, const Update& update, const Key& key, int64_t start,
                int count) {
    const bool low = update.param != code_of<S>();
    const auto at_row = [&](int row, bool used = true) {
        return used ? column.at<S>(row, start) : nullptr;
    };
    const auto prepared = [&](int row, int code, S* buffer) {
        return gradient(column, row, code, update, start, count, buffer);
    };
    S g0[SPAN], plus[SPAN], minus[SPAN];
    const Rows<S> at{prepared(row::GRAD, update.grad, g0),
                     update.measuring ? prepared(row::PLUS, update.side, plus) : nullptr,
                     update.measuring ? prepared(row::MINUS, update.side, minus) : nullptr,
                     at_row(row::MU),
                     at_row(row::NU),
                     at_row(low ? row::MU : row::PARAM),
                     at_row(row::CENTER),
                     at_row(row::GRAD_AVG),
                     at_row(row::GRAD_SQ),
                     at_row(row::GLASS, update.glass),
                     at_row(row::HESS, update.hessian != hessian::NONE)};
    int skipped = 0;
    if (at.all_finite(count)) {
        update_run(column, update, key, at, start, count);
    } else {
        for (int i = 0; i < count;) {
            int end = i;
            while (end < count && at.finite(end)) ++end;
            update_run(column, update, key, at.from(i), start + i, end - i);
            for (; end < count && !at.finite(end); ++end, ++skipped) {
                const S mu = at.mu[end], nu = at.nu[end];
                at.position[end] = mu;
                at.center[end] = nu;
            }
            i = end;
        }
    }
    if (low) write(column, row::PARAM, update.param, start, count, at.position);
    return skipped;
}

template <class S>
void update_chunk(const Column& column, const Update& update, const Chunk& chunk) {
    const Key key(column);
    int64_t skipped = 0;
    for (int64_t i = 0; i < chunk.count; i += SPAN) {
        skipped += update_span<S>(column, update, key, chunk.start + i, span_at(chunk, i));
    }
    if (skipped) {
        __atomic_fetch_add(column.at<int64_t>(row::SKIPPED, 0), skipped, __ATOMIC_RELAXED);
    }
    if (column.whole(row::AWAY)) *column.at<int32_t>(row::AWAY, chunk.index) = 0;
}

template <class S> double square_sum_chunk(const Column& column, int code, const Chunk& chunk) {
    S buffer[SPAN];
    double sum = 0;
    for (int64_t i = 0; i < chunk.count; i += SPAN) {
        const int count = span_at(chunk, i);
        const S* g = read(column, row::GRAD, code, chunk.start + i, count, buffer);
        #pragma omp simd reduction(+ : sum)
        for (int j = 0; j < count; ++j) {
            const double x = is_finite(g[j]) ? g[j] : 0;
            sum += x * x;
        }
    }
    return sum;
}

// ---- launches

// The members of table.py's Launch, and threads.
struct Launch {
    const int64_t* table;
    const int32_t *chunk_tensor, *chunk_index;
    int64_t count, block, threads;
};

// Calls work(i, column, chunk) for every chunk.
template <class F> void for_chunks(const Launch& launch, F work) {
    #pragma omp parallel for schedule(dynamic) num_threads(launch.threads)
    for (int64_t i = 0; i < launch.count; ++i) {
        const Column column{launch.table + launch.chunk_tensor[i] * int64_t(row::ROWS)};
        const int64_t index = launch.chunk_index[i], start = index * launch.block;
        const int64_t left = column.whole(row::NUMEL) - start;
        work(i, column, Chunk{index, start, left < launch.block ? left : launch.block});
    }
}

}  // namespace

extern "C" {

int64_t rows() { return row::ROWS; }

int64_t has_float16() {
#ifdef __FLT16_MANT_DIG__
    return 1;
#else
    return 0;
#endif
}

void move(const int64_t* table, const int32_t* chunk_tensor, const int32_t* chunk_index,
          int64_t count, int64_t block, int64_t threads, int64_t goal, int64_t depart, int64_t swap,
          int64_t param, int64_t permuted) {
    const bool past = count * block * int64_t(sizeof(float)) >= LARGE;
    const Move move{int(goal), depart != 0, swap != 0, int(param), permuted != 0, past};
    auto* of_chunk = param == dtype::FLOAT64 ? move_chunk<double> : move_chunk<float>;
    for_chunks({table, chunk_tensor, chunk_index, count, block, threads},
               [&](int64_t, const Column& column, const Chunk& chunk) {
                   of_chunk(column, move, chunk);
               });
}

void update(const int64_t* table, const int32_t* chunk_tensor, const int32_t* chunk_index,
            int64_t count, int64_t block, int64_t threads, const double* clip, int64_t limit,
            int64_t hessian, int64_t glass, int64_t measuring, int64_t maximize, int64_t param,
            int64_t grad, int64_t side, int64_t permuted) {
    const Update update{clip, int(limit), int(hessian), glass != 0, measuring != 0, maximize != 0,
                        int(param), int(grad), int(side), permuted != 0};
    auto* of_chunk = param == dtype::FLOAT64 ? update_chunk<double> : update_chunk<float>;
    for_chunks({table, chunk_tensor, chunk_index, count, block, threads},
               [&](int64_t, const Column& column, const Chunk& chunk) {
                   of_chunk(column, update, chunk);
               });
}

void square_sum(const int64_t* table, const int32_t* chunk_tensor, const int32_t* chunk_index,
                int64_t count, int64_t block, int64_t threads, double* partial, int64_t param,
                int64_t grad) {
    auto* of_chunk = param == dtype::FLOAT64 ? square_sum_chunk<double> : square_sum_chunk<float>;
    for_chunks({table, chunk_tensor, chunk_index, count, block, threads},
               [&](int64_t i, const Column& column, const Chunk& chunk) {
                   partial[i] = of_chunk(column, int(grad), chunk);
               });
}

}  // extern "C"
