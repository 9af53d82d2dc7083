// What a dyspec_cache holds.
#ifndef DYSPEC_CACHE_H
#define DYSPEC_CACHE_H

#include "batch.h"
#include "dyspec.h"

#include <memory>
#include <numeric>
#include <vector>

namespace dyspec {

// A recurrent state as it was when it had read `length` tokens.
struct Checkpoint {
    int32_t length = 0;
    std::vector<uint8_t> bytes;
};

} // namespace dyspec

// Ids count from 0 in here; what llama.cpp gets is `first_id` more.  Id 0 holds the prefix, the
// others share it up to `shared[id]`; what is missing there is copied when an id is needed.
struct dyspec_cache {
    dyspec_cache(const dyspec_llama &llama, void *context, void *memory, int32_t n_vocab,
                 int32_t max_rows, int32_t max_outputs, int32_t tree_capacity, int32_t first_id,
                 int32_t n_ids, int32_t n_snapshots, int32_t n_state)
        : llama(llama), context(context), memory(memory), n_vocab(n_vocab), max_rows(max_rows),
          max_outputs(max_outputs), tree_capacity(tree_capacity), first_id(first_id), n_ids(n_ids),
          n_snapshots(n_snapshots), n_state(n_state), batch(max_rows, n_state),
          own_ids(size_t(n_ids)), ids(size_t(max_outputs) * size_t(n_ids)),
          offsets(size_t(max_outputs) + 1), copies(3 * size_t(max_outputs)),
          seq(size_t(tree_capacity), -1), continued(size_t(tree_capacity)),
          row(size_t(tree_capacity)), row_of(size_t(tree_capacity)), shared(size_t(n_ids)),
          node_states(
              std::make_shared<std::vector<float>>(size_t(tree_capacity) * size_t(n_state))) {
        std::iota(own_ids.begin(), own_ids.end(), first_id);
    }

    const dyspec_llama llama;
    void *const context;
    void *const memory;
    const int32_t n_vocab;
    const int32_t max_rows;    // of a pass
    const int32_t max_outputs; // of them with logits
    const int32_t tree_capacity;
    const int32_t first_id;
    const int32_t n_ids;
    const int32_t n_snapshots; // of a recurrent state; -1: there is none
    const int32_t n_state;     // floats of the hidden state that a row takes beside its token
    dyspec::Batch batch;
    std::vector<int32_t> own_ids; // first_id, first_id + 1, ...
    // of the nodes of a pass: as dyspec_assign_sequences writes them, ids as llama.cpp knows them
    std::vector<int32_t> ids, offsets, copies;
    // per node of the tree; seq -1 and row 0: this step has not evaluated it
    std::vector<int32_t> seq;
    std::vector<uint8_t> continued; // a child goes on with the node's id
    std::vector<uint64_t> row;      // address of the node's logits
    std::vector<int32_t> row_of;    // scratch
    std::vector<int32_t> shared;    // by id
    std::vector<float> states;      // of a head: those that stand before the next tokens
    std::shared_ptr<std::vector<float>> node_states; // and that it left at each node
    size_t next_state = 0;                           // where among them the next token's is
    std::vector<int32_t> sizes; // ascending: rows of a pass are padded to the next of these
    int32_t n_past = 0;         // length of the prefix
    int32_t n_used = 1;         // ids that the tree has taken
    int32_t n_seen = 0;         // nodes beyond that were not evaluated
    int32_t first_row = 0;      // of the last pass: where its first node stands
    int32_t decode_code = 0;    // of the last pass
    int64_t n_passes = 0;
    int64_t n_rows = 0;
    double decode_seconds = 0;
    double sequence_seconds = 0; // of copying and removing sequence ids
    // a recurrent state, which a pass changes for good
    int32_t n_read = 0;      // tokens in it, those of the tree included
    int32_t n_removable = 0; // of them, by snapshots that the last pass has written
    bool is_broken = false;  // a pass has left it anywhere
    std::vector<dyspec::Checkpoint> checkpoints; // by length
    // and where there are no snapshots, what was saved within the last step
    std::vector<dyspec::Checkpoint> step_states; // by length; the first n_step_states of them hold
    int32_t n_step_states = 0;
    std::vector<int32_t> read_since; // tokens that the state has read since the first of them
    std::vector<int32_t> owed;       // the last ones of the prefix, which it has to read again
    dyspec::Checkpoint timed;        // what a timed pass brings back
};

namespace dyspec {

inline bool is_recurrent(const dyspec_cache &x) {
    return x.n_snapshots >= 0;
}

// Whether copies stand in for snapshots that llama.cpp does not keep.
inline bool needs_copies(const dyspec_cache &x) {
    return x.n_snapshots == 0;
}

// Take note of the pass over `x.batch`.
void state_was_read(dyspec_cache &x, bool succeeded);

// Forget what was saved within the step before; not the state as it is, if that came from there.
void begin_step(dyspec_cache &x);

// Save the state before a pass of which less may be kept than the whole.
void save_for_step(dyspec_cache &x);

// Bring state and cells back to `length` tokens, or to the nearest checkpoint before.  Returns what
// is left.
int32_t cut_state(dyspec_cache &x, int32_t length);

// Save the state as it is.  Returns whether llama.cpp has given it.
bool save_state(const dyspec_cache &x, Checkpoint &to);

// Returns whether state and cells are now as when it was saved.
bool restore_state(dyspec_cache &x, const Checkpoint &checkpoint);

} // namespace dyspec

#endif
