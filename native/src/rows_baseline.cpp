// Row reductions for any processor: SSE2 on x86-64, NEON on AArch64, else what the compiler makes
// of four lanes.
#include "row_kernels.h"

#include <cmath>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define DYSPEC_TARGET

namespace dyspec {
namespace baseline {

constexpr int32_t lanes = 4;
typedef float vec __attribute__((vector_size(4 * lanes)));
typedef int32_t ivec __attribute__((vector_size(4 * lanes)));

static inline uint32_t bits(ivec mask) {
#if defined(__SSE2__)
    return uint32_t(_mm_movemask_ps((__m128)mask));
#else
    return uint32_t((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8));
#endif
}

#include "row_kernel_bodies.h"

} // namespace baseline

const RowKernels baseline_kernels = {
    "baseline",
    baseline::row_max,
    baseline::row_reduce,
    baseline::row_find_at_least,
};

} // namespace dyspec
