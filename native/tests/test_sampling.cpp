#include "check.h"
#include "sampling.h"

#include <cmath>

namespace {

// Stands for llama.cpp's chain: keeps the candidates from `first` on, remembers what it was told.
struct Chain {
    size_t first = 0;
    std::vector<int32_t> told;
};

void apply(llama_sampler *chain, dyspec_candidates *left) {
    const size_t first = reinterpret_cast<Chain *>(chain)->first;
    left->data += first;
    left->size -= first;
}

void accept(llama_sampler *chain, int32_t token) {
    reinterpret_cast<Chain *>(chain)->told.push_back(token);
}

// A target whose token after t is t + 1, over a chain 0 - 1 - 2 - 3 with a sibling before each.
struct Walk {
    static constexpr int32_t n_vocab = 8;
    std::vector<int32_t> token{0, 7, 1, 7, 2, 7, 3}, parent{-1, 0, 0, 2, 2, 4, 4};
    std::vector<int32_t> n_children{2, 0, 2, 0, 2, 0, 0}, path = std::vector<int32_t>(7);
    std::vector<uint8_t> terminal = std::vector<uint8_t>(7);
    std::vector<std::vector<float>> logits;
    std::vector<uint64_t> rows;
    Chain chain;
    dyspec_tree tree{};
    dyspec_sampler x;
    std::vector<int32_t> tokens = std::vector<int32_t>(7);
    int32_t bonus = -1, n_accepted = -1;

    explicit Walk(bool has_chain = false)
        : x(apply, accept, has_chain ? reinterpret_cast<llama_sampler *>(&chain) : nullptr, n_vocab,
            0, true) {
        for (const int32_t t : token) {
            logits.emplace_back(n_vocab, 0.0f);
            logits.back()[size_t(t + 1) % n_vocab] = 1.0f;
        }
        for (const auto &row : logits) {
            rows.push_back(uint64_t(reinterpret_cast<uintptr_t>(row.data())));
        }
        tree.token = token.data();
        tree.parent = parent.data();
        tree.n_children = n_children.data();
        tree.terminal = terminal.data();
        tree.n_nodes = 7;
    }

    int32_t match() {
        return dyspec_match(&x, &tree, rows.data(), 0, path.data(), tokens.data(), &n_accepted);
    }

    std::vector<int32_t> walk() {
        const int32_t n = match();
        CHECK(n > 0);
        for (int32_t i = 1; i < n; i++) {
            CHECK(tokens[size_t(i - 1)] == token[size_t(path[size_t(i)])]);
        }
        bonus = tokens[size_t(n - 1)];
        return {path.begin(), path.begin() + n};
    }
};

using Ints = std::vector<int32_t>;

} // namespace

TEST(a_walk_follows_the_targets_tokens) {
    Walk walk;
    CHECK(walk.walk() == (Ints{0, 2, 4, 6}) && walk.bonus == 4 && walk.n_accepted == 3);
    walk.terminal[6] = 1;
    CHECK(walk.walk() == (Ints{0, 2, 4}) && walk.bonus == 3 && walk.n_accepted == 3);
    walk.rows[4] = 0;
    CHECK(walk.walk() == (Ints{0, 2}) && walk.bonus == 2 && walk.n_accepted == 1);
    walk.token[2] = 5;
    CHECK(walk.walk() == (Ints{0}) && walk.bonus == 1);
    CHECK(walk.x.seconds == 0.0 && walk.x.rows_seconds > 0.0);
}

TEST(a_chain_hears_every_token_that_is_emitted) {
    Walk walk(true);
    CHECK(walk.walk() == (Ints{0, 2, 4, 6}));
    CHECK(walk.chain.told == (Ints{1, 2, 3, 4}));
    CHECK(walk.x.seconds > 0.0 && walk.x.rows_seconds == 0.0);
    walk.chain.first = 3; // 1 and 2 are cut: the first of the others, all equal, is 3
    CHECK(walk.walk() == (Ints{0}) && walk.bonus == 3);
}

TEST(a_chain_that_forgets_is_told_nothing) {
    Chain chain;
    dyspec_sampler *x =
        dyspec_sampler_create(apply, nullptr, reinterpret_cast<llama_sampler *>(&chain), 4, 1, 0);
    const int32_t tokens[] = {1, 2};
    dyspec_sampler_accept(x, tokens, 2);
    CHECK(chain.told.empty());
    dyspec_sampler_free(x);
    dyspec_sampler_free(nullptr);
    CHECK(dyspec_sampler_create(apply, accept, nullptr, 0, 1, 0) == nullptr);
}

TEST(what_the_chain_leaves) {
    Walk walk(true);
    walk.chain.first = 5;
    std::vector<int32_t> ids(Walk::n_vocab);
    std::vector<float> logits(Walk::n_vocab);
    CHECK(dyspec_sampler_apply(&walk.x, walk.logits[1].data(), ids.data(), logits.data()) == 3);
    CHECK(ids[0] == 5 && ids[2] == 7 && logits[2] == 0.0f);
}

TEST(what_cannot_be_chosen_from_is_refused) {
    for (const float bad : {NAN, INFINITY}) {
        Walk walk(true);
        walk.logits[2][6] = bad;
        CHECK(walk.match() == DYSPEC_E_NOT_FINITE);
    }
    for (const bool has_chain : {false, true}) {
        Walk walk(has_chain);
        std::fill(walk.logits[0].begin(), walk.logits[0].end(), -INFINITY);
        CHECK(dyspec_sampler_sample(&walk.x, walk.logits[0].data(), 0) == DYSPEC_E_NOT_FINITE);
    }
}
