// Row reductions for any processor: SSE2 on x86-64, NEON on AArch64, else what the compiler makes
// of four lanes.
#include "row_kernels.h"

#include <cmath>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define DYSPEC_TARGET

namespace dyspec {
namespace baseline {

constexpr int32_t lanes = 4;
typedef float vec __attribute__((vector_size(4 * lanes)));
typedef int32_t ivec __attribute__((vector_size(4 * lanes)));

static inline bool any(ivec mask) {
#if defined(__SSE2__)
    return _mm_movemask_epi8((__m128i)mask) != 0;
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

#include "row_kernel_bodies.h"

} // namespace baseline

const RowKernels baseline_kernels = {
    "baseline",         baseline::row_max,           baseline::row_reduce,
    baseline::row_find, baseline::row_find_at_least,
};

} // namespace dyspec
