// Which sequence ids the nodes of a tree carry in a cache whose only mask is membership of them.
#include "dyspec.h"

#include <algorithm>

namespace dyspec {
namespace {

struct Assignment {
    const int32_t *nodes;
    int32_t n;
    const int32_t *parent;
    const int32_t *depth;
    int32_t capacity;
    int32_t *seq;
    uint8_t *continued;
    int32_t n_seq;
    int32_t *row_of;
    int32_t used;
    int32_t root_seq; // what seq[0] was

    bool has_root() const { return n > 0 && nodes[0] == 0; }
    bool is_fresh(int32_t node) const { return node != 0 && seq[node] != seq[parent[node]]; }

    // One id for every node.  Returns how many were placed; `error` says why not all.
    int32_t assign(int32_t *error) {
        for (int32_t row = 0; row < n; row++) {
            const int32_t node = nodes[row];
            *error = DYSPEC_E_ARGUMENT;
            if (node < 0 || node >= capacity || row_of[node] >= 0) {
                return row;
            }
            if (node == 0) {
                if (row != 0 || (seq[0] != 0 && seq[0] != -1)) {
                    return row;
                }
                seq[0] = 0;
                used = std::max(used, 1);
            } else {
                const int32_t p = parent[node];
                if (p < 0 || p >= capacity || seq[p] < 0 || seq[node] >= 0) {
                    return row;
                }
                if (!continued[p]) {
                    continued[p] = 1;
                    seq[node] = seq[p];
                } else if (used < n_seq) {
                    seq[node] = used++;
                } else {
                    *error = DYSPEC_E_SEQUENCES;
                    return row;
                }
            }
            row_of[node] = row;
        }
        *error = 0;
        return n;
    }

    void undo(int32_t n_placed) {
        for (int32_t row = n_placed - 1; row >= 0; row--) {
            const int32_t node = nodes[row];
            if (node == 0) {
                seq[0] = root_seq;
                continue;
            }
            if (!is_fresh(node)) {
                continued[parent[node]] = 0;
            }
            seq[node] = -1;
        }
    }

    // Calls visit(row) for the ancestors of this call, and returns the deepest earlier one.
    template <typename Visit> int32_t climb(int32_t node, Visit visit) const {
        int32_t at = parent[node];
        while (at > 0 && row_of[at] >= 0) {
            visit(row_of[at]);
            at = parent[at];
        }
        return at;
    }

    int32_t write(int32_t *offsets, int32_t *ids, int32_t *copies) const {
        // offsets[row + 1] counts, then points behind the row's last id, as usual for CSR.
        std::fill(offsets, offsets + n + 1, 0);
        for (int32_t row = 0; row < n; row++) {
            offsets[row + 1] += nodes[row] == 0 ? used : 1;
            if (is_fresh(nodes[row])) {
                climb(nodes[row], [&](int32_t above) { offsets[above + 1]++; });
            }
        }
        for (int32_t row = 0; row < n; row++) {
            offsets[row + 1] += offsets[row];
        }
        // Rows take their own id first; row_of's place in `ids` is found by filling backwards.
        for (int32_t row = 0; row < n; row++) {
            ids[offsets[row]] = seq[nodes[row]];
            for (int32_t i = offsets[row] + 1; i < offsets[row + 1]; i++) {
                ids[i] = nodes[row] == 0 ? i - offsets[row] : -1;
            }
        }
        int32_t n_copies = 0;
        for (int32_t row = 0; row < n; row++) {
            const int32_t node = nodes[row];
            if (!is_fresh(node)) {
                continue;
            }
            const int32_t fresh = seq[node];
            const int32_t cached = climb(node, [&](int32_t above) {
                int32_t *slot = ids + offsets[above] + 1;
                while (*slot >= 0) {
                    slot++;
                }
                *slot = fresh;
            });
            if (cached > 0 || !has_root()) {
                const int32_t copy[3] = {seq[cached], fresh, depth[cached]};
                std::copy(copy, copy + 3, copies + 3 * n_copies++);
            }
        }
        return n_copies;
    }
};

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_assign_sequences(const int32_t *nodes, int32_t n, const int32_t *parent,
                                const int32_t *depth, int32_t capacity, int32_t *seq,
                                uint8_t *continued, int32_t *n_used, int32_t n_seq, int32_t *row_of,
                                int32_t *offsets, int32_t *ids, int32_t *copies) {
    if (n < 0 || n_seq < 1 || capacity < 1 || *n_used < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    std::fill(row_of, row_of + capacity, -1);
    Assignment assignment{nodes,     n,     parent, depth,   capacity, seq,
                          continued, n_seq, row_of, *n_used, seq[0]};
    int32_t error = 0;
    const int32_t n_placed = assignment.assign(&error);
    if (error < 0) {
        assignment.undo(n_placed);
        return error;
    }
    *n_used = assignment.used;
    return assignment.write(offsets, ids, copies);
}

} // extern "C"
