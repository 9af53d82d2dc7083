// Counter-based noise: every number is a function of (seed, index, stream, token), so that draft
// and target meet the same one without exchanging anything.
#include "dyspec.h"

#include <algorithm>
#include <cmath>

namespace dyspec {
namespace {

struct Words {
    uint32_t word[4];
};

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
Words philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t a = uint64_t(0xD2511F53u) * c0;
        const uint64_t b = uint64_t(0xCD9E8D57u) * c2;
        c0 = uint32_t(b >> 32) ^ c1 ^ k0;
        c1 = uint32_t(b);
        c2 = uint32_t(a >> 32) ^ c3 ^ k1;
        c3 = uint32_t(a);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

double to_uniform(uint32_t word) {
    return (double(word) + 0.5) * 0x1p-32;
}

double to_gumbel(uint32_t word) {
    return -std::log(-std::log(to_uniform(word)));
}

// The noise at one place of a reply.  Neighbouring tokens share a block of four words.
class Noise {
  public:
    Noise(uint64_t seed, uint32_t index, uint32_t stream)
        : k0_(uint32_t(seed)), k1_(uint32_t(seed >> 32)), index_(index), stream_(stream) {}

    uint32_t word(int32_t token) {
        const uint32_t block = uint32_t(token) >> 2;
        if (!ready_ || block != block_) {
            words_ = philox(index_, block, stream_, 0, k0_, k1_);
            block_ = block;
            ready_ = true;
        }
        return words_.word[uint32_t(token) & 3];
    }

    double uniform(int32_t token) { return to_uniform(word(token)); }
    double gumbel(int32_t token) { return to_gumbel(word(token)); }

  private:
    uint32_t k0_, k1_, index_, stream_;
    uint32_t block_ = 0;
    bool ready_ = false;
    Words words_{};
};

// The largest number that Noise::gumbel can give: 33 log 2 at u = 1 - 2^-33, rounded up.
constexpr double max_gumbel = 22.874;

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

void dyspec_philox(const uint32_t *counter, const uint32_t *key, uint32_t *out) {
    const Words words = philox(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
    for (int i = 0; i < 4; i++) {
        out[i] = words.word[i];
    }
}

int32_t dyspec_uniform(uint64_t seed, uint32_t index, uint32_t stream, const int32_t *tokens,
                       int32_t n, double *out) {
    Noise noise(seed, index, stream);
    for (int32_t i = 0; i < n; i++) {
        out[i] = noise.uniform(tokens[i]);
    }
    return n;
}

int32_t dyspec_gumbel(uint64_t seed, uint32_t index, uint32_t stream, const int32_t *tokens,
                      int32_t n, double *out) {
    Noise noise(seed, index, stream);
    for (int32_t i = 0; i < n; i++) {
        out[i] = noise.gumbel(tokens[i]);
    }
    return n;
}

int64_t dyspec_gumbel_argmax(const dyspec_candidate *data, int64_t size, uint64_t seed,
                             uint32_t index, uint32_t stream) {
    int64_t best = -1;
    double best_score = -INFINITY;
    // The likeliest entry goes first: it sets a score that most others cannot reach.
    for (int64_t i = 0; i < size; i++) {
        if (data[i].logit > best_score) {
            best = i;
            best_score = double(data[i].logit);
        }
    }
    if (best < 0 || !std::isfinite(best_score)) {
        return DYSPEC_E_NOT_FINITE;
    }
    Noise noise(seed, index, stream);
    best_score += noise.gumbel(data[best].id);
    const int64_t likeliest = best;
    for (int64_t i = 0; i < size; i++) {
        const double logit = double(data[i].logit);
        const double gap = best_score - logit;
        if (i == likeliest || !(gap <= max_gumbel)) {
            continue; // a NaN fails the comparison too
        }
        // G > gap needs 1 - u <= -log(u) < exp(-gap), which is less than 2^-floor(gap log2(e)):
        // so many leading bits of the word must be ones.  Saves the logarithms of nearly all.
        const uint32_t word = noise.word(data[i].id);
        const int n_ones = std::max(int(gap * 1.4426950), 0);
        if (uint64_t(~word) << n_ones > UINT32_MAX) {
            continue;
        }
        const double score = logit + to_gumbel(word);
        if (score > best_score || (score == best_score && data[i].id < data[best].id)) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

} // extern "C"
