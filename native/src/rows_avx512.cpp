// Row reductions with AVX-512 (F and DQ).
#include "compiler.h"
#include "row_kernels.h"

#if defined(DYSPEC_X86_64)

#include <cmath>
#include <immintrin.h>

#define DYSPEC_TARGET DYSPEC_WITH("avx512f,avx512dq,avx2,fma")
#define DYSPEC_INLINE DYSPEC_TARGET static DYSPEC_ALWAYS_INLINE

namespace dyspec {
namespace avx512 {

constexpr int32_t lanes = 16;
struct Vec {
    __m512 v;
};
struct Mask {
    uint32_t lanes;
};

DYSPEC_INLINE Vec load(const float *p) {
    return {_mm512_loadu_ps(p)};
}

DYSPEC_INLINE void store(float *p, Vec x) {
    _mm512_storeu_ps(p, x.v);
}

DYSPEC_INLINE Vec splat(float x) {
    return {_mm512_set1_ps(x)};
}

DYSPEC_INLINE Vec add(Vec a, Vec b) {
    return {_mm512_add_ps(a.v, b.v)};
}

DYSPEC_INLINE Vec subtract(Vec a, Vec b) {
    return {_mm512_sub_ps(a.v, b.v)};
}

DYSPEC_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}

DYSPEC_INLINE Vec greater(Vec x, Vec best) {
    return {_mm512_max_ps(x.v, best.v)}; // the second one if either is NaN
}

DYSPEC_INLINE Vec times_power(Vec x, Vec shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), exponent))};
}

DYSPEC_INLINE Mask at_least(Vec x, Vec bound) {
    return {_mm512_cmp_ps_mask(x.v, bound.v, _CMP_GE_OQ)};
}

DYSPEC_INLINE Mask either(Mask a, Mask b) {
    return {a.lanes | b.lanes};
}

DYSPEC_INLINE bool any(Mask mask) {
    return mask.lanes != 0;
}

DYSPEC_INLINE void prefetch(const float *p) {
    _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T1);
}

#include "row_kernel_bodies.h"

} // namespace avx512

const RowKernels avx512_kernels = {
    "avx512",
    avx512::row_max,
    avx512::row_reduce,
    avx512::row_find_at_least,
};

} // namespace dyspec

#endif
