// What the CPU kernels do with a span of elements: reach it, convert it, give it signs.
//
// S, here and in cpu.cpp, is the dtype of the state: double for double parameters, else float.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr int SPAN = 256;  // elements at a time: what a loop leaves to the next is in the L1 cache
constexpr int GROUP = 16;  // elements whose successors are fetched at a time: bursts stall a core
constexpr int WORD = 32;   // signs that come from one hash
constexpr int LINE = 64;   // bytes

template <class S>
constexpr int code_of = std::is_same<S, float>() ? dtype::FLOAT32 : dtype::FLOAT64;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

template <class To, class From> To bits_as(From x) {
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

// Elements that are neighbours in a parameter's memory, with its words in the table and its dtype.
struct Span {
    const int64_t* words;
    int param;
    int64_t start;
    int count;

    template <class S = double> S number(int row) const { return S(bits_as<double>(words[row])); }
    template <class T> T* address(int row) const { return reinterpret_cast<T*>(words[row]); }
    template <class T> T* at(int row) const { return address<T>(row) + start; }

    // Whether the parameter rounds what the state holds.
    template <class S> bool rounds() const { return param != code_of<S>; }

    Span part(int first, int most) const {
        return {words, param, start + first, int(least(count - first, most))};
    }
};

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

// Has what went past the caches arrive.
inline void settle() {
#ifdef __AVX512F__
    _mm_sfence();
#endif
}

// ---- dtypes

enum class Bfloat16 : uint16_t {};  // a number to the compiler: structures it does not vectorise

template <class To, class From> To converted(From x) {
    if constexpr (std::is_same<To, From>()) {
        return x;
    } else if constexpr (std::is_same<From, Bfloat16>()) {
        return To(bits_as<float>(static_cast<uint32_t>(x) << 16));
    } else if constexpr (std::is_same<To, Bfloat16>()) {
        const uint32_t u = bits_as<uint32_t>(static_cast<float>(x));
        const uint32_t rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
        return To(x != x ? 0x7FC0 : rounded);
    } else {
        return To(x);
    }
}

// Calls f with a zero of the dtype.
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

// What `from` becomes by a stay in T, which may be its own type or the one it goes to.
template <class T, class From, class To> void convert(const From* from, To* to, int count, T) {
    #pragma omp simd
    for (int i = 0; i < count; ++i) to[i] = converted<To>(converted<T>(from[i]));
}

// A row's elements in S: in place where they are of that dtype, otherwise in the buffer.
template <class S> const S* read(const Span& span, int row, int code, S* buffer) {
    if (code == code_of<S>) return span.at<S>(row);
    with_dtype(code, [&](auto zero) {
        convert(span.at<decltype(zero)>(row), buffer, span.count, zero);
    });
    return buffer;
}

template <class S> void write_param(const Span& span, const S* from) {
    with_dtype(span.param, [&](auto zero) {
        convert(from, span.at<decltype(zero)>(row::PARAM), span.count, zero);
    });
}

// What the parameter would make of S.
template <class S> void round_to_param(const Span& span, const S* from, S* to) {
    with_dtype(span.param, [&](auto zero) { convert(from, to, span.count, zero); });
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

// Global indices of a span of a parameter whose memory order is not row-major.
void permuted_indices(const Span& span, int64_t* index) {
    constexpr int last = DIMS - 1;
    const int64_t *size = span.words + row::SIZES, *stride = span.words + row::STRIDES;
    int64_t at[DIMS], rest = span.start;
    for (int d = last; d >= 0; --d) {
        at[d] = rest % size[d];
        rest /= size[d];
    }
    for (int i = 0, run; i < span.count; i += run) {
        run = int(least(size[last] - at[last], span.count - i));
        int64_t base = span.words[row::FIRST];
        for (int d = 0; d < DIMS; ++d) base += at[d] * stride[d];
        for (int j = 0; j < run; ++j) index[i + j] = base + j * stride[last];
        at[last] += run;
        for (int d = last; d > 0 && at[d] == size[d]; --d) at[d] = 0, ++at[d - 1];
    }
}

// The signs that a draw has for one parameter.
struct Signs {
    bool permuted;
    uint32_t low = 0x9E3779B9, high = 0;

    Signs(const Span& span, bool permuted) : permuted(permuted) {
        const uint64_t seed = span.words[row::SEED], step = span.words[row::STEP];
        const uint64_t parameter = span.words[row::INDEX];
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

    // scale times the signs of a span. The buffer has room for a word on either side of it.
    template <class S> const S* times(S scale, const Span& span, S* buffer) const {
        if (permuted) {
            int64_t index[SPAN];
            permuted_indices(span, index);
            #pragma omp simd
            for (int i = 0; i < span.count; ++i) {
                const uint32_t bits = hash(index[i] >> 5) >> (index[i] & 31);
                buffer[i] = bits & 1 ? scale : -scale;
            }
            return buffer;
        }
        const int64_t first = span.words[row::FIRST] + span.start;
        const int skip = static_cast<int>(first % WORD);
        for (int at = 0; at < skip + span.count; at += WORD) {
            const uint32_t bits = hash((first + at) / WORD);
            #pragma omp simd
            for (int j = 0; j < WORD; ++j) buffer[at + j] = bits >> j & 1 ? scale : -scale;
        }
        return buffer + skip;
    }
};

// Center and length of the probe where the parameter rounds: `realised_radius` of displacement.py.
template <class S> void realised(const Span& span, S* center, S* length) {
    const S radius = span.number<S>(row::RADIUS);
    round_to_param(span, span.at<S>(row::NU), center);
    #pragma omp simd
    for (int i = 0; i < span.count; ++i) length[i] = std::fabs(center[i]) + radius;
    round_to_param(span, length, length);
    #pragma omp simd
    for (int i = 0; i < span.count; ++i) length[i] -= std::fabs(center[i]);
}

}  // namespace
