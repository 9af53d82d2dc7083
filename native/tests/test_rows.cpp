#include "../src/processor.h"
#include "../src/row_kernels.h"
#include "check.h"
#include "dyspec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace {

using Row = std::vector<float>;

const int32_t sizes[] = {1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 1000, 2049, 49152};

Row random_row(uint32_t seed, int32_t n, bool with_nan = false) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0f, 5.0f);
    Row row(static_cast<size_t>(n));
    for (float &x : row) {
        x = with_nan && rng() % 3 == 0 ? NAN : std::round(normal(rng) * 8.0f) / 8.0f;
    }
    row[row.size() / 2] = 1.0f;
    return row;
}

// The instruction sets that this processor has.
std::vector<const dyspec::RowKernels *> all_kernels() {
    std::vector<const dyspec::RowKernels *> found{&dyspec::baseline_kernels};
#if defined(DYSPEC_X86_64)
    if (dyspec::has_avx2()) {
        found.push_back(&dyspec::avx2_kernels);
    }
    if (dyspec::has_avx512()) {
        found.push_back(&dyspec::avx512_kernels);
    }
#elif defined(DYSPEC_AARCH64)
    found.push_back(&dyspec::neon_kernels);
#endif
    return found;
}

} // namespace

// Clang's library may say of all instructions that they are not there.
#if defined(DYSPEC_X86_64) && defined(__GNUC__) && !defined(__clang__)
TEST(the_compilers_library_finds_the_same_instructions) {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    CHECK(dyspec::has_avx2() == avx2);
    CHECK(dyspec::has_avx512() ==
          (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")));
}
#endif

TEST(kernels_agree_with_plain_loops) {
    for (const dyspec::RowKernels *kernel : all_kernels()) {
        for (const int32_t n : sizes) {
            for (const bool with_nan : {false, true}) {
                const Row row = random_row(uint32_t(n), n, with_nan);
                float max = -INFINITY;
                for (const float x : row) {
                    max = x > max ? x : max;
                }
                double sum = 0;
                for (const float x : row) {
                    sum += std::isnan(x) ? 0.0 : std::exp(double(x) - double(max));
                }
                dyspec::Groups groups;
                groups.size = 256;
                double found_sum = NAN;
                CHECK(kernel->max(row.data(), n) == max);
                CHECK(kernel->reduce(row.data(), n, &groups, &found_sum) == max);
                CHECK(std::fabs(found_sum / sum - 1.0) < 1e-6);
                const auto first = std::find(row.begin(), row.end(), max) - row.begin();
                CHECK(kernel->find_at_least(row.data(), 0, n, max) == first);
                CHECK(kernel->find_at_least(row.data(), 0, n, max + 1) == n);
                for (int32_t begin = 0; begin < n; begin += 1 + n / 7) {
                    int32_t want = begin;
                    while (want < n && !(row[size_t(want)] >= 4.0f)) {
                        want++;
                    }
                    CHECK(kernel->find_at_least(row.data(), begin, n, 4.0f) == want);
                }
            }
        }
    }
}

TEST(groups_divide_a_row_and_know_its_maxima) {
    for (const dyspec::RowKernels *kernel : all_kernels()) {
        for (const int32_t n : sizes) {
            const Row row = random_row(uint32_t(n), n, n % 2 == 1);
            dyspec::Groups groups;
            groups.size = n < 64 * dyspec::max_groups ? 64 : 256;
            double sum;
            kernel->reduce(row.data(), n, &groups, &sum);
            CHECK(int64_t(groups.n) * groups.size >= n && (groups.n - 1) * groups.size < n);
            for (int32_t g = 0; g < groups.n; g++) {
                float max = -INFINITY;
                for (int32_t i = g * groups.size; i < std::min((g + 1) * groups.size, n); i++) {
                    max = row[size_t(i)] > max ? row[size_t(i)] : max;
                }
                CHECK(groups.maxima[g] == max);
            }
        }
    }
}

TEST(topk_equals_a_stable_sort) {
    for (const int32_t n : sizes) {
        for (const int32_t k : {0, 1, 5, 64, 300}) {
            const int32_t n_rows = 5;
            std::vector<Row> rows;
            std::vector<uint64_t> addresses;
            for (int32_t i = 0; i < n_rows; i++) {
                rows.push_back(random_row(uint32_t(n + i), n, i % 2 == 1));
                addresses.push_back(uint64_t(uintptr_t(rows.back().data())));
            }
            const size_t size = size_t(n_rows) * size_t(k);
            std::vector<int32_t> ids(size);
            std::vector<float> logits(size), lse(n_rows);
            CHECK(dyspec_topk(addresses.data(), n_rows, n, k, ids.data(), logits.data(), lse.data(),
                              1) == 0);
            for (int32_t i = 0; i < n_rows; i++) {
                Row &row = rows[size_t(i)];
                std::replace_if(
                    row.begin(), row.end(), [](float x) { return std::isnan(x); }, -INFINITY);
                std::vector<int32_t> order(row.size());
                std::iota(order.begin(), order.end(), 0);
                std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
                    return row[size_t(a)] > row[size_t(b)];
                });
                for (int32_t j = 0; j < k; j++) {
                    const size_t at = size_t(i) * size_t(k) + size_t(j);
                    CHECK(ids[at] == (j < n ? order[size_t(j)] : -1));
                    CHECK(logits[at] == (j < n ? row[size_t(order[size_t(j)])] : -INFINITY));
                }
            }
        }
    }
}

