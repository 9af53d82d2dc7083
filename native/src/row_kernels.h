// One row's reductions, built once per instruction set from row_kernel_bodies.h.
#pragma once

#include <cstdint>

namespace dyspec {

struct RowKernels {
    const char *name;

    // Largest entry, NaN ignored; -inf if there is none.
    float (*max)(const float *row, int32_t n);

    // The same.  `maxima` takes one maximum for each of several disjoint groups of entries, at most
    // max_groups; *n_groups says how many.  *sum is that of exp(x - largest), to which NaN and -inf
    // add nothing, with a relative error below 1e-6.
    float (*reduce)(const float *row, int32_t n, float *maxima, int32_t *n_groups, double *sum);

    // First index with row[i] == value, or n.
    int32_t (*find)(const float *row, int32_t n, float value);

    // First index >= begin with row[i] >= bound, or n.
    int32_t (*find_at_least)(const float *row, int32_t begin, int32_t n, float bound);
};

// The k-th largest of the groups' maxima bounds the k-th largest entry.  More groups bound it more
// tightly, and take longer to look through.
constexpr int32_t groups_wanted = 512;
constexpr int32_t max_groups = groups_wanted + 1; // what does not fill a vector is one of its own

constexpr int32_t floats_per_line = 16; // of the cache

extern const RowKernels baseline_kernels;
#if defined(__x86_64__)
extern const RowKernels avx2_kernels;
extern const RowKernels avx512_kernels;
#endif

} // namespace dyspec
