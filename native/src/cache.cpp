// One model's cache: a committed prefix and a token tree on top of it, in a block of sequence ids.
//
// llama.cpp lets row i see cell j if j belongs to i's first sequence id and stands no later, so
// the sets of ids are the tree mask.  An id that the tree takes must see the whole prefix; it gets
// what it lacks when it is taken, so ids that are not taken cost nothing.
#include "cache.h"

#include "clock.h"
#include "objects.h"

#include <algorithm>

namespace dyspec {
namespace {

// Tokens that a state reads again beside the next root; of more it would do so in step after step.
constexpr int32_t MOST_OWED = 8;

int32_t decode(dyspec_cache &x) {
    x.decode_code = x.llama.decode(x.context, x.batch.rows());
    state_was_read(x, x.decode_code == 0);
    if (x.decode_code != 0) {
        return DYSPEC_E_DECODE;
    }
    x.llama.synchronize(x.context);
    return 0;
}

int32_t counted_decode(dyspec_cache &x) {
    const auto started = Clock::now();
    const int32_t code = decode(x);
    if (code == 0) {
        x.decode_seconds += seconds_since(started);
        x.n_passes++;
        x.n_rows += x.batch.size();
    }
    return code;
}

// Give `id` what it lacks of `from` below position `end`.
void share(dyspec_cache &x, int32_t from, int32_t id, int32_t end) {
    int32_t &has = x.shared[size_t(id)];
    if (has < end) {
        const auto started = Clock::now();
        x.llama.seq_cp(x.memory, x.first_id + from, x.first_id + id, has, end);
        x.sequence_seconds += seconds_since(started);
        has = end;
    }
}

// Take `id` off all cells from position `first` on.  Returns whether that was possible.
bool cut(dyspec_cache &x, int32_t id, int32_t first) {
    const auto started = Clock::now();
    const bool done = x.llama.seq_rm(x.memory, x.first_id + id, first, -1);
    x.sequence_seconds += seconds_since(started);
    x.shared[size_t(id)] = std::min(x.shared[size_t(id)], first);
    return done;
}

// Forget the tree, whose cells are gone.
void forget(dyspec_cache &x) {
    std::fill_n(x.seq.begin(), x.n_seen, -1);
    std::fill_n(x.continued.begin(), x.n_seen, uint8_t(0));
    std::fill_n(x.row.begin(), x.n_seen, uint64_t(0));
    x.n_seen = 0;
    x.n_used = 1;
}

// Remove the tree and, of the prefix, what stands at `length` or later.  A model whose state cannot
// be cut so far loses more.
void cut_all(dyspec_cache &x, int32_t length) {
    bool done = true;
    if (is_recurrent(x)) {
        x.n_past = std::min(x.n_past, cut_state(x, length));
        forget(x);
        return;
    }
    for (int32_t id = 0; id < x.n_ids; id++) {
        if (id < x.n_used || x.shared[size_t(id)] > length) {
            done = cut(x, id, length) && done;
        }
    }
    if (!done) {
        length = 0;
        for (int32_t id = 0; id < x.n_ids; id++) {
            cut(x, id, 0);
        }
    }
    x.n_past = std::min(x.n_past, length);
    forget(x);
}

// The hidden state before the i-th token that is still to be read; nullptr where it is not known.
const float *state_before(const dyspec_cache &x, int32_t i) {
    const size_t at = (x.next_state + size_t(i)) * size_t(x.n_state);
    return at < x.states.size() ? x.states.data() + at : nullptr;
}

void set_states_of_tokens(dyspec_cache &x, int32_t n) {
    for (int32_t i = 0; i < n && x.n_state > 0; i++) {
        x.batch.set_state(i, state_before(x, i));
    }
}

// Of a head, a node that has its candidates was read by another layer; it is read for what is
// below.
bool is_asked_for(const dyspec_cache &x, const dyspec_tree &tree, int32_t node) {
    return x.n_state == 0 || tree.n_cand[node] < 0;
}

// A node takes the state that its parent's row has left.
void set_states_of_nodes(dyspec_cache &x, const dyspec_tree &tree, const int32_t *nodes, int32_t n,
                         int32_t n_unread) {
    for (int32_t i = 0; i < n && x.n_state > 0; i++) {
        const int64_t above = int64_t(tree.parent[nodes[i]]) * x.n_state;
        x.batch.set_state(x.first_row + i, nodes[i] == 0 ? state_before(x, n_unread)
                                                         : x.node_states->data() + above);
    }
    for (int32_t row = x.first_row + n; row < x.batch.size() && x.n_state > 0; row++) {
        x.batch.set_state(row, nullptr);
    }
}

void keep_states_of_nodes(dyspec_cache &x, const dyspec_tree &tree, const int32_t *nodes,
                          int32_t n) {
    const float *rows = x.n_state > 0 ? x.llama.get_embeddings_nextn(x.context) : nullptr;
    for (int32_t i = 0; i < n && rows != nullptr; i++) {
        if (is_asked_for(x, tree, nodes[i])) {
            std::copy_n(rows + int64_t(x.first_row + i) * x.n_state, x.n_state,
                        x.node_states->data() + int64_t(nodes[i]) * x.n_state);
        }
    }
}

// A pass over tokens behind the prefix, without logits.
int32_t read(dyspec_cache &x, const int32_t *tokens, int32_t n, int32_t (*pass)(dyspec_cache &)) {
    x.batch.clear();
    x.batch.add(tokens, n, x.n_past, x.own_ids.data(), 1, false);
    set_states_of_tokens(x, n);
    const int32_t code = pass(x);
    if (code == 0) {
        x.n_past += n;
        x.next_state += size_t(n);
    }
    return code;
}

// A pass of its own for what a recurrent state has to read again.
int32_t read_owed(dyspec_cache &x, int32_t (*pass)(dyspec_cache &)) {
    if (x.owed.empty()) {
        return 0;
    }
    x.batch.clear();
    x.batch.add(x.owed.data(), int32_t(x.owed.size()), x.n_read, x.own_ids.data(), 1, false);
    const int32_t code = pass(x);
    if (code == 0) {
        x.owed.clear();
    }
    return code;
}

// Make ready for a pass over n nodes, of which less may be kept.
int32_t prepare_state(dyspec_cache &x, const int32_t *nodes, int32_t n, int32_t n_unread) {
    const int32_t n_owed = int32_t(x.owed.size());
    if (n_owed > MOST_OWED || n_owed + n_unread + n > x.max_rows) {
        const int32_t code = read_owed(x, counted_decode);
        if (code < 0) {
            return code;
        }
    }
    if (nodes[0] == 0) {
        begin_step(x);
    }
    if (needs_copies(x) && (nodes[0] != 0 || n > 1)) { // the root is always kept
        save_for_step(x);
    }
    return 0;
}

// Passes of their own for the tokens that do not fit beside n rows.  Returns how many those are.
int32_t read_ahead(dyspec_cache &x, const int32_t *unread, int32_t n_unread, int32_t n) {
    int32_t done = 0;
    while (n_unread - done > x.max_rows - n) {
        const int32_t piece = std::min(x.max_rows, n_unread - done);
        const int32_t code = read(x, unread + done, piece, counted_decode);
        if (code < 0) {
            return code;
        }
        done += piece;
    }
    return done;
}

// Fill up with rows behind the last one, which nobody sees.  Returns their number.
int32_t pad(dyspec_cache &x, int32_t n_outputs) {
    const int32_t n = x.batch.size();
    const auto size = std::lower_bound(x.sizes.begin(), x.sizes.end(), n);
    if (size == x.sizes.end() || *size > x.max_rows ||
        (is_recurrent(x) && *size > x.n_snapshots + 1)) {
        return 0;
    }
    const dyspec_batch &rows = x.batch.rows();
    for (int32_t row = n; row < *size; row++) {
        x.batch.add(rows.token + row - 1, 1, rows.pos[row - 1] + 1, rows.seq_id[row - 1], 1,
                    n_outputs + row - n < x.max_outputs);
    }
    return *size - n;
}

// One pass over nodes that have their ids, and over what is still unread.
int32_t evaluate(dyspec_cache &x, const dyspec_tree &tree, const int32_t *nodes, int32_t n,
                 int32_t n_copies, const int32_t *unread, int32_t n_unread) {
    const int32_t ready = is_recurrent(x) ? prepare_state(x, nodes, n, n_unread) : 0;
    const int32_t done = ready < 0 ? ready : read_ahead(x, unread, n_unread, n);
    if (done < 0) {
        return done;
    }
    for (int32_t id = 1; id < x.n_used && nodes[0] == 0; id++) {
        share(x, 0, id, x.n_past);
    }
    const int32_t root_pos = x.n_past + n_unread - done;
    for (int32_t i = 0; i < n_copies; i++) {
        const int32_t *copy = x.copies.data() + 3 * i; // from, to, last depth
        share(x, copy[0], copy[1], root_pos + copy[2] + 1);
    }
    x.batch.clear();
    const int32_t n_owed = int32_t(x.owed.size());
    x.batch.add(x.owed.data(), n_owed, x.n_past - n_owed, x.own_ids.data(), 1, false);
    x.batch.add(unread + done, n_unread - done, x.n_past, x.own_ids.data(), x.n_used, false);
    x.first_row = x.batch.size();
    int32_t n_outputs = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t *first = x.offsets.data() + i;
        const bool output = is_asked_for(x, tree, nodes[i]);
        x.batch.add(tree.token + nodes[i], 1, root_pos + tree.depth[nodes[i]],
                    x.ids.data() + first[0], first[1] - first[0], output);
        n_outputs += output;
    }
    const int32_t n_padding = pad(x, n_outputs);
    set_states_of_tokens(x, x.first_row);
    set_states_of_nodes(x, tree, nodes, n, x.first_row);
    const int32_t code = counted_decode(x);
    if (code < 0) {
        return code;
    }
    if (n_padding > 0 && !is_recurrent(x)) { // a state is taken back once, by the commit
        const int32_t last = nodes[n - 1];
        cut(x, x.seq[size_t(last)], root_pos + tree.depth[last] + 1);
    }
    keep_states_of_nodes(x, tree, nodes, n);
    x.owed.clear();
    x.next_state += size_t(root_pos - x.n_past);
    x.n_past = root_pos;
    if (nodes[0] == 0) { // whoever carries the root has read what stands before it
        std::fill(x.shared.begin(), x.shared.begin() + x.n_used, root_pos);
    }
    uint64_t row = uint64_t(reinterpret_cast<uintptr_t>(x.llama.get_logits(x.context)));
    for (int32_t i = 0; i < n; i++) {
        if (is_asked_for(x, tree, nodes[i])) {
            x.row[size_t(nodes[i])] = row;
            row += sizeof(float) * uint64_t(x.n_vocab);
        }
    }
    return x.batch.size();
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

dyspec_cache *dyspec_cache_create(const dyspec_llama *llama, void *context, void *memory,
                                  int32_t n_vocab, int32_t max_rows, int32_t max_outputs,
                                  int32_t tree_capacity, int32_t first_id, int32_t n_ids,
                                  int32_t n_snapshots, int32_t n_state) {
    if (n_vocab < 1 || max_rows < 1 || max_outputs < 1 || tree_capacity < 1 || first_id < 0 ||
        n_ids < 1 || n_state < 0 || (n_snapshots >= 0 && n_ids > 1)) {
        return nullptr;
    }
    return make<dyspec_cache>(*llama, context, memory, n_vocab, max_rows, max_outputs,
                              tree_capacity, first_id, n_ids, n_snapshots, n_state);
}

void dyspec_cache_free(dyspec_cache *cache) {
    delete cache;
}

int32_t dyspec_cache_pad_to(dyspec_cache *cache, const int32_t *sizes, int32_t n) {
    if (n < 0 || !std::is_sorted(sizes, sizes + n)) {
        return DYSPEC_E_ARGUMENT;
    }
    cache->sizes.assign(sizes, sizes + n);
    return 0;
}

int32_t dyspec_cache_set_states(dyspec_cache *cache, const float *states, int32_t n) {
    if (n < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    cache->states.assign(states, states + int64_t(n) * cache->n_state);
    cache->next_state = 0;
    return 0;
}

void dyspec_cache_share_states(dyspec_cache *cache, const dyspec_cache *with) {
    cache->node_states = with->node_states;
}

int32_t dyspec_cache_read(dyspec_cache *cache, const int32_t *tokens, int32_t n) {
    dyspec_cache &x = *cache;
    if (n < 1 || n > x.max_rows || x.n_seen > 0) {
        return DYSPEC_E_ARGUMENT;
    }
    int32_t code = read_owed(x, decode);
    if (code == 0) {
        begin_step(x);
        code = read(x, tokens, n, decode);
    }
    if (code < 0) {
        cut_all(x, x.n_past);
    }
    return code;
}

int32_t dyspec_cache_evaluate(dyspec_cache *cache, const dyspec_tree *tree, const int32_t *nodes,
                              int32_t n, const int32_t *unread, int32_t n_unread) {
    dyspec_cache &x = *cache;
    const bool is_too_deep = is_recurrent(x) && !needs_copies(x) && n > x.n_snapshots + 1;
    if (n < 1 || n > x.max_outputs || n > x.max_rows || n_unread < 0 || is_too_deep) {
        return DYSPEC_E_ARGUMENT;
    }
    const int32_t n_copies = dyspec_assign_sequences(
        nodes, n, tree->parent, tree->depth, x.tree_capacity, x.seq.data(), x.continued.data(),
        &x.n_used, x.n_ids, x.row_of.data(), x.offsets.data(), x.ids.data(), x.copies.data());
    if (n_copies < 0) {
        return n_copies;
    }
    x.n_seen = std::max(x.n_seen, 1 + *std::max_element(nodes, nodes + n));
    std::for_each_n(x.ids.begin(), x.offsets[size_t(n)], [&x](int32_t &id) { id += x.first_id; });
    const int32_t n_rows = evaluate(x, *tree, nodes, n, n_copies, unread, n_unread);
    if (n_rows < 0) {
        cut_all(x, x.n_past);
    }
    return n_rows;
}

int32_t dyspec_cache_commit(dyspec_cache *cache, const int32_t *path, int32_t n) {
    dyspec_cache &x = *cache;
    const int32_t root_pos = x.n_past;
    int32_t n_kept = 0;
    while (n_kept < n && x.seq[size_t(path[n_kept])] >= 0) {
        n_kept++;
    }
    if (is_recurrent(x)) {
        x.n_past = cut_state(x, root_pos + n_kept);
    } else if (n_kept > 0) {
        const int32_t winner = x.seq[size_t(path[n_kept - 1])];
        for (int32_t id = 0; id < x.n_used; id++) {
            const int32_t end = id == winner ? root_pos + n_kept : root_pos + 1;
            cut(x, id, end);
            x.shared[size_t(id)] = end;
        }
        x.n_past += n_kept;
        share(x, winner, 0, x.n_past);
    }
    x.next_state += size_t(n_kept);
    forget(x);
    return n_kept;
}

int32_t dyspec_cache_rewind(dyspec_cache *cache, int32_t length) {
    if (length < cache->n_past || cache->n_seen > 0) {
        cut_all(*cache, std::max(length, 0));
    }
    return cache->n_past;
}

int32_t dyspec_cache_time_pass(dyspec_cache *cache, int32_t n_rows, double *seconds) {
    dyspec_cache &x = *cache;
    if (n_rows < 1 || n_rows > x.max_rows) {
        return DYSPEC_E_ARGUMENT;
    }
    const int32_t token = 0;
    const int32_t first = is_recurrent(x) ? x.n_read : x.n_past;
    const size_t n_since = x.read_since.size();
    const auto before = Clock::now();
    const bool is_saved = is_recurrent(x) && save_state(x, x.timed);
    x.batch.clear();
    for (int32_t row = 0; row < n_rows; row++) {
        x.batch.add(&token, 1, first + row, x.own_ids.data(), 1, row >= n_rows - x.max_outputs);
        if (x.n_state > 0) {
            x.batch.set_state(row, nullptr);
        }
    }
    x.first_row = std::max(0, n_rows - x.max_outputs);
    const auto started = Clock::now();
    const int32_t code = decode(x);
    *seconds = seconds_since(started);
    x.read_since.resize(n_since);
    if (!is_saved || !restore_state(x, x.timed)) {
        cut_all(x, x.n_past);
    }
    if (needs_copies(x) && n_rows > 1) { // as in a step of which a part is refused
        *seconds = seconds_since(before);
    }
    return code < 0 ? code : x.n_past;
}

int32_t dyspec_cache_length(const dyspec_cache *cache) {
    return cache->n_past;
}

int32_t dyspec_cache_failure(const dyspec_cache *cache, int32_t *n_rows) {
    *n_rows = cache->batch.size();
    return cache->decode_code;
}

int64_t dyspec_cache_n_passes(const dyspec_cache *cache) {
    return cache->n_passes;
}

int64_t dyspec_cache_n_rows(const dyspec_cache *cache) {
    return cache->n_rows;
}

double dyspec_cache_decode_seconds(const dyspec_cache *cache) {
    return cache->decode_seconds;
}

double dyspec_cache_sequence_seconds(const dyspec_cache *cache) {
    return cache->sequence_seconds;
}

void dyspec_cache_rows(const dyspec_cache *cache, uint64_t *rows) {
    std::copy(cache->row.begin(), cache->row.end(), rows);
}

} // extern "C"
