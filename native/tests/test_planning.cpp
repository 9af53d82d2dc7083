#include "check.h"
#include "dyspec.h"
#include "tree_arrays.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace {

struct Tree : TreeArrays {
    std::vector<int32_t> nodes;
    std::vector<double> target;
    dyspec_planner *x;
    int32_t drafts = 0;
    double worth = 1.0, left = 100.0;
    int32_t max_depth = 1000;

    explicit Tree(int32_t size, int32_t n_rows = 64, int32_t max_leaves = 16)
        : TreeArrays(size, 4), nodes(at(std::max(n_rows, 16))), target(at(n_rows + 1)) {
        for (int32_t i = 1; i <= n_rows; i++) {
            target[at(i)] = 1.0 + 0.01 * i;
        }
        const int32_t eog[] = {3, 9};
        x = dyspec_planner_create(&tree, n_rows, 4, max_leaves, 0.995f, eog, 2);
    }
    ~Tree() { dyspec_planner_free(x); }

    void set_prices() {
        const double draft[] = {0.02, 0.03, 0.06};
        dyspec_planner_set_prices(x, target.data(), 0.8, worth, left, max_depth, draft, draft);
    }

    int32_t plan() { return dyspec_planner_plan(x, nodes.data(), &drafts); }
    int32_t enter(int32_t node) { return dyspec_planner_enter(x, &node, 1); }

    void evaluate(std::mt19937 &rng, int32_t node) {
        float left = 1.0f;
        for (int32_t rank = 0; rank < n_ranks; rank++) {
            const size_t i = at(node) * 4 + at(rank);
            cand_ids[i] = 10 * rank + int32_t(rng() % 10); // 9: an end
            cand_probs[i] = left * float(0.4 + 0.5 * double(rng() % 100) / 100.0);
            left -= cand_probs[i];
        }
        n_cand[at(node)] = n_ranks;
    }

    // A copied chain below the root.
    void copy(int32_t n) {
        for (int32_t i = 0; i < n; i++) {
            const int32_t node = tree.n_nodes++;
            token[at(node)] = i % 10;
            parent[at(node)] = i == 0 ? 0 : node - 1;
            depth[at(node)] = i + 1;
            n_children[at(node)] = 0;
            n_children[at(parent[at(node)])]++;
            confidence[at(node)] = 0.9f;
            value[at(node)] = value[at(parent[at(node)])] * double(0.9f);
            terminal[at(node)] = 0;
            n_cand[at(node)] = -1;
        }
    }

    int32_t num_leaves(const std::vector<int32_t> &of) const {
        return int32_t(std::count_if(of.begin(), of.end(), [&](int32_t node) {
            return std::none_of(of.begin(), of.end(),
                                [&](int32_t other) { return parent[at(other)] == node; });
        }));
    }

    // Draft until nothing is worth it; returns the nodes to verify.
    std::vector<int32_t> grow(uint32_t seed, int32_t copied) {
        std::mt19937 rng(seed);
        tree.n_nodes = 1;
        n_children[0] = 0;
        n_cand[0] = -1;
        copy(copied);
        set_prices();
        for (;;) {
            const int32_t n = plan();
            CHECK(n > 0);
            const std::vector<int32_t> found(nodes.begin(), nodes.begin() + n);
            if (!drafts) {
                return found;
            }
            for (const int32_t node : found) {
                CHECK(n_cand[at(node)] < 0 && !terminal[at(node)] && depth[at(node)] < max_depth);
                CHECK(node == 0 || n_cand[at(parent[at(node)])] > 0 ||
                      std::find(found.begin(), found.end(), parent[at(node)]) != found.end());
            }
            for (const int32_t node : found) {
                evaluate(rng, node);
            }
            CHECK(dyspec_planner_enter(x, found.data(), n) == tree.n_nodes);
        }
    }
};

} // namespace

TEST(plans_keep_their_limits) {
    for (const int32_t capacity : {1, 5, 40, 1024}) {
        for (const int32_t n_rows : {1, 2, 64}) {
            for (const int32_t max_leaves : {1, 3, 16}) {
                Tree tree(std::max(capacity, n_rows), n_rows, max_leaves);
                for (uint32_t seed = 0; seed < 4; seed++) {
                    tree.max_depth = seed == 3 ? 2 : 1000;
                    const int32_t room = std::min({tree.capacity - 1, tree.max_depth, 30});
                    const std::vector<int32_t> rows = tree.grow(seed, seed % 2 ? room : 0);
                    CHECK(rows[0] == 0 && int32_t(rows.size()) <= n_rows);
                    CHECK(tree.num_leaves(rows) <= max_leaves);
                    for (size_t i = 1; i < rows.size(); i++) {
                        const int32_t up = tree.parent[size_t(rows[i])];
                        CHECK(std::find(rows.begin(), rows.begin() + long(i), up) !=
                              rows.begin() + long(i));
                        CHECK(tree.depth[size_t(rows[i])] <= tree.max_depth);
                    }
                }
            }
        }
    }
}

TEST(dear_passes_are_not_bought) {
    Tree tree(1024);
    tree.left = 0.5; // less than the root alone costs
    CHECK(tree.grow(1, 10) == std::vector<int32_t>{0});
    tree.left = 100.0;
    tree.worth = 1e9;
    CHECK(tree.grow(1, 10) == std::vector<int32_t>{0});
}

TEST(copies_take_the_drafts_confidence) {
    Tree tree(1024);
    tree.copy(2);
    tree.cand_ids[0] = 5;
    tree.cand_ids[1] = 0; // the copied token
    tree.cand_probs[0] = 1.0f;
    tree.cand_probs[1] = 0.25f;
    tree.n_cand[0] = 2;
    CHECK(tree.enter(0) == 4);
    CHECK(tree.confidence[1] == 0.25f && tree.confidence[3] == 0.995f);
    CHECK(tree.value[2] == double(0.25f) * double(0.9f) && tree.n_children[0] == 2);
    tree.cand_ids[4] = 7;
    tree.cand_probs[4] = 0.5f;
    tree.n_cand[1] = 1;
    CHECK(tree.enter(1) == 5);
    CHECK(tree.confidence[2] == 0.0f && tree.value[2] == 0.0);
}

TEST(what_does_not_fit_is_refused) {
    CHECK(Tree(64).enter(64) == DYSPEC_E_ARGUMENT);
    CHECK(Tree(64, 64, 0).plan() == DYSPEC_E_ARGUMENT);
    CHECK(Tree(63, 64).plan() == DYSPEC_E_ARGUMENT);
}

TEST(a_plan_takes_microseconds) {
    Tree tree(1024);
    tree.worth = 0.01;
    tree.copy(16);
    std::mt19937 rng(1);
    for (int32_t node = 0; tree.tree.n_nodes <= 252; node++) {
        tree.evaluate(rng, node);
        CHECK(tree.enter(node) > 0);
    }
    tree.set_prices();
    constexpr int32_t n_calls = 200;
    double fastest = 1.0;
    for (int32_t i = 0; i < n_calls; i++) {
        const auto started = std::chrono::steady_clock::now();
        CHECK(tree.plan() > 0);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
        fastest = std::min(fastest, took.count());
    }
    std::printf("        a plan over %d nodes takes %.1f us\n", tree.tree.n_nodes, 1e6 * fastest);
}
