#include "cache.h"
#include "check.h"
#include "tree_arrays.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace {

// What of llama.cpp was called, and with which answers; it stores nothing (fuzz_trees.cpp does).
struct Calls {
    std::vector<std::array<int32_t, 2>> cuts; // id, first
    int32_t n_rows = 0, n_outputs = 0, code = 0;
    bool can_cut = true, can_restore = true;
    int32_t state = 0; // the position of the last row
    // of a head: what came in with each row of the last pass, and what it leaves there
    std::vector<float> taken, states;
    float logits = 0;
};

Calls &calls(void *pointer) {
    return *static_cast<Calls *>(pointer);
}

const dyspec_llama functions{
    [](void *llama, dyspec_batch batch) {
        calls(llama).n_rows = batch.n_tokens;
        calls(llama).state = batch.pos[batch.n_tokens - 1];
        calls(llama).taken.clear();
        calls(llama).states.clear();
        for (int32_t row = 0; row < batch.n_tokens && batch.embd != nullptr; row++) {
            calls(llama).taken.push_back(batch.embd[row]);
            calls(llama).states.push_back(100.0f + float(batch.token[row]));
        }
        calls(llama).n_outputs = 0;
        for (int32_t row = 0; row < batch.n_tokens; row++) {
            calls(llama).n_outputs += batch.logits[row];
        }
        return calls(llama).code;
    },
    [](void *) {},
    [](void *llama) { return &calls(llama).logits; },
    [](void *llama, int32_t id, int32_t first, int32_t) {
        calls(llama).cuts.push_back({id, first});
        return first == 0 || calls(llama).can_cut;
    },
    [](void *, int32_t, int32_t, int32_t, int32_t) {},
    [](void *, int32_t, uint32_t) { return sizeof(int32_t); },
    [](void *llama, uint8_t *to, size_t size, int32_t, uint32_t) {
        std::memcpy(to, &calls(llama).state, size);
        return size;
    },
    [](void *llama, const uint8_t *from, size_t size, int32_t, uint32_t) {
        std::memcpy(&calls(llama).state, from, size);
        return calls(llama).can_restore ? size : 0;
    },
    [](void *llama) { return calls(llama).states.data(); },
};

struct Free {
    void operator()(dyspec_cache *cache) const { dyspec_cache_free(cache); }
};

std::unique_ptr<dyspec_cache, Free> make(Calls &calls, int32_t first_id, int32_t n_ids,
                                         int32_t n_snapshots = -1, int32_t n_state = 0) {
    return std::unique_ptr<dyspec_cache, Free>(dyspec_cache_create(
        &functions, &calls, &calls, 1, 8, 3, 4, first_id, n_ids, n_snapshots, n_state));
}

} // namespace

TEST(numbers_out_of_range_make_no_cache) {
    Calls told;
    const auto create = [&told](int32_t rows, int32_t outputs, int32_t nodes, int32_t ids) {
        return dyspec_cache_create(&functions, &told, &told, 1, rows, outputs, nodes, 0, ids, -1,
                                   0);
    };
    CHECK(create(0, 1, 1, 1) == nullptr && create(1, 0, 1, 1) == nullptr);
    CHECK(create(1, 1, 0, 1) == nullptr && create(1, 1, 1, 0) == nullptr);
    CHECK(make(told, -1, 1) == nullptr && make(told, 0, 2, 0) == nullptr);
    dyspec_cache_free(nullptr);
}

TEST(a_state_that_cannot_be_cut_is_dropped_in_its_own_block) {
    Calls told;
    const auto cache = make(told, 5, 2);
    const int32_t tokens[] = {1, 2, 3};
    CHECK(dyspec_cache_read(cache.get(), tokens, 3) == 0);
    told.can_cut = false;
    CHECK(dyspec_cache_rewind(cache.get(), 2) == 0);
    using Cut = std::array<int32_t, 2>;
    CHECK((told.cuts == std::vector<Cut>{{5, 2}, {5, 0}, {6, 0}}));
    CHECK(dyspec_cache_length(cache.get()) == 0);
}

