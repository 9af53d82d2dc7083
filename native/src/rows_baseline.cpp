// Row reductions for any processor: SSE2 on x86-64, else what the compiler makes of four lanes.
#include "compiler.h"
#include "row_kernels.h"

#include <cmath>
#include <cstring>

#if defined(DYSPEC_X86_64)
#include <emmintrin.h>
#endif

#define DYSPEC_TARGET
#define DYSPEC_INLINE static DYSPEC_ALWAYS_INLINE

namespace dyspec {
namespace baseline {

constexpr int32_t lanes = 4;

#if defined(DYSPEC_X86_64)

struct Vec {
    __m128 v;
};
struct Mask {
    __m128 v;
};

DYSPEC_INLINE Vec load(const float *p) {
    return {_mm_loadu_ps(p)};
}

DYSPEC_INLINE void store(float *p, Vec x) {
    _mm_storeu_ps(p, x.v);
}

DYSPEC_INLINE Vec splat(float x) {
    return {_mm_set1_ps(x)};
}

DYSPEC_INLINE Vec add(Vec a, Vec b) {
    return {_mm_add_ps(a.v, b.v)};
}

DYSPEC_INLINE Vec subtract(Vec a, Vec b) {
    return {_mm_sub_ps(a.v, b.v)};
}

DYSPEC_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
    return {_mm_add_ps(_mm_mul_ps(a.v, b.v), c.v)};
}

DYSPEC_INLINE Vec greater(Vec x, Vec best) {
    return {_mm_max_ps(x.v, best.v)}; // the second one if either is NaN
}

DYSPEC_INLINE Vec times_power(Vec x, Vec shifted) {
    const __m128i exponent = _mm_slli_epi32(_mm_castps_si128(shifted.v), 23);
    return {_mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x.v), exponent))};
}

DYSPEC_INLINE Mask at_least(Vec x, Vec bound) {
    return {_mm_cmpge_ps(x.v, bound.v)};
}

DYSPEC_INLINE Mask either(Mask a, Mask b) {
    return {_mm_or_ps(a.v, b.v)};
}

DYSPEC_INLINE bool any(Mask mask) {
    return _mm_movemask_ps(mask.v) != 0;
}

DYSPEC_INLINE void prefetch(const float *p) {
    _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T1);
}

#else

struct Vec {
    float v[lanes];
};
struct Mask {
    uint32_t v[lanes];
};

template <typename Function> DYSPEC_INLINE Vec by_lane(Function function) {
    Vec result;
    for (int32_t i = 0; i < lanes; i++) {
        result.v[i] = function(i);
    }
    return result;
}

DYSPEC_INLINE Vec load(const float *p) {
    return by_lane([=](int32_t i) { return p[i]; });
}

DYSPEC_INLINE void store(float *p, Vec x) {
    std::memcpy(p, x.v, sizeof x.v);
}

DYSPEC_INLINE Vec splat(float x) {
    return by_lane([=](int32_t) { return x; });
}

DYSPEC_INLINE Vec add(Vec a, Vec b) {
    return by_lane([=](int32_t i) { return a.v[i] + b.v[i]; });
}

DYSPEC_INLINE Vec subtract(Vec a, Vec b) {
    return by_lane([=](int32_t i) { return a.v[i] - b.v[i]; });
}

DYSPEC_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
    return by_lane([=](int32_t i) { return a.v[i] * b.v[i] + c.v[i]; });
}

DYSPEC_INLINE Vec greater(Vec x, Vec best) {
    return by_lane([=](int32_t i) { return x.v[i] > best.v[i] ? x.v[i] : best.v[i]; });
}

DYSPEC_INLINE Vec times_power(Vec x, Vec shifted) {
    uint32_t bits[lanes], exponent[lanes];
    std::memcpy(bits, x.v, sizeof bits);
    std::memcpy(exponent, shifted.v, sizeof exponent);
    for (int32_t i = 0; i < lanes; i++) {
        bits[i] += exponent[i] << 23;
    }
    std::memcpy(x.v, bits, sizeof bits);
    return x;
}

DYSPEC_INLINE Mask at_least(Vec x, Vec bound) {
    Mask mask;
    for (int32_t i = 0; i < lanes; i++) {
        mask.v[i] = x.v[i] >= bound.v[i];
    }
    return mask;
}

DYSPEC_INLINE Mask either(Mask a, Mask b) {
    for (int32_t i = 0; i < lanes; i++) {
        a.v[i] |= b.v[i];
    }
    return a;
}

DYSPEC_INLINE bool any(Mask mask) {
    return (mask.v[0] | mask.v[1] | mask.v[2] | mask.v[3]) != 0;
}

DYSPEC_INLINE void prefetch(const float *) {}

#endif

#include "row_kernel_bodies.h"

} // namespace baseline

const RowKernels baseline_kernels = {
    "baseline",
    baseline::row_max,
    baseline::row_reduce,
    baseline::row_find_at_least,
};

} // namespace dyspec
