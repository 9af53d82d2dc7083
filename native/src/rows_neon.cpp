// Row reductions with NEON, which every AArch64 processor has.
#include "compiler.h"
#include "row_kernels.h"

#if defined(DYSPEC_AARCH64)

#include <arm_neon.h>
#include <cmath>

#define DYSPEC_TARGET
#define DYSPEC_INLINE static DYSPEC_ALWAYS_INLINE

namespace dyspec {
namespace neon {

constexpr int32_t lanes = 4;
struct Vec {
    float32x4_t v;
};
struct Mask {
    uint32x4_t v;
};

DYSPEC_INLINE Vec load(const float *p) {
    return {vld1q_f32(p)};
}

DYSPEC_INLINE void store(float *p, Vec x) {
    vst1q_f32(p, x.v);
}

DYSPEC_INLINE Vec splat(float x) {
    return {vdupq_n_f32(x)};
}

DYSPEC_INLINE Vec add(Vec a, Vec b) {
    return {vaddq_f32(a.v, b.v)};
}

DYSPEC_INLINE Vec subtract(Vec a, Vec b) {
    return {vsubq_f32(a.v, b.v)};
}

DYSPEC_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
    return {vfmaq_f32(c.v, a.v, b.v)};
}

DYSPEC_INLINE Vec greater(Vec x, Vec best) {
    return {vbslq_f32(vcgtq_f32(x.v, best.v), x.v, best.v)}; // NEON's own maximum keeps a NaN
}

DYSPEC_INLINE Vec times_power(Vec x, Vec shifted) {
    const int32x4_t exponent = vshlq_n_s32(vreinterpretq_s32_f32(shifted.v), 23);
    return {vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.v), exponent))};
}

DYSPEC_INLINE Mask at_least(Vec x, Vec bound) {
    return {vcgeq_f32(x.v, bound.v)};
}

DYSPEC_INLINE Mask either(Mask a, Mask b) {
    return {vorrq_u32(a.v, b.v)};
}

DYSPEC_INLINE bool any(Mask mask) {
    return vmaxvq_u32(mask.v) != 0;
}

DYSPEC_INLINE void prefetch(const float *p) {
#if defined(__GNUC__)
    __builtin_prefetch(p, 0, 2);
#else
    __prefetch(p);
#endif
}

#include "row_kernel_bodies.h"

} // namespace neon

const RowKernels neon_kernels = {
    "neon",
    neon::row_max,
    neon::row_reduce,
    neon::row_find_at_least,
};

} // namespace dyspec

#endif