TEST(what_is_there_already_costs_nothing_to_keep) {
    Calls told;
    const auto cache = make(told, 0, 2);
    const int32_t tokens[] = {1, 2, 3};
    CHECK(dyspec_cache_read(cache.get(), tokens, 3) == 0);
    CHECK(dyspec_cache_rewind(cache.get(), 3) == 3 && dyspec_cache_rewind(cache.get(), 9) == 3);
    CHECK(told.cuts.empty());
    CHECK(dyspec_cache_rewind(cache.get(), -1) == 0 && !told.cuts.empty());
}

TEST(a_timed_pass_wants_as_many_logits_as_there_may_be) {
    Calls told;
    const auto cache = make(told, 0, 2);
    double seconds = -1;
    for (const int32_t n : {1, 3, 8}) {
        CHECK(dyspec_cache_time_pass(cache.get(), n, &seconds) == 0 && seconds >= 0);
        CHECK(told.n_rows == n && told.n_outputs == std::min(n, 3));
    }
    CHECK(dyspec_cache_time_pass(cache.get(), 9, &seconds) == DYSPEC_E_ARGUMENT);
    CHECK(dyspec_cache_time_pass(cache.get(), 0, &seconds) == DYSPEC_E_ARGUMENT);
}

TEST(a_failure_is_remembered) {
    Calls told;
    const auto cache = make(told, 0, 2);
    const int32_t tokens[] = {1, 2, 3};
    told.code = 1;
    CHECK(dyspec_cache_read(cache.get(), tokens, 3) == DYSPEC_E_DECODE);
    int32_t n_rows = 0;
    CHECK(dyspec_cache_failure(cache.get(), &n_rows) == 1 && n_rows == 3);
    CHECK(dyspec_cache_length(cache.get()) == 0);
    CHECK(dyspec_cache_read(cache.get(), tokens, 0) == DYSPEC_E_ARGUMENT);
    CHECK(dyspec_cache_read(cache.get(), tokens, 9) == DYSPEC_E_ARGUMENT);
}

TEST(a_recurrent_state_takes_back_what_the_last_pass_has_snapshots_of) {
    Calls told;
    const auto cache = make(told, 5, 1, 2);
    using Cut = std::array<int32_t, 2>;
    const int32_t tokens[] = {1, 2, 3, 4};
    CHECK(dyspec_cache_read(cache.get(), tokens, 4) == 0);
    CHECK(dyspec_cache_rewind(cache.get(), 2) == 2);
    CHECK((told.cuts == std::vector<Cut>{{5, 2}}));
    CHECK(dyspec_cache_rewind(cache.get(), 1) == 0); // once only, and there is no copy
    CHECK((told.cuts == std::vector<Cut>{{5, 2}, {5, 0}}));
    CHECK(dyspec_cache_read(cache.get(), tokens, 4) == 0);
    CHECK(dyspec_cache_rewind(cache.get(), 1) == 0); // more than there are snapshots
    CHECK(dyspec_cache_read(cache.get(), tokens, 2) == 0);
    CHECK(dyspec_cache_read(cache.get(), tokens, 2) == 0);
    CHECK(dyspec_cache_rewind(cache.get(), 2) == 0); // all that the last pass has read
}

TEST(a_state_without_snapshots_reads_again_what_was_kept) {
    Calls told;
    const auto cache = make(told, 0, 1, 0);
    const int32_t tokens[] = {1, 2, 3, 4}, nodes[] = {0, 1, 2}, path[] = {0, 1};
    CHECK(dyspec_cache_read(cache.get(), tokens, 4) == 0);
    TreeArrays tree(4, 1);
    for (int32_t node = 0; node < 3; node++) {
        tree.parent[size_t(node)] = node - 1;
        tree.depth[size_t(node)] = node;
    }
    tree.tree.n_nodes = 3;
    for (int32_t step = 0; step < 3; step++) { // two more are owed each time
        CHECK(dyspec_cache_evaluate(cache.get(), &tree.tree, nodes, 3, nullptr, 0) == 3 + 2 * step);
        CHECK(dyspec_cache_commit(cache.get(), path, 2) == 2);
        CHECK(told.state == 3 && dyspec_cache_length(cache.get()) == 6 + 2 * step);
    }
    CHECK(dyspec_cache_rewind(cache.get(), 9) == 9 && told.state == 3); // of what is owed
    told.code = 2;
    CHECK(dyspec_cache_evaluate(cache.get(), &tree.tree, nodes, 3, nullptr, 0) == DYSPEC_E_DECODE);
    CHECK(dyspec_cache_length(cache.get()) == 9 && told.state == 3);
    told.code = 0;
    CHECK(dyspec_cache_read(cache.get(), tokens, 1) == 0); // after those in a pass of their own
    CHECK(told.n_rows == 1 && told.state == 9);
    CHECK(dyspec_cache_evaluate(cache.get(), &tree.tree, nodes, 1, nullptr, 0) == 1);
    CHECK(dyspec_cache_evaluate(cache.get(), &tree.tree, nodes + 1, 1, nullptr, 0) == 1);
    CHECK(dyspec_cache_commit(cache.get(), path, 1) == 1 && told.state == 10); // saved in between
}

