// One row's reductions, built once per instruction set from row_kernel_bodies.h.
#pragma once

#include <cstdint>

namespace dyspec {

struct RowKernels {
    const char *name;

    // Largest entry, NaN ignored; -inf if there is none.  `maxima` takes one maximum for each of
    // several disjoint groups of entries, at most max_groups; *n_groups says how many.
    float (*max)(const float *row, int32_t n, float *maxima, int32_t *n_groups);

    // Sum of exp(x - max); NaN and -inf add nothing.  Relative error below 1e-6.
    double (*sum_exp)(const float *row, int32_t n, float max);

    // First index with row[i] == value, or n.
    int32_t (*find)(const float *row, int32_t n, float value);

    // First index >= begin with row[i] >= bound, or n.
    int32_t (*find_at_least)(const float *row, int32_t begin, int32_t n, float bound);
};

constexpr int32_t max_groups = 2560;

extern const RowKernels baseline_kernels;
#if defined(__x86_64__)
extern const RowKernels avx2_kernels;
extern const RowKernels avx512_kernels;
#endif

} // namespace dyspec
