// Rows of logits: top-k with log-sum-exp, arg max, candidate arrays.
#include "dyspec.h"
#include "processor.h"
#include "row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>

namespace dyspec {
namespace {

// The best that the processor has, or what DYSPEC_SIMD names if that is less.
const RowKernels &choose_kernels() {
    const char *wanted = std::getenv("DYSPEC_SIMD");
    const auto allowed = [wanted](const RowKernels &kernel) {
        return wanted == nullptr || std::strcmp(wanted, kernel.name) == 0;
    };
#if defined(DYSPEC_X86_64)
    if (has_avx512() && allowed(avx512_kernels)) {
        return avx512_kernels;
    }
    if (has_avx2() && (allowed(avx2_kernels) || allowed(avx512_kernels))) {
        return avx2_kernels;
    }
#elif defined(DYSPEC_AARCH64)
    if (allowed(neon_kernels)) {
        return neon_kernels;
    }
#endif
    (void)allowed;
    return baseline_kernels;
}

const RowKernels &kernels() {
    static const RowKernels &chosen = choose_kernels();
    return chosen;
}

// The k best so far, in the caller's output arrays: a heap with the worst entry in front.
class Best {
  public:
    Best(int32_t *ids, float *logits, int32_t k) : ids_(ids), logits_(logits), k_(k) {}

    // Ids must come in ascending order: an equal value that comes later never gets in.
    void offer(int32_t id, float logit) {
        if (size_ < k_) {
            int32_t i = size_++;
            while (i > 0 && worse(logit, id, logits_[(i - 1) / 2], ids_[(i - 1) / 2])) {
                move(i, (i - 1) / 2);
                i = (i - 1) / 2;
            }
            put(i, id, logit);
        } else if (logit > logits_[0]) {
            sift_down(size_, id, logit);
        }
    }

    // Largest first: the worst moves to the end of the shrinking heap.
    void sort() {
        for (int32_t n = size_ - 1; n > 0; n--) {
            const int32_t id = ids_[n];
            const float logit = logits_[n];
            move(n, 0);
            sift_down(n, id, logit);
        }
    }

  private:
    static bool worse(float logit, int32_t id, float other, int32_t other_id) {
        return logit < other || (logit == other && id > other_id);
    }
    void put(int32_t i, int32_t id, float logit) {
        ids_[i] = id;
        logits_[i] = logit;
    }
    void move(int32_t to, int32_t from) { put(to, ids_[from], logits_[from]); }

    void sift_down(int32_t n, int32_t id, float logit) {
        int32_t i = 0;
        for (int32_t child; (child = 2 * i + 1) < n; i = child) {
            if (child + 1 < n &&
                worse(logits_[child + 1], ids_[child + 1], logits_[child], ids_[child])) {
                child++;
            }
            if (!worse(logits_[child], ids_[child], logit, id)) {
                break;
            }
            move(i, child);
        }
        put(i, id, logit);
    }

