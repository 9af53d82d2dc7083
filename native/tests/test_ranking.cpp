#include "check.h"
#include "dyspec.h"

#include <cmath>

namespace {

dyspec_ranking greedy() {
    dyspec_ranking r{};
    r.top_p = 1.0;
    return r;
}

} // namespace

TEST(greedy_candidates_keep_their_order_and_sum_to_one) {
    const dyspec_ranking r = greedy();
    int32_t ids[] = {5, 9, 2}, usable = 0;
    const float logits[] = {2.0f, 1.0f, -INFINITY};
    const uint32_t index = 0, stream = 0;
    float probs[3];
    CHECK(dyspec_rank(&r, 1, 3, ids, logits, &index, &stream, probs, &usable) == 1);
    CHECK(usable == 2);
    CHECK(ids[0] == 5 && ids[1] == 9);
    CHECK(std::fabs(probs[0] - 1 / (1 + std::exp(-1.0f))) < 1e-6f);
    CHECK(std::fabs(probs[0] + probs[1] - 1) < 1e-6f);
}

TEST(a_biased_candidate_moves_and_a_cut_one_stands_behind) {
    dyspec_ranking r = greedy();
    r.temperature = 1.0;
    r.top_k = 1;
    int32_t ids[] = {1, 2, 3}, usable = 0;
    const float logits[] = {0.0f, 4.0f, 1.0f};
    const uint32_t index = 3, stream = 0;
    float probs[3];
    CHECK(dyspec_rank(&r, 1, 3, ids, logits, &index, &stream, probs, &usable) == 1);
    CHECK(usable == 3);
    CHECK(ids[0] == 2 && ids[1] == 3 && ids[2] == 1);
    CHECK(probs[0] > probs[1] && probs[1] > probs[2]);
}

TEST(a_row_of_forbidden_tokens_has_no_candidate) {
    dyspec_ranking r = greedy();
    for (const int residual : {0, 1}) {
        r.residual = residual;
        int32_t ids[] = {1, 2}, usable = 7;
        const float logits[] = {-INFINITY, -INFINITY};
        const uint32_t index = 0, stream = 0;
        float probs[2];
        CHECK(dyspec_rank(&r, 1, 2, ids, logits, &index, &stream, probs, &usable) == 1);
        CHECK(usable == 0);
        CHECK(probs[0] == 0 && probs[1] == 0);
    }
}

TEST(too_many_candidates_are_an_error) {
    const dyspec_ranking r = greedy();
    CHECK(dyspec_rank(&r, 1, 257, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr) ==
          DYSPEC_E_ARGUMENT);
}
