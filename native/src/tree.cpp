// The order in which the nodes of a tree are checked.
#include "tree.h"

extern "C" {

int32_t dyspec_depth_first(const int32_t *parent, int32_t n, int32_t *scratch, int32_t *order) {
    int32_t *size = scratch;     // of the subtree below and with each node
    int32_t *next = scratch + n; // where the node's next child's subtree begins
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && (parent[i] < 0 || parent[i] >= i)) {
            return DYSPEC_E_ARGUMENT;
        }
        size[i] = 1;
    }
    for (int32_t i = n - 1; i > 0; i--) {
        size[parent[i]] += size[i];
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t at = 0;
        if (i > 0) {
            at = next[parent[i]];
            next[parent[i]] += size[i];
        }
        order[at] = i;
        next[i] = at + 1;
    }
    return n;
}

} // extern "C"
