// Greedy growth of a token tree: a heap of slots, drawn best first, evaluated lazily.
#include "dyspec.h"
#include "objects.h"
#include "tree.h"

#include <algorithm>
#include <vector>

namespace dyspec {
namespace {

struct Slot {
    double value; // the node's path product times the draft mass that is still undrawn there
    int32_t node;
    int32_t rank;
};

} // namespace
} // namespace dyspec

struct dyspec_expansion {
    dyspec_tree *tree;
    std::vector<int32_t> eog; // ascending
    int32_t max_nodes;
    int32_t max_leaves;
    bool by_layer;
    int32_t max_depth = 0;
    double threshold = 0.0;
    int32_t n_leaves = 0;
    std::vector<double> remaining; // draft mass, by node
    std::vector<dyspec::Slot> heap, scratch;
    std::vector<int32_t> order;

    dyspec_expansion(dyspec_tree *tree, int32_t max_nodes, int32_t max_leaves, bool by_layer,
                     const int32_t *ids, int32_t n)
        : tree(tree), eog(ids, ids + n), max_nodes(max_nodes), max_leaves(max_leaves),
          by_layer(by_layer), remaining(size_t(tree->capacity)), order(2 * size_t(tree->capacity)) {
        heap.reserve(size_t(tree->capacity) + 1);
        scratch.reserve(size_t(tree->capacity) + 1);
    }
};

namespace dyspec {
namespace {

// Whether a comes after b in the order of drawing; a heap under it has the best slot in front.
struct Later {
    const dyspec_expansion *x;

    bool operator()(const Slot &a, const Slot &b) const {
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
bool has_leaf_too_many(const dyspec_expansion *x, const Slot &slot) {
    return x->tree->n_children[slot.node] > 0 && x->n_leaves >= x->max_leaves;
}

// A node that is not evaluated yet may have any number of candidates.
bool has_candidate(const dyspec_expansion *x, const Slot &slot) {
    const int32_t n_cand = x->tree->n_cand[slot.node];
    return n_cand < 0 || slot.rank < std::min(n_cand, x->tree->n_ranks);
}

void push(dyspec_expansion *x, int32_t node, int32_t rank) {
    const dyspec_tree &tree = *x->tree;
    const double value = tree.value[node] * x->remaining[size_t(node)];
    const Slot slot = {value, node, rank};
    if (!(value > x->threshold) || tree.terminal[node] || tree.depth[node] >= x->max_depth ||
        !has_candidate(x, slot)) {
        return;
    }
    x->heap.push_back(slot);
    std::push_heap(x->heap.begin(), x->heap.end(), Later{x});
}

void pop(dyspec_expansion *x) {
    std::pop_heap(x->heap.begin(), x->heap.end(), Later{x});
    x->heap.pop_back();
}

void fill(dyspec_expansion *x, const Slot &slot) {
    dyspec_tree &tree = *x->tree;
    const float prob = tree.cand_probs[int64_t(slot.node) * tree.n_ranks + slot.rank];
    x->n_leaves += tree.n_children[slot.node] > 0;
    const int32_t child = add_child(tree, slot.node, slot.rank, prob, x->eog);
    x->remaining[size_t(child)] = 1.0;
    x->remaining[size_t(slot.node)] -= double(prob);
    push(x, slot.node, slot.rank + 1);
    push(x, child, 0);
}

// The node of the best slot, and those that will most likely be wanted before the tree is full.
int32_t collect(dyspec_expansion *x, int32_t *pending) {
    const dyspec_tree &tree = *x->tree;
    const int32_t depth = tree.depth[x->heap[0].node];
    x->scratch.clear();
    for (const Slot &slot : x->heap) {
        if (!has_leaf_too_many(x, slot) && has_candidate(x, slot)) {
            x->scratch.push_back(slot);
        }
    }
    const int64_t wanted =
        std::min<int64_t>(int64_t(x->scratch.size()), x->max_nodes + 1 - tree.n_nodes);
    std::partial_sort(x->scratch.begin(), x->scratch.begin() + wanted, x->scratch.end(),
                      [later = Later{x}](const Slot &a, const Slot &b) { return later(b, a); });
    int32_t n = 0;
    for (int64_t i = 0; i < wanted; i++) {
        const int32_t node = x->scratch[size_t(i)].node;
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

dyspec_expansion *dyspec_expansion_create(dyspec_tree *tree, int32_t max_nodes, int32_t max_leaves,
                                          int32_t by_layer, const int32_t *eog, int32_t n_eog) {
    return make<dyspec_expansion>(tree, max_nodes, max_leaves, by_layer != 0, eog, n_eog);
}

void dyspec_expansion_free(dyspec_expansion *x) {
    delete x;
}

int32_t dyspec_expansion_reset(dyspec_expansion *x, int32_t max_depth, double threshold) {
    dyspec_tree &tree = *x->tree;
    if (tree.capacity < 1 || x->max_nodes < 0 || x->max_nodes >= tree.capacity ||
        x->max_leaves < 1 || max_depth < 0 || tree.n_ranks < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    x->max_depth = max_depth;
    x->threshold = threshold;
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
    x->heap.clear();
    push(x, 0, 0);
    return 0;
}

int32_t dyspec_expansion_run(dyspec_expansion *x, int32_t *pending) {
    const dyspec_tree &tree = *x->tree;
    while (tree.n_nodes <= x->max_nodes && !x->heap.empty()) {
        const Slot slot = x->heap[0];
        if (has_leaf_too_many(x, slot) || !has_candidate(x, slot) || tree.terminal[slot.node]) {
            pop(x);
        } else if (tree.n_cand[slot.node] < 0) {
            return collect(x, pending);
        } else {
            pop(x);
            fill(x, slot);
        }
    }
    return 0;
}

int32_t dyspec_expansion_grow(dyspec_expansion *x, dyspec_proposer propose, void *data,
                              int32_t *nodes) {
    while (const int32_t n = dyspec_expansion_run(x, nodes)) {
        const int32_t code = propose(data, nodes, n);
        if (code < 0) {
            return code;
        }
    }
    return dyspec_depth_first(x->tree->parent, x->tree->n_nodes, x->order.data(), nodes);
}

int32_t dyspec_expansion_n_leaves(const dyspec_expansion *x) {
    return x->n_leaves;
}

} // extern "C"
