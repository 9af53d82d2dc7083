// Row reductions with AVX2 and FMA.
#include "row_kernels.h"

#if defined(__x86_64__)

#include <cmath>
#include <immintrin.h>

#define DYSPEC_TARGET __attribute__((target("avx2,fma")))

namespace dyspec {
namespace avx2 {

constexpr int32_t lanes = 8;
typedef float vec __attribute__((vector_size(4 * lanes)));
typedef int32_t ivec __attribute__((vector_size(4 * lanes)));

DYSPEC_TARGET static inline __attribute__((always_inline)) uint32_t bits(ivec mask) {
    return uint32_t(_mm256_movemask_ps((__m256)mask));
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
