// Row reductions with AVX-512 (F and DQ).
#include "row_kernels.h"

#if defined(__x86_64__)

#include <cmath>
#include <immintrin.h>

#define DYSPEC_TARGET __attribute__((target("avx512f,avx512dq,avx2,fma")))

namespace dyspec {
namespace avx512 {

constexpr int32_t lanes = 16;
typedef float vec __attribute__((vector_size(4 * lanes)));
typedef int32_t ivec __attribute__((vector_size(4 * lanes)));

DYSPEC_TARGET static inline __attribute__((always_inline)) uint32_t bits(ivec mask) {
    return _mm512_movepi32_mask((__m512i)mask);
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
