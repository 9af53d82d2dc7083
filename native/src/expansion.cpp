// Greedy growth of a token tree: a heap of slots, drawn best first, evaluated lazily.
#include "dyspec.h"
#include "tree.h"

#include <algorithm>

namespace dyspec {
namespace {

// Whether a comes after b in the order of drawing; a heap under it has the best slot in front.
struct Later {
    const dyspec_expansion *x;

    bool operator()(const dyspec_slot &a, const dyspec_slot &b) const {
        const int32_t *depth = x->tree->depth;
        if (x->by_layer && depth[a.node] != depth[b.node]) {
            return depth[a.node] > depth[b.node];
        }
        if (a.value != b.value) {
            return a.value < b.value;
        }
        return a.node != b.node ? a.node > b.node : a.rank > b.rank;
    }
};

// A second child is one leaf more, a first child takes its parent's place; leaves never vanish.
bool has_leaf_too_many(const dyspec_expansion *x, const dyspec_slot &slot) {
    return x->tree->n_children[slot.node] > 0 && x->n_leaves >= x->max_leaves;
}

// A node that is not evaluated yet may have any number of candidates.
bool has_candidate(const dyspec_expansion *x, const dyspec_slot &slot) {
    const int32_t n_cand = x->tree->n_cand[slot.node];
    return n_cand < 0 || slot.rank < std::min(n_cand, x->tree->n_ranks);
}

void push(dyspec_expansion *x, int32_t node, int32_t rank) {
    const dyspec_tree &tree = *x->tree;
    const double value = tree.value[node] * x->remaining[node];
    const dyspec_slot slot = {value, node, rank};
    if (!(value > x->threshold) || tree.terminal[node] || tree.depth[node] >= x->max_depth ||
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
    dyspec_tree &tree = *x->tree;
    const float prob = tree.cand_probs[int64_t(slot.node) * tree.n_ranks + slot.rank];
    x->n_leaves += tree.n_children[slot.node] > 0;
    const int32_t child = add_child(tree, slot.node, slot.rank, prob, x->eog, x->n_eog);
    x->remaining[child] = 1.0;
    x->remaining[slot.node] -= double(prob);
    push(x, slot.node, slot.rank + 1);
    push(x, child, 0);
}

// The node of the best slot, and those that will most likely be wanted before the tree is full.
int32_t collect(dyspec_expansion *x, int32_t *pending) {
    const dyspec_tree &tree = *x->tree;
    const int32_t depth = tree.depth[x->heap[0].node];
    dyspec_slot *end = x->scratch;
    for (int32_t i = 0; i < x->heap_size; i++) {
        if (!has_leaf_too_many(x, x->heap[i]) && has_candidate(x, x->heap[i])) {
            *end++ = x->heap[i];
        }
    }
    const int64_t wanted = std::min<int64_t>(end - x->scratch, x->max_nodes + 1 - tree.n_nodes);
    std::partial_sort(
        x->scratch, x->scratch + wanted, end,
        [later = Later{x}](const dyspec_slot &a, const dyspec_slot &b) { return later(b, a); });
    int32_t n = 0;
    for (int64_t i = 0; i < wanted; i++) {
        const int32_t node = x->scratch[i].node;
        if (tree.n_cand[node] < 0 && (!x->by_layer || tree.depth[node] == depth)) {
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
    dyspec_tree &tree = *x->tree;
    if (tree.capacity < 1 || x->max_nodes < 0 || x->max_nodes >= tree.capacity ||
        x->max_leaves < 1 || x->max_depth < 0 || tree.n_ranks < 0 || x->n_eog < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    tree.parent[0] = -1;
    tree.depth[0] = 0;
    tree.n_children[0] = 0;
    tree.confidence[0] = 1.0f;
    tree.value[0] = 1.0;
    tree.terminal[0] = 0;
    tree.n_cand[0] = -1;
    x->remaining[0] = 1.0;
    tree.n_nodes = 1;
    x->n_leaves = 1;
    x->heap_size = 0;
    push(x, 0, 0);
    return 0;
}

int32_t dyspec_expansion_run(dyspec_expansion *x, int32_t *pending) {
    const dyspec_tree &tree = *x->tree;
    while (tree.n_nodes <= x->max_nodes && x->heap_size > 0) {
        const dyspec_slot slot = x->heap[0];
        if (has_leaf_too_many(x, slot) || !has_candidate(x, slot) || tree.terminal[slot.node]) {
            pop(x);
        } else if (tree.n_cand[slot.node] < 0) {
            return collect(x, pending);
        } else {
            pop(x);
            draw(x, slot);
        }
    }
    return 0;
}

} // extern "C"
