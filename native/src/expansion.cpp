// Greedy growth of a token tree: a heap of slots, drawn best first, evaluated lazily.
#include "dyspec.h"

#include <algorithm>

namespace dyspec {
namespace {

// Whether a comes after b in the order of drawing; a heap under it has the best slot in front.
struct Later {
    const dyspec_expansion *x;

    bool operator()(const dyspec_slot &a, const dyspec_slot &b) const {
        if (x->by_layer && x->depth[a.node] != x->depth[b.node]) {
            return x->depth[a.node] > x->depth[b.node];
        }
        if (a.value != b.value) {
            return a.value < b.value;
        }
        return a.node != b.node ? a.node > b.node : a.rank > b.rank;
    }
};

// A second child is one leaf more, a first child takes its parent's place; leaves never vanish.
bool has_leaf_too_many(const dyspec_expansion *x, const dyspec_slot &slot) {
    return x->n_children[slot.node] > 0 && x->n_leaves >= x->max_leaves;
}

// A node that is not evaluated yet may have any number of candidates.
bool has_candidate(const dyspec_expansion *x, const dyspec_slot &slot) {
    const int32_t n_cand = x->n_cand[slot.node];
    return n_cand < 0 || slot.rank < std::min(n_cand, x->n_ranks);
}

void push(dyspec_expansion *x, int32_t node, int32_t rank) {
    const double value = x->value[node] * x->remaining[node];
    const dyspec_slot slot = {value, node, rank};
    if (!(value > x->threshold) || x->terminal[node] || x->depth[node] >= x->max_depth ||
        !has_candidate(x, slot)) {
        return;
    }
    x->heap[x->heap_size++] = slot;
    std::push_heap(x->heap, x->heap + x->heap_size, Later{x});
}

void pop(dyspec_expansion *x) {
    std::pop_heap(x->heap, x->heap + x->heap_size, Later{x});
    x->heap_size--;
}

void draw(dyspec_expansion *x, const dyspec_slot &slot) {
    const int64_t at = int64_t(slot.node) * x->n_ranks + slot.rank;
    const double prob = double(x->cand_probs[at]);
    const int32_t child = (*x->n_nodes)++;
    x->n_leaves += x->n_children[slot.node] > 0;
    x->n_children[slot.node]++;
    x->token[child] = x->cand_ids[at];
    x->parent[child] = slot.node;
    x->depth[child] = x->depth[slot.node] + 1;
    x->n_children[child] = 0;
    x->confidence[child] = x->cand_probs[at];
    x->value[child] = x->value[slot.node] * prob;
    x->terminal[child] = std::binary_search(x->eog, x->eog + x->n_eog, x->token[child]);
    x->n_cand[child] = -1;
    x->remaining[child] = 1.0;
    x->remaining[slot.node] -= prob;
    push(x, slot.node, slot.rank + 1);
    push(x, child, 0);
}

// The node of the best slot, and those that will most likely be wanted before the tree is full.
int32_t collect(dyspec_expansion *x, int32_t *pending) {
    const int32_t depth = x->depth[x->heap[0].node];
    dyspec_slot *end = x->scratch;
    for (int32_t i = 0; i < x->heap_size; i++) {
        if (!has_leaf_too_many(x, x->heap[i]) && has_candidate(x, x->heap[i])) {
            *end++ = x->heap[i];
        }
    }
    const int64_t wanted = std::min<int64_t>(end - x->scratch, x->max_nodes + 1 - *x->n_nodes);
    std::partial_sort(
        x->scratch, x->scratch + wanted, end,
        [later = Later{x}](const dyspec_slot &a, const dyspec_slot &b) { return later(b, a); });
    int32_t n = 0;
    for (int64_t i = 0; i < wanted; i++) {
        const int32_t node = x->scratch[i].node;
        if (x->n_cand[node] < 0 && (!x->by_layer || x->depth[node] == depth)) {
            pending[n++] = node;
        }
    }
    return n;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_expansion_reset(dyspec_expansion *x) {
    if (x->capacity < 1 || x->max_nodes < 0 || x->max_nodes >= x->capacity || x->max_leaves < 1 ||
        x->max_depth < 0 || x->n_ranks < 0 || x->n_eog < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    x->parent[0] = -1;
    x->depth[0] = 0;
    x->n_children[0] = 0;
    x->confidence[0] = 1.0f;
    x->value[0] = 1.0;
    x->terminal[0] = 0;
    x->n_cand[0] = -1;
    x->remaining[0] = 1.0;
    *x->n_nodes = 1;
    x->n_leaves = 1;
    x->heap_size = 0;
    push(x, 0, 0);
    return 0;
}

int32_t dyspec_expansion_run(dyspec_expansion *x, int32_t *pending) {
    while (*x->n_nodes <= x->max_nodes && x->heap_size > 0) {
        const dyspec_slot slot = x->heap[0];
        if (has_leaf_too_many(x, slot) || !has_candidate(x, slot) || x->terminal[slot.node]) {
            pop(x);
        } else if (x->n_cand[slot.node] < 0) {
            return collect(x, pending);
        } else {
            pop(x);
            draw(x, slot);
        }
    }
    return 0;
}

} // extern "C"
