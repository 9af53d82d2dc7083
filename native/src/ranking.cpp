// From a draft's most probable tokens to candidates: order of drawing and confidence.
#include "dyspec.h"
#include "objects.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

struct dyspec_ranking {
    uint64_t seed;
    double temperature;
    double draft_temperature;
    double top_p;
    double min_p;
    int32_t top_k;
    bool residual;
    bool noisy;
    std::vector<int32_t> bias_ids;
    std::vector<float> bias;

    dyspec_ranking(uint64_t seed, double temperature, double draft_temperature, double top_p,
                   double min_p, int32_t top_k, bool residual, bool noisy, const int32_t *ids,
                   const float *amounts, int32_t n)
        : seed(seed), temperature(temperature), draft_temperature(draft_temperature), top_p(top_p),
          min_p(min_p), top_k(top_k), residual(residual), noisy(noisy), bias_ids(ids, ids + n),
          bias(amounts, amounts + n) {}
};

namespace dyspec {
namespace {

constexpr int32_t max_candidates = 256;
constexpr double outside_offset = 1e6; // puts what the target's chain cuts behind the rest

struct Row {
    int32_t ids[max_candidates];
    double scores[max_candidates];
    double keys[max_candidates];
    double probs[max_candidates];
    double noise[max_candidates];
    bool inside[max_candidates];
};

// Soft-max of scores / heat over the entries that `in` names; 0 elsewhere.
void soft_max(const double *scores, const bool *in, double heat, int32_t k, double *out) {
    double top = -INFINITY, total = 0;
    for (int32_t i = 0; i < k; i++) {
        if (in[i]) {
            top = std::max(top, scores[i] / heat);
        }
    }
    for (int32_t i = 0; i < k; i++) {
        out[i] = in[i] && std::isfinite(top) ? std::exp(scores[i] / heat - top) : 0.0;
        total += out[i];
    }
    for (int32_t i = 0; i < k && total > 0; i++) {
        out[i] /= total;
    }
}

// What top-k, top-p and min-p of the target's chain would leave of a row in descending order.
void cut(const dyspec_ranking &r, Row &row, int32_t k) {
    for (int32_t i = 0; i < k; i++) {
        row.inside[i] = std::isfinite(row.scores[i]);
    }
    if (!(r.temperature > 0)) {
        return;
    }
    for (int32_t i = std::max(r.top_k, 0); r.top_k > 0 && i < k; i++) {
        row.inside[i] = false;
    }
    soft_max(row.scores, row.inside, 1.0, k, row.probs);
    double before = 0;
    for (int32_t i = 0; i < k; i++) {
        const double p = row.probs[i];
        const bool nucleus = r.top_p >= 1 || before < r.top_p;
        row.inside[i] = row.inside[i] && nucleus && p >= r.min_p * row.probs[0];
        before += p;
    }
    row.inside[0] = std::isfinite(row.scores[0]);
}

int32_t draw_order(const dyspec_ranking &r, Row &row, int32_t k) {
    const double heat = r.draft_temperature > 0 ? r.draft_temperature
                        : r.temperature > 0     ? r.temperature
                                                : 1.0;
    soft_max(row.scores, row.inside, heat, k, row.probs);
    int32_t usable = 0;
    for (int32_t i = 0; i < k; i++) {
        if (!std::isfinite(row.scores[i])) {
            row.keys[i] = -INFINITY;
        } else if (float(row.probs[i]) > 0) { // as float: what the verifier is told
            row.keys[i] = row.scores[i] / heat + row.noise[i];
            usable++;
        } else { // behind the rest, by noise alone: drawn uniformly
            row.keys[i] = row.noise[i] - outside_offset;
        }
    }
    return usable;
}

int32_t match_order(const dyspec_ranking &r, Row &row, int32_t k) {
    bool everything[max_candidates];
    std::fill(everything, everything + k, true);
    double plain[max_candidates], noisy[max_candidates], outside = 0;
    soft_max(row.scores, everything, 1.0, k, plain);
    for (int32_t i = 0; i < k; i++) {
        noisy[i] = row.scores[i] + row.noise[i] * r.temperature;
        outside += row.inside[i] ? 0.0 : plain[i];
    }
    soft_max(noisy, row.inside, r.draft_temperature > 0 ? r.draft_temperature : 1.0, k, row.probs);
    int32_t usable = 0;
    for (int32_t i = 0; i < k; i++) {
        row.probs[i] = row.inside[i] ? row.probs[i] * (1.0 - outside) : plain[i];
        row.keys[i] = row.inside[i] ? noisy[i] : row.scores[i] - outside_offset;
        usable += std::isfinite(row.keys[i]);
    }
    return usable;
}

// Positions 0..k-1 by descending key; equal keys keep their order.
void sort_by(const double *keys, int32_t k, int32_t *order) {
    std::iota(order, order + k, 0);
    std::sort(order, order + k, [keys](int32_t a, int32_t b) {
        return keys[a] > keys[b] || (keys[a] == keys[b] && a < b);
    });
}

// The logit of a token with what the user prefers.
float biased(const dyspec_ranking &r, int32_t token, float logit) {
    for (size_t i = 0; i < r.bias_ids.size(); i++) {
        logit += r.bias_ids[i] == token ? r.bias[i] : 0.0f;
    }
    return logit;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

dyspec_ranking *dyspec_ranking_create(uint64_t seed, double temperature, double draft_temperature,
                                      double top_p, double min_p, int32_t top_k, int32_t residual,
                                      int32_t noisy, const int32_t *bias_ids, const float *bias,
                                      int32_t n_bias) {
    return make<dyspec_ranking>(seed, temperature, draft_temperature, top_p, min_p, top_k,
                                residual != 0, noisy != 0, bias_ids, bias, n_bias);
}

void dyspec_ranking_free(dyspec_ranking *ranking) {
    delete ranking;
}

int32_t dyspec_rank(const dyspec_ranking *ranking, int32_t n_rows, int32_t k, int32_t *ids,
                    const float *logits, const int32_t *index, const int32_t *nodes, float *probs,
                    int32_t *usable) {
    if (k < 1 || k > max_candidates) {
        return DYSPEC_E_ARGUMENT;
    }
    const dyspec_ranking &r = *ranking;
    Row row;
    int32_t order[max_candidates];
    double logit[max_candidates];
    for (int32_t n = 0; n < n_rows; n++) {
        int32_t *row_ids = ids + int64_t(n) * k;
        for (int32_t i = 0; i < k; i++) {
            logit[i] = biased(r, row_ids[i], logits[int64_t(n) * k + i]);
        }
        sort_by(logit, k, order); // a bias may have moved some
        for (int32_t i = 0; i < k; i++) {
            row.scores[i] = logit[order[i]];
            row.ids[i] = std::isfinite(row.scores[i]) ? row_ids[order[i]] : -1;
            row.noise[i] = 0;
        }
        if (r.noisy && r.temperature > 0) {
            // The target draws in stream 0; what a node's children are drawn with is its own.
            const uint32_t stream = r.residual ? uint32_t(1 + nodes[n]) : 0;
            for (int32_t i = 0; i < k; i++) {
                // Sorted by logit, not by id: tokens seldom share a block of the generator.
                const int32_t token = std::max(row.ids[i], 0);
                dyspec_gumbel(r.seed, uint32_t(index[n]), stream, &token, 1, &row.noise[i]);
            }
        }
        cut(r, row, k);
        usable[n] = r.residual ? draw_order(r, row, k) : match_order(r, row, k);
        sort_by(row.keys, k, order);
        for (int32_t i = 0; i < k; i++) {
            row_ids[i] = row.ids[order[i]];
            probs[int64_t(n) * k + i] = float(row.probs[order[i]]);
        }
    }
    return n_rows;
}

} // extern "C"
