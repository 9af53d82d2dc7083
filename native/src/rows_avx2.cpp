// Row reductions with AVX2 and FMA.
#include "compiler.h"
#include "row_kernels.h"

#if defined(DYSPEC_X86_64)

#include <cmath>
#include <immintrin.h>

#define DYSPEC_TARGET DYSPEC_WITH("avx2,fma")
#define DYSPEC_INLINE DYSPEC_TARGET static DYSPEC_ALWAYS_INLINE

namespace dyspec {
namespace avx2 {

constexpr int32_t lanes = 8;
struct Vec {
    __m256 v;
};
struct Mask {
    __m256 v;
};

DYSPEC_INLINE Vec load(const float *p) {
    return {_mm256_loadu_ps(p)};
}

DYSPEC_INLINE void store(float *p, Vec x) {
    _mm256_storeu_ps(p, x.v);
}

DYSPEC_INLINE Vec splat(float x) {
    return {_mm256_set1_ps(x)};
}

DYSPEC_INLINE Vec add(Vec a, Vec b) {
    return {_mm256_add_ps(a.v, b.v)};
}

DYSPEC_INLINE Vec subtract(Vec a, Vec b) {
    return {_mm256_sub_ps(a.v, b.v)};
}

DYSPEC_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}

DYSPEC_INLINE Vec greater(Vec x, Vec best) {
    return {_mm256_max_ps(x.v, best.v)}; // the second one if either is NaN
}

DYSPEC_INLINE Vec times_power(Vec x, Vec shifted) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.v), exponent))};
}

DYSPEC_INLINE Mask at_least(Vec x, Vec bound) {
    return {_mm256_cmp_ps(x.v, bound.v, _CMP_GE_OQ)};
}

DYSPEC_INLINE Mask either(Mask a, Mask b) {
    return {_mm256_or_ps(a.v, b.v)};
}

DYSPEC_INLINE bool any(Mask mask) {
    return _mm256_movemask_ps(mask.v) != 0;
}

DYSPEC_INLINE void prefetch(const float *p) {
    _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T1);
}

#include "row_kernel_bodies.h"

} // namespace avx2

const RowKernels avx2_kernels = {
    "avx2",
    avx2::row_max,
    avx2::row_reduce,
    avx2::row_find_at_least,
};

} // namespace dyspec

#endif
