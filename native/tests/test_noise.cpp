#include "check.h"
#include "dyspec.h"

#include <cmath>

TEST(philox_gives_the_published_words) {
    // kat_vectors of Random123, philox4x32 with 10 rounds
    struct Vector {
        uint32_t counter[4], key[2], output[4];
    };
    const Vector vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (const Vector &v : vectors) {
        uint32_t output[4];
        dyspec_philox(v.counter, v.key, output);
        for (int i = 0; i < 4; i++) {
            CHECK(output[i] == v.output[i]);
        }
    }
}

TEST(uniform_takes_the_words_of_its_block) {
    const uint64_t seed = 0x0123456789abcdefu;
    const uint32_t key[2] = {0x89abcdefu, 0x01234567u};
    for (const int32_t token : {0, 1, 5, 6, 151935, 2147483647}) {
        const uint32_t counter[4] = {77, uint32_t(token) >> 2, 3, 0};
        uint32_t words[4];
        dyspec_philox(counter, key, words);
        double u = 0, g = 0;
        dyspec_uniform(seed, 77, 3, &token, 1, &u);
        dyspec_gumbel(seed, 77, 3, &token, 1, &g);
        CHECK(u == (words[token & 3] + 0.5) / 4294967296.0);
        CHECK(g == -std::log(-std::log(u)));
    }
}

TEST(draw_is_the_largest_perturbed_logit) {
    std::mt19937 rng(1);
    for (const double scale : {0.0, 1.0, 5.0, 30.0}) {
        std::normal_distribution<float> normal(0.0f, 1.0f);
        for (uint64_t seed = 0; seed < 50; seed++) {
            std::vector<dyspec_candidate> data(3000);
            for (size_t i = 0; i < data.size(); i++) {
                const float logit = normal(rng) * float(scale);
                const bool cut = rng() % 4 == 0;
                data[i] = {int32_t(i * 7 % 3000), cut ? -INFINITY : logit, 0.0f};
            }
            size_t best = 0;
            double best_score = -INFINITY;
            for (size_t i = 0; i < data.size(); i++) {
                double g = 0;
                dyspec_gumbel(seed, 9, 0, &data[i].id, 1, &g);
                const double score = double(data[i].logit) + g;
                if (score > best_score || (score == best_score && data[i].id < data[best].id)) {
                    best = i;
                    best_score = score;
                }
            }
            CHECK(dyspec_gumbel_argmax(data.data(), int64_t(data.size()), seed, 9, 0) ==
                  int64_t(best));
        }
    }
}

TEST(draw_needs_a_finite_logit) {
    const dyspec_candidate none[] = {{0, -INFINITY, 0}, {1, NAN, 0}};
    CHECK(dyspec_gumbel_argmax(none, 2, 1, 1, 1) == DYSPEC_E_NOT_FINITE);
    CHECK(dyspec_gumbel_argmax(none, 0, 1, 1, 1) == DYSPEC_E_NOT_FINITE);
    const dyspec_candidate infinite[] = {{0, 1.0f, 0}, {1, INFINITY, 0}};
    CHECK(dyspec_gumbel_argmax(infinite, 2, 1, 1, 1) == DYSPEC_E_NOT_FINITE);
}
