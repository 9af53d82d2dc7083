// How a tree's arrays lie in memory.
#include "tree.h"

#include <cstddef>
#include <iterator>

extern "C" {

int32_t dyspec_tree_layout(int32_t *layout, int32_t capacity) {
    const size_t entries[] = {
        sizeof(dyspec_tree),
        offsetof(dyspec_tree, token),
        offsetof(dyspec_tree, parent),
        offsetof(dyspec_tree, depth),
        offsetof(dyspec_tree, n_children),
        offsetof(dyspec_tree, confidence),
        offsetof(dyspec_tree, value),
        offsetof(dyspec_tree, terminal),
        offsetof(dyspec_tree, cand_ids),
        offsetof(dyspec_tree, cand_probs),
        offsetof(dyspec_tree, n_cand),
        offsetof(dyspec_tree, n_nodes),
        offsetof(dyspec_tree, capacity),
        offsetof(dyspec_tree, n_ranks),
    };
    const int32_t n = std::min(capacity, int32_t(std::size(entries)));
    std::copy_n(entries, n, layout);
    return n;
}

} // extern "C"
