// One model's cache: a committed prefix, which sequence 0 holds, and a token tree on top of it.
//
// llama.cpp lets row i see cell j if j belongs to i's first sequence id and stands no later, so
// the sets of ids are the tree mask.  An id that the tree takes must see the whole prefix; it gets
// what it lacks when it is taken, so ids that are not taken cost nothing.
#include "clock.h"
#include "dyspec.h"

#include <algorithm>

namespace dyspec {
namespace {

int32_t decode(dyspec_cache &x) {
    const auto started = Clock::now();
    x.decode_code = x.llama.decode(x.context, x.batch);
    if (x.decode_code != 0) {
        return DYSPEC_E_DECODE;
    }
    x.llama.synchronize(x.context);
    x.decode_seconds += seconds_since(started);
    x.n_passes++;
    x.n_rows += x.batch.n_tokens;
    return 0;
}

// Passes of their own for the tokens that do not fit beside n rows.  Returns how many those are.
int32_t read_ahead(dyspec_cache &x, const int32_t *unread, int32_t n_unread, int32_t n) {
    int32_t done = 0;
    while (n_unread - done > x.max_rows - n) {
        const int32_t piece = std::min(x.max_rows, n_unread - done);
        x.batch.n_tokens = 0;
        dyspec_add_rows(&x.batch, x.max_rows, unread + done, piece, x.n_past, x.ids, 1, 0);
        const int32_t code = decode(x);
        if (code < 0) {
            return code;
        }
        x.n_past += piece;
        done += piece;
    }
    return done;
}

// Give `id` what it lacks of `from` below position `end`.
void share(dyspec_cache &x, int32_t from, int32_t id, int32_t end) {
    if (x.shared[id] < end) {
        const auto started = Clock::now();
        x.llama.seq_cp(x.memory, from, id, x.shared[id], end);
        x.sequence_seconds += seconds_since(started);
    }
}

// Take `id` off all cells from position `first` on.
void cut(dyspec_cache &x, int32_t id, int32_t first) {
    const auto started = Clock::now();
    x.llama.seq_rm(x.memory, id, first, -1);
    x.sequence_seconds += seconds_since(started);
}

// Fill up with rows behind the last node, which nobody sees.  Returns their number.
int32_t pad(dyspec_cache &x, int32_t last, int32_t n_outputs) {
    const int32_t n = x.batch.n_tokens;
    const int32_t *size = std::lower_bound(x.sizes, x.sizes + x.n_sizes, n);
    if (size == x.sizes + x.n_sizes || *size > x.max_rows) {
        return 0;
    }
    for (int32_t row = n; row < *size; row++) {
        dyspec_add_rows(&x.batch, x.max_rows, x.batch.token + row - 1, 1, x.batch.pos[row - 1] + 1,
                        x.seq + last, 1, n_outputs + row - n < x.max_outputs);
    }
    return *size - n;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_evaluate(dyspec_cache *cache, const dyspec_tree *tree, const int32_t *nodes,
                        int32_t n, const int32_t *unread, int32_t n_unread) {
    dyspec_cache &x = *cache;
    if (n < 1 || n > x.max_outputs || n > x.max_rows || n_unread < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    const bool has_root = nodes[0] == 0;
    int32_t *ids = x.ids + x.n_seq; // before them stand 0..n_seq-1, for rows that are read
    const int32_t n_copies =
        dyspec_place(nodes, n, tree->parent, tree->depth, x.tree_capacity, x.seq, x.continued,
                     &x.n_used, x.n_seq, x.row_of, x.offsets, ids, x.copies);
    if (n_copies < 0) {
        return n_copies;
    }
    x.n_seen = std::max(x.n_seen, 1 + *std::max_element(nodes, nodes + n));
    const int32_t done = read_ahead(x, unread, n_unread, n);
    if (done < 0) {
        return done;
    }
    for (int32_t id = 1; id < x.n_used && has_root; id++) {
        share(x, 0, id, x.n_past);
    }
    const int32_t root_pos = x.n_past + n_unread - done;
    for (int32_t i = 0; i < n_copies; i++) {
        const int32_t *copy = x.copies + 3 * i; // from, to, last depth
        share(x, copy[0], copy[1], root_pos + copy[2] + 1);
    }
    x.batch.n_tokens = 0;
    dyspec_add_rows(&x.batch, x.max_rows, unread + done, n_unread - done, x.n_past, x.ids, x.n_used,
                    0);
    for (int32_t i = 0; i < n; i++) {
        dyspec_add_rows(&x.batch, x.max_rows, tree->token + nodes[i], 1,
                        root_pos + tree->depth[nodes[i]], ids + x.offsets[i],
                        x.offsets[i + 1] - x.offsets[i], 1);
    }
    const int32_t n_padding = pad(x, nodes[n - 1], n);
    const int32_t code = decode(x);
    if (code < 0) {
        return code;
    }
    if (n_padding > 0) {
        cut(x, x.seq[nodes[n - 1]], root_pos + tree->depth[nodes[n - 1]] + 1);
    }
    x.n_past = root_pos;
    const uint64_t rows = uint64_t(reinterpret_cast<uintptr_t>(x.llama.get_logits(x.context)));
    for (int32_t i = 0; i < n; i++) {
        x.row[nodes[i]] = rows + uint64_t(i) * sizeof(float) * uint64_t(x.n_vocab);
    }
    return x.batch.n_tokens;
}

int32_t dyspec_commit(dyspec_cache *cache, const int32_t *path, int32_t n) {
    dyspec_cache &x = *cache;
    const int32_t root_pos = x.n_past;
    int32_t n_kept = 0;
    while (n_kept < n && x.seq[path[n_kept]] >= 0) {
        n_kept++;
    }
    if (n_kept > 0) {
        const int32_t winner = x.seq[path[n_kept - 1]];
        for (int32_t id = 0; id < x.n_used; id++) {
            const int32_t end = id == winner ? root_pos + n_kept : root_pos + 1;
            cut(x, id, end);
            x.shared[id] = end;
        }
        x.n_past += n_kept;
        if (n_kept > 1) {
            share(x, winner, 0, x.n_past);
        }
    }
    dyspec_forget(cache, x.n_past);
    return n_kept;
}

void dyspec_forget(dyspec_cache *cache, int32_t length) {
    dyspec_cache &x = *cache;
    x.n_past = std::min(x.n_past, length);
    for (int32_t id = 1; id < x.n_seq; id++) {
        x.shared[id] = std::min(x.shared[id], x.n_past);
    }
    std::fill_n(x.seq, x.n_seen, -1);
    std::fill_n(x.continued, x.n_seen, uint8_t(0));
    std::fill_n(x.row, x.n_seen, uint64_t(0));
    x.n_seen = 0;
    x.n_used = 1;
}

} // extern "C"
