// One row's reductions, built once per instruction set from row_kernel_bodies.h.
#pragma once

#include "compiler.h"

#include <cstdint>

namespace dyspec {

constexpr int32_t max_groups = 256;

// A row, divided: group g has `size` entries from g * size on, the last one what is left.
struct Groups {
    float maxima[max_groups]; // -inf where all are NaN
    int32_t n;
    int32_t size; // so large that there are not too many groups; whole vectors
};

struct RowKernels {
    const char *name;

    // Largest entry, NaN ignored; -inf if there is none.
    float (*max)(const float *row, int32_t n);

    // The same, with the maxima of groups of groups->size entries.  *sum is that of exp(x -
    // largest), to which NaN and -inf add nothing, with a relative error below 1e-6.
    float (*reduce)(const float *row, int32_t n, Groups *groups, double *sum);

    // First index >= begin with row[i] >= bound, which is not -inf, or n.
    int32_t (*find_at_least)(const float *row, int32_t begin, int32_t n, float bound);
};

constexpr int32_t floats_per_line = 16; // of the cache

extern const RowKernels baseline_kernels;
#if defined(DYSPEC_X86_64)
extern const RowKernels avx2_kernels;
extern const RowKernels avx512_kernels;
#elif defined(DYSPEC_AARCH64)
extern const RowKernels neon_kernels;
#endif

} // namespace dyspec