    int32_t *ids_;
    float *logits_;
    int32_t k_;
    int32_t size_ = 0;
};

void select(const RowKernels &kernel, const float *row, int32_t n, const Groups &groups, int32_t k,
            Best best) {
    float bound = -INFINITY;
    if (k <= groups.n) {
        // k groups hold an entry at least as large as the k-th largest maximum; the others do not.
        float maxima[max_groups];
        std::copy_n(groups.maxima, groups.n, maxima);
        std::nth_element(maxima, maxima + (k - 1), maxima + groups.n, std::greater<float>());
        bound = maxima[k - 1];
    }
    if (bound == -INFINITY) { // too few groups, or too few finite entries
        for (int32_t i = 0; i < n; i++) {
            best.offer(i, std::isnan(row[i]) ? -INFINITY : row[i]);
        }
    }
    for (int32_t g = 0; bound > -INFINITY && g < groups.n; g++) {
        if (groups.maxima[g] >= bound) {
            const int32_t end = std::min((g + 1) * groups.size, n);
            int32_t i = g * groups.size;
            while ((i = kernel.find_at_least(row, i, end, bound)) < end) {
                best.offer(i, row[i]);
                i++;
            }
        }
    }
    best.sort();
}

// So many groups that the k largest entries lie in few of them, and no more: each takes time.
int32_t group_size(int32_t n_vocab, int32_t k) {
    constexpr int32_t least = 64;
    const int32_t n_groups = std::clamp(2 * k, 16, max_groups);
    return (n_vocab / n_groups / least + 1) * least;
}

int32_t topk_row(const RowKernels &kernel, const float *row, int32_t n_vocab, int32_t k,
                 int32_t *ids, float *logits, float *lse) {
    Groups groups;
    groups.size = group_size(n_vocab, k);
    double sum;
    const float max = kernel.reduce(row, n_vocab, &groups, &sum);
    if (!std::isfinite(max)) {
        return DYSPEC_E_NOT_FINITE;
    }
    *lse = float(double(max) + std::log(sum));
    const int32_t n_kept = std::min(k, n_vocab);
    if (n_kept > 0) {
        select(kernel, row, n_vocab, groups, n_kept, Best(ids, logits, n_kept));
    }
    std::fill(ids + n_kept, ids + k, -1);
    std::fill(logits + n_kept, logits + k, -INFINITY);
    return 0;
}

struct TopK {
    const uint64_t *rows;
    int32_t n_vocab, k;
    int32_t *ids;
    float *logits, *lse;

    // Returns the first row in begin..end that fails, or end.
    int32_t operator()(int32_t begin, int32_t end) const {
        const RowKernels &kernel = kernels();
        for (int32_t i = begin; i < end; i++) {
            const int64_t at = int64_t(i) * k;
            const float *row = reinterpret_cast<const float *>(uintptr_t(rows[i]));
            if (topk_row(kernel, row, n_vocab, k, ids + at, logits + at, lse + i) != 0) {
                return i;
            }
        }
        return end;
    }
};

// A thread costs about as much to start as a third of a row of 152k entries takes.
constexpr int32_t min_rows_per_thread = 2;
constexpr int64_t min_entries_for_threads = 200000;
constexpr int32_t max_threads = 64;

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_abi_version(void) {
    return DYSPEC_ABI_VERSION;
}

const char *dyspec_simd(void) {
    return kernels().name;
}

int32_t dyspec_topk(const uint64_t *rows, int32_t n_rows, int32_t n_vocab, int32_t k, int32_t *ids,
                    float *logits, float *lse, int32_t n_threads) {
    if (n_rows < 0 || n_vocab < 1 || k < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    const TopK task{rows, n_vocab, k, ids, logits, lse};
    int32_t n_parts = std::min({n_threads, n_rows / min_rows_per_thread, max_threads});
    if (n_parts < 2 || int64_t(n_rows) * n_vocab < min_entries_for_threads) {
        n_parts = 1;
    }
    int32_t failed[max_threads];
    std::thread threads[max_threads];
    const auto part_end = [&](int32_t part) {
        return int32_t(int64_t(n_rows) * (part + 1) / n_parts);
    };
    for (int32_t part = 1; part < n_parts; part++) {
        const auto work = [&, part] { failed[part] = task(part_end(part - 1), part_end(part)); };
        try {
            threads[part] = std::thread(work);
        } catch (const std::system_error &) {
            work(); // no thread to be had: the same rows, here
        }
    }
    failed[0] = task(0, part_end(0));
    for (int32_t part = 1; part < n_parts; part++) {
        if (threads[part].joinable()) {
            threads[part].join();
        }
    }
    for (int32_t part = 0; part < n_parts; part++) {
        if (failed[part] < part_end(part)) {
            return DYSPEC_E_ROW - failed[part];
        }
    }
    return 0;
}

int32_t dyspec_argmax(const float *row, int32_t n_vocab) {
    const float max = kernels().max(row, n_vocab);
    if (!std::isfinite(max)) {
        return DYSPEC_E_NOT_FINITE;
    }
    return kernels().find_at_least(row, 0, n_vocab, max);
}

int32_t dyspec_fill_candidates(const float *row, int32_t n_vocab, dyspec_candidate *data) {
    for (int32_t i = 0; i < n_vocab; i++) {
        data[i] = {i, row[i], 0.0f};
    }
    return n_vocab;
}

} // extern "C"