TEST(a_recurrent_state_comes_back_from_its_copy) {
    Calls told;
    const auto cache = make(told, 0, 1, 2);
    const int32_t tokens[] = {1, 2, 3, 4};
    CHECK(dyspec_cache_save(cache.get(), 2) == 0); // nothing is there yet
    for (int32_t n = 1; n <= 3; n++) {
        CHECK(dyspec_cache_read(cache.get(), tokens, 4) == 0);
        CHECK(dyspec_cache_save(cache.get(), 2) == std::min(n, 2));
        CHECK(dyspec_cache_save(cache.get(), 2) == 0); // it is there already
    }
    CHECK(dyspec_cache_read(cache.get(), tokens, 4) == 0);
    told.code = 2;
    CHECK(dyspec_cache_read(cache.get(), tokens, 4) == DYSPEC_E_DECODE);
    CHECK(dyspec_cache_length(cache.get()) == 12 && told.state == 11);
    CHECK(dyspec_cache_rewind(cache.get(), 11) == 8 && told.state == 7);
    CHECK(dyspec_cache_rewind(cache.get(), 7) == 0); // the copy at 4 had to go
    told.code = 0;
    CHECK(dyspec_cache_read(cache.get(), tokens, 4) == 0);
    CHECK(dyspec_cache_save(cache.get(), 2) == 1);
    CHECK(dyspec_cache_read(cache.get(), tokens, 4) == 0);
    told.can_restore = false;
    CHECK(dyspec_cache_rewind(cache.get(), 4) == 0);
}

TEST(rows_of_a_head_take_the_states_of_what_stands_before_them) {
    Calls told;
    const auto cache = make(told, 0, 2, -1, 1);
    const int32_t tokens[] = {1, 2, 3};
    const float states[] = {0.5f, 1.5f, 2.5f, 3.5f};
    CHECK(dyspec_cache_set_states(cache.get(), states, -1) == DYSPEC_E_ARGUMENT);
    CHECK(dyspec_cache_set_states(cache.get(), states, 4) == 0);
    CHECK(dyspec_cache_read(cache.get(), tokens, 2) == 0);
    CHECK((told.taken == std::vector<float>{0.5f, 1.5f}));
    TreeArrays arrays(4, 1);
    std::copy_n(std::array<int32_t, 4>{7, 8, 9, 6}.begin(), 4, arrays.token.begin());
    std::copy_n(std::array<int32_t, 4>{-1, 0, 0, 1}.begin(), 4, arrays.parent.begin());
    std::copy_n(std::array<int32_t, 4>{0, 1, 1, 2}.begin(), 4, arrays.depth.begin());
    const int32_t root = 0, below[] = {1, 2}, last = 3;
    const dyspec_tree *tree = &arrays.tree;
    CHECK(dyspec_cache_evaluate(cache.get(), tree, &root, 1, tokens + 2, 1) == 2);
    CHECK((told.taken == std::vector<float>{2.5f, 3.5f})); // one token and the root
    CHECK(dyspec_cache_evaluate(cache.get(), tree, below, 2, nullptr, 0) == 2);
    CHECK((told.taken == std::vector<float>{107.0f, 107.0f})); // what the root's row has left
    CHECK(dyspec_cache_evaluate(cache.get(), tree, &last, 1, nullptr, 0) == 1);
    CHECK((told.taken == std::vector<float>{108.0f}));
    CHECK(dyspec_cache_commit(cache.get(), &root, 1) == 1);
    CHECK(dyspec_cache_read(cache.get(), tokens, 1) == 0);
    CHECK((told.taken == std::vector<float>{0.0f})); // nobody has said what stands there
}
