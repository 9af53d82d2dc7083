#include "check.h"
#include "dyspec.h"

#include <cmath>

namespace {

struct Rule {
    double temperature = 0.0;
    int32_t top_k = 0;
    int32_t residual = 0;
    std::vector<int32_t> bias_ids;
    std::vector<float> bias;

    int32_t rank(int32_t k, int32_t *ids, const float *logits, float *probs,
                 int32_t *usable) const {
        dyspec_ranking *ranking =
            dyspec_ranking_create(0, temperature, 0.0, 1.0, 0.0, top_k, residual, 0,
                                  bias_ids.data(), bias.data(), int32_t(bias.size()));
        const int32_t index = 3, node = 0;
        const int32_t code = dyspec_rank(ranking, 1, k, ids, logits, &index, &node, probs, usable);
        dyspec_ranking_free(ranking);
        return code;
    }
};

} // namespace

TEST(greedy_candidates_keep_their_order_and_sum_to_one) {
    const Rule rule;
    int32_t ids[] = {5, 9, 2}, usable = 0;
    const float logits[] = {2.0f, 1.0f, -INFINITY};
    float probs[3];
    CHECK(rule.rank(3, ids, logits, probs, &usable) == 1);
    CHECK(usable == 2);
    CHECK(ids[0] == 5 && ids[1] == 9);
    CHECK(std::fabs(probs[0] - 1 / (1 + std::exp(-1.0f))) < 1e-6f);
    CHECK(std::fabs(probs[0] + probs[1] - 1) < 1e-6f);
}

TEST(a_biased_candidate_moves_and_a_cut_one_stands_behind) {
    Rule rule;
    rule.temperature = 1.0;
    rule.top_k = 1;
    rule.bias_ids = {2, 7};
    rule.bias = {3.5f, 9.0f};
    int32_t ids[] = {1, 2, 3}, usable = 0;
    const float logits[] = {0.0f, 0.5f, 1.0f};
    float probs[3];
    CHECK(rule.rank(3, ids, logits, probs, &usable) == 1);
    CHECK(usable == 3);
    CHECK(ids[0] == 2 && ids[1] == 3 && ids[2] == 1);
    CHECK(probs[0] > probs[1] && probs[1] > probs[2]);
}

TEST(a_row_of_forbidden_tokens_has_no_candidate) {
    Rule rule;
    for (const int residual : {0, 1}) {
        rule.residual = residual;
        int32_t ids[] = {1, 2}, usable = 7;
        const float logits[] = {-INFINITY, -INFINITY};
        float probs[2];
        CHECK(rule.rank(2, ids, logits, probs, &usable) == 1);
        CHECK(usable == 0);
        CHECK(probs[0] == 0 && probs[1] == 0);
    }
}

TEST(too_many_candidates_are_an_error) {
    CHECK(Rule().rank(257, nullptr, nullptr, nullptr, nullptr) == DYSPEC_E_ARGUMENT);
}

TEST(freeing_nothing_is_harmless) {
    dyspec_ranking_free(nullptr);
    dyspec_drafter_free(nullptr);
    dyspec_expansion_free(nullptr);
    dyspec_planner_free(nullptr);
}
