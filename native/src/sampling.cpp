// The target's own token, the walk down a tree that agrees with it, and what is kept of the tree.
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

int32_t dyspec_verify(dyspec_verification *x, const int32_t *nodes, int32_t n, uint32_t index) {
    const dyspec_tree &tree = *x->tree;
    const int32_t code = dyspec_evaluate(x->target, &tree, nodes, n, nullptr, 0);
    if (code < 0) {
        return code;
    }
    const auto evaluated = Clock::now();
    int32_t bonus;
    const int32_t n_path = dyspec_match(x->sampler, &tree, x->target->row, index, x->path, &bonus);
    x->draw_seconds = seconds_since(evaluated);
    if (n_path < 0) {
        return n_path;
    }
    for (int32_t i = 1; i < n_path; i++) {
        x->tokens[i - 1] = tree.token[x->path[i]];
    }
    x->tokens[n_path - 1] = bonus;
    // A terminal node is not walked to, but the target agreed with it.
    const int32_t end = child_with(tree, x->path[n_path - 1], bonus);
    x->n_accepted = n_path - 1 + int32_t(end >= 0 && tree.terminal[end] && x->target->row[end]);
    dyspec_commit(x->target, x->path, n_path);
    if (x->draft != nullptr) {
        dyspec_commit(x->draft, x->path, n_path);
    }
    return n_path;
}

} // extern "C"
