// The target's own token, and the walk down a tree that agrees with it.
#include "clock.h"
#include "dyspec.h"
#include "tree.h"

#include <cmath>

namespace dyspec {
namespace {

// Position of the largest logit, the first among equals; a NaN anywhere is an error.
int64_t largest(const dyspec_candidates &left) {
    int64_t best = DYSPEC_E_NOT_FINITE;
    float most = -INFINITY;
    for (int64_t i = 0; i < int64_t(left.size); i++) {
        if (std::isnan(left.data[i].logit)) {
            return DYSPEC_E_NOT_FINITE;
        }
        if (left.data[i].logit > most) {
            most = left.data[i].logit;
            best = i;
        }
    }
    return std::isfinite(most) ? best : int64_t(DYSPEC_E_NOT_FINITE);
}

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

void dyspec_apply(dyspec_sampler *x, const float *row, dyspec_candidates *left) {
    dyspec_fill_candidates(row, x->n_vocab, x->data);
    *left = {x->data, size_t(x->n_vocab), -1, false};
    if (x->chain != nullptr) {
        x->apply(x->chain, left); // it may point `data` at storage of its own
    }
}

int32_t dyspec_sample(dyspec_sampler *x, const float *row, uint32_t index) {
    const auto started = Clock::now();
    if (x->chain == nullptr) {
        const int32_t token = dyspec_argmax(row, x->n_vocab);
        x->rows_seconds += seconds_since(started);
        return token;
    }
    dyspec_candidates left;
    dyspec_apply(x, row, &left);
    const int64_t chosen =
        x->greedy ? largest(left) : dyspec_draw(left.data, int64_t(left.size), x->seed, index, 0);
    x->seconds += seconds_since(started);
    return chosen < 0 ? int32_t(chosen) : left.data[chosen].id;
}

void dyspec_accept(dyspec_sampler *x, int32_t token) {
    if (x->chain != nullptr) {
        x->accept(x->chain, token);
    }
}

int32_t dyspec_match(dyspec_sampler *x, const dyspec_tree *tree, const uint64_t *rows,
                     uint32_t index, int32_t *path, int32_t *bonus) {
    int32_t node = 0;
    int32_t n = 0;
    while (true) {
        path[n++] = node;
        const float *row = reinterpret_cast<const float *>(uintptr_t(rows[node]));
        const int32_t token = dyspec_sample(x, row, index++);
        if (token < 0) {
            return token;
        }
        dyspec_accept(x, token);
        const int32_t child = child_with(*tree, node, token);
        if (child < 0 || rows[child] == 0 || tree->terminal[child]) {
            *bonus = token;
            return n;
        }
        node = child;
    }
}

} // extern "C"
