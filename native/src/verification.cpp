// The end of a step: the target's pass, the walk down the tree that it agrees with, the commits.
#include "cache.h"
#include "clock.h"
#include "dyspec.h"
#include "tree.h"

namespace dyspec {
namespace {

int32_t child_with(const dyspec_tree &tree, int32_t node, int32_t token) {
    int32_t child = tree.n_children[node] > 0 ? next_child(tree, node, node + 1) : -1;
    while (child >= 0 && tree.token[child] != token) {
        child = next_child(tree, node, child + 1);
    }
    return child;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_match(dyspec_sampler *x, const dyspec_tree *tree, const uint64_t *rows,
                     uint32_t index, int32_t *path, int32_t *tokens, int32_t *n_accepted) {
    int32_t n = 0;
    path[0] = 0;
    while (true) {
        const int32_t node = path[n];
        const float *row = reinterpret_cast<const float *>(uintptr_t(rows[node]));
        const int32_t token = dyspec_sampler_sample(x, row, index + uint32_t(n));
        if (token < 0) {
            return token;
        }
        dyspec_sampler_accept(x, &token, 1);
        tokens[n++] = token;
        const int32_t child = child_with(*tree, node, token);
        const bool is_checked = child >= 0 && rows[child] != 0;
        // A terminal node is accepted, but nothing is emitted below it: it is not committed.
        if (!is_checked || tree->terminal[child]) {
            *n_accepted = n - 1 + int32_t(is_checked);
            return n;
        }
        path[n] = child;
    }
}

int32_t dyspec_verify(dyspec_cache *target, dyspec_cache *draft, dyspec_sampler *sampler,
                      const dyspec_tree *tree, const int32_t *nodes, int32_t n, uint32_t index,
                      int32_t *path, int32_t *tokens, int32_t *n_accepted, double *draw_seconds) {
    const int32_t code = dyspec_cache_evaluate(target, tree, nodes, n, nullptr, 0);
    if (code < 0) {
        return code;
    }
    const auto evaluated = Clock::now();
    const int32_t n_path =
        dyspec_match(sampler, tree, target->row.data(), index, path, tokens, n_accepted);
    *draw_seconds = seconds_since(evaluated);
    if (n_path < 0) {
        return n_path;
    }
    dyspec_cache_commit(target, path, n_path);
    if (draft != nullptr) {
        dyspec_cache_commit(draft, path, n_path);
    }
    return n_path;
}

} // extern "C"