TEST(topk_with_threads_is_the_same) {
    const int32_t n = 40000, k = 16, n_rows = 33;
    std::vector<Row> rows;
    std::vector<uint64_t> addresses;
    for (uint32_t i = 0; i < n_rows; i++) {
        rows.push_back(random_row(i, n));
        addresses.push_back(uint64_t(uintptr_t(rows.back().data())));
    }
    std::vector<int32_t> one(n_rows * k), many(n_rows * k);
    std::vector<float> logits(n_rows * k), lse_one(n_rows), lse_many(n_rows);
    for (const int32_t n_threads : {2, 3, 8, 1000}) {
        CHECK(dyspec_topk(addresses.data(), n_rows, n, k, one.data(), logits.data(), lse_one.data(),
                          1) == 0);
        CHECK(dyspec_topk(addresses.data(), n_rows, n, k, many.data(), logits.data(),
                          lse_many.data(), n_threads) == 0);
        CHECK(one == many && lse_one == lse_many);
    }
    rows[20].assign(n, -INFINITY);
    CHECK(dyspec_topk(addresses.data(), n_rows, n, k, one.data(), logits.data(), lse_one.data(),
                      4) == DYSPEC_E_ROW - 20);
}

TEST(rows_without_a_finite_value_are_refused) {
    for (const float bad : {NAN, -INFINITY, INFINITY}) {
        Row row(100, bad);
        const uint64_t address = uint64_t(uintptr_t(row.data()));
        int32_t id;
        float logit, lse;
        CHECK(dyspec_topk(&address, 1, 100, 1, &id, &logit, &lse, 1) == DYSPEC_E_ROW);
        CHECK(dyspec_argmax(row.data(), 100) == DYSPEC_E_NOT_FINITE);
        row[99] = bad > 0 ? INFINITY : -3.0f;
        CHECK(dyspec_argmax(row.data(), 100) == (bad > 0 ? DYSPEC_E_NOT_FINITE : 99));
    }
    CHECK(dyspec_topk(nullptr, 0, 100, 1, nullptr, nullptr, nullptr, 1) == 0);
    CHECK(dyspec_topk(nullptr, 0, 0, 1, nullptr, nullptr, nullptr, 1) == DYSPEC_E_ARGUMENT);
}

TEST(candidates_are_filled_to_the_last) {
    for (const int32_t n : sizes) {
        const Row row = random_row(uint32_t(n), n);
        std::vector<dyspec_candidate> data(row.size());
        CHECK(dyspec_fill_candidates(row.data(), n, data.data()) == n);
        for (int32_t i = 0; i < n; i++) {
            const dyspec_candidate &c = data[size_t(i)];
            CHECK(c.id == i && c.logit == row[size_t(i)] && c.p == 0.0f);
        }
    }
}
