#include "check.h"
#include "dyspec.h"
#include "tree_arrays.h"

#include <algorithm>
#include <numeric>

namespace {

struct Limits {
    int32_t max_nodes;
    int32_t max_leaves = 1000;
    int32_t max_depth = 1000;
    int32_t by_layer = 0;
    double threshold = 0.0;
};

struct Tree : TreeArrays {
    Limits limits;
    std::vector<int32_t> pending;
    dyspec_expansion *x;

    Tree(const Limits &limits, int32_t ranks, int32_t size = 0)
        : TreeArrays(size > 0 ? size : limits.max_nodes + 1, ranks), limits(limits),
          pending(at(capacity)) {
        const int32_t eog[] = {3, 9};
        x = dyspec_expansion_create(&tree, limits.max_nodes, limits.max_leaves, limits.by_layer,
                                    eog, 2);
    }
    ~Tree() { dyspec_expansion_free(x); }

    int32_t reset() { return dyspec_expansion_reset(x, limits.max_depth, limits.threshold); }

    void evaluate(std::mt19937 &rng, int32_t node) {
        std::vector<int32_t> ids(40);
        std::iota(ids.begin(), ids.end(), 0);
        std::shuffle(ids.begin(), ids.end(), rng);
        float left = 1.0f;
        for (int32_t r = 0; r < n_ranks; r++) {
            const size_t at = size_t(node) * size_t(n_ranks) + size_t(r);
            cand_ids[at] = ids[size_t(r)];
            cand_probs[at] = left * float(rng() % 1000) / 1000.0f;
            left -= cand_probs[at];
        }
        n_cand[size_t(node)] = n_ranks;
    }

    // Returns the number of passes.
    int32_t grow(uint32_t seed) {
        std::mt19937 rng(seed);
        CHECK(reset() == 0);
        int32_t n_passes = 0;
        for (int32_t n; (n = dyspec_expansion_run(x, pending.data())) > 0; n_passes++) {
            for (int32_t i = 0; i < n; i++) {
                const int32_t node = pending[size_t(i)];
                CHECK(node >= 0 && node < tree.n_nodes && n_cand[size_t(node)] == -1);
                evaluate(rng, node);
            }
        }
        return n_passes;
    }

    void check() const {
        int32_t n_leaves = 0;
        for (int32_t i = 0; i < tree.n_nodes; i++) {
            const size_t at = size_t(i);
            n_leaves += n_children[at] == 0;
            CHECK(depth[at] <= limits.max_depth);
            if (i == 0) {
                continue;
            }
            const size_t up = size_t(parent[at]);
            CHECK(parent[at] < i && depth[at] == depth[up] + 1);
            CHECK(value[at] == value[up] * double(confidence[at]));
            CHECK(!terminal[up]);
            CHECK(terminal[at] == (token[at] == 3 || token[at] == 9));
        }
        CHECK(tree.n_nodes - 1 <= limits.max_nodes && n_leaves <= limits.max_leaves);
        CHECK(n_leaves == dyspec_expansion_n_leaves(x));
    }
};

} // namespace

TEST(trees_keep_their_limits) {
    for (const int32_t max_nodes : {0, 1, 4, 16, 64, 200}) {
        for (const int32_t n_ranks : {0, 1, 8}) {
            for (const int32_t max_leaves : {1, 3, 256}) {
                for (const int32_t by_layer : {0, 1}) {
                    Tree tree(
                        {max_nodes, max_leaves, max_nodes % 7, by_layer, by_layer ? 0.01 : 0.0},
                        n_ranks);
                    for (uint32_t seed = 0; seed < 3; seed++) {
                        tree.grow(seed);
                        tree.check();
                    }
                }
            }
        }
    }
}

TEST(the_best_slot_is_drawn_first) {
    Tree tree({200}, 8);
    tree.grow(5);
    tree.check();
    // Every slot that is left is worth no more than the least that was drawn.
    double least = 1.0;
    for (int32_t i = 1; i < tree.tree.n_nodes; i++) {
        const size_t up = size_t(tree.parent[size_t(i)]);
        double mass = 1.0;
        for (int32_t j = 1; j < i; j++) {
            if (tree.parent[size_t(j)] == int32_t(up)) {
                mass -= double(tree.confidence[size_t(j)]);
            }
        }
        const double worth = tree.value[up] * mass;
        CHECK(worth <= least);
        least = worth;
    }
    for (int32_t i = 0; i < tree.tree.n_nodes; i++) {
        const size_t node = size_t(i);
        double mass = 1.0;
        for (int32_t j = 1; j < tree.tree.n_nodes; j++) {
            if (tree.parent[size_t(j)] == i) {
                mass -= double(tree.confidence[size_t(j)]);
            }
        }
        const bool is_slot = !tree.terminal[node] && tree.n_children[node] < tree.n_ranks;
        CHECK(!is_slot || tree.value[node] * mass <= least);
    }
}

TEST(a_certain_draft_gives_a_chain) {
    Tree tree({8}, 1);
    CHECK(tree.reset() == 0);
    int32_t n_passes = 0;
    while (dyspec_expansion_run(tree.x, tree.pending.data()) == 1) {
        const size_t node = size_t(tree.pending[0]);
        CHECK(node == size_t(n_passes));
        tree.cand_ids[node] = 7;
        tree.cand_probs[node] = 1.0f;
        tree.n_cand[node] = 1;
        n_passes++;
    }
    CHECK(n_passes == 8 && tree.tree.n_nodes == 9 && dyspec_expansion_n_leaves(tree.x) == 1);
}

TEST(limits_beyond_the_arrays_are_refused) {
    CHECK(Tree({8}, 1, 9).reset() == 0);
    CHECK(Tree({9}, 1, 9).reset() == DYSPEC_E_ARGUMENT);
    CHECK(Tree({-1}, 1, 9).reset() == DYSPEC_E_ARGUMENT);
    CHECK(Tree({8, 0}, 1, 9).reset() == DYSPEC_E_ARGUMENT);
    CHECK(Tree({8, 1, -1}, 1, 9).reset() == DYSPEC_E_ARGUMENT);
}
