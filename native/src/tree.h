// Adding to a tree and finding one's way in it.
#ifndef DYSPEC_TREE_H
#define DYSPEC_TREE_H

#include "dyspec.h"

#include <algorithm>
#include <vector>

namespace dyspec {

// Append the child of `node` that its candidate `rank` names.  `eog`, ascending: below a token
// that is one nothing may grow.
inline int32_t add_child(dyspec_tree &tree, int32_t node, int32_t rank, float confidence,
                         const std::vector<int32_t> &eog) {
    const int32_t child = tree.n_nodes++;
    tree.n_children[node]++;
    tree.token[child] = tree.cand_ids[int64_t(node) * tree.n_ranks + rank];
    tree.parent[child] = node;
    tree.depth[child] = tree.depth[node] + 1;
    tree.n_children[child] = 0;
    tree.confidence[child] = confidence;
    tree.value[child] = tree.value[node] * double(confidence);
    tree.terminal[child] = std::binary_search(eog.begin(), eog.end(), tree.token[child]);
    tree.n_cand[child] = -1;
    return child;
}

// The first child of `node` at or after place `from`, or -1.
inline int32_t next_child(const dyspec_tree &tree, int32_t node, int32_t from) {
    const int32_t *first = tree.parent, *end = tree.parent + tree.n_nodes;
    const int32_t *found = std::find(first + from, end, node);
    return found == end ? -1 : int32_t(found - first);
}

} // namespace dyspec

#endif
