// Recurrent states: what a pass does to them cannot be cut off like cells of attention.
//
// llama.cpp may keep snapshots: a pass over n rows of a sequence writes the state after each of its
// last n_snapshots + 1 rows, and the next pass starts from the one that seq_rm has chosen.  It
// checks how many tokens are taken back, not whether the last pass has written that snapshot, and
// not whether that pass was aborted.  So we count, and where snapshots do not reach, a copy of the
// state goes back.
#include "cache.h"

#include <algorithm>

namespace dyspec {
namespace {

constexpr uint32_t STATE_ONLY = 1; // LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: without attention's cells

void forget_later_checkpoints(dyspec_cache &x, int32_t length) {
    while (!x.checkpoints.empty() && x.checkpoints.back().length > length) {
        x.checkpoints.pop_back();
    }
}

void is_now(dyspec_cache &x, int32_t n_read) {
    x.n_read = n_read;
    x.n_removable = 0;
    x.is_broken = false;
}

} // namespace

void state_was_read(dyspec_cache &x, bool succeeded) {
    if (!is_recurrent(x)) {
        return;
    }
    const dyspec_batch &rows = x.batch.rows();
    x.is_broken = !succeeded;
    x.n_read = rows.pos[rows.n_tokens - 1] + 1;
    // The state before the pass is in no snapshot.
    x.n_removable = std::min(rows.n_tokens - 1, x.n_snapshots);
}

Checkpoint saved_state(const dyspec_cache &x) {
    Checkpoint saved{x.n_read, {}};
    saved.bytes.resize(x.llama.state_seq_get_size_ext(x.context, x.first_id, STATE_ONLY));
    if (x.llama.state_seq_get_data_ext(x.context, saved.bytes.data(), saved.bytes.size(),
                                       x.first_id, STATE_ONLY) != saved.bytes.size()) {
        saved.bytes.clear();
    }
    return saved;
}

bool restore_state(dyspec_cache &x, const Checkpoint &checkpoint) {
    const std::vector<uint8_t> &bytes = checkpoint.bytes;
    const bool done = checkpoint.length > 0 && !bytes.empty() &&
                      x.llama.state_seq_set_data_ext(x.context, bytes.data(), bytes.size(),
                                                     x.first_id, STATE_ONLY) == bytes.size() &&
                      x.llama.seq_rm(x.memory, x.first_id, checkpoint.length, -1);
    if (done) {
        is_now(x, checkpoint.length);
    }
    return done;
}

int32_t cut_state(dyspec_cache &x, int32_t length) {
    if (!x.is_broken && x.n_read <= length) {
        return x.n_read;
    }
    forget_later_checkpoints(x, length);
    if (!x.is_broken && length > 0 && x.n_read - length <= x.n_removable &&
        x.llama.seq_rm(x.memory, x.first_id, length, -1)) {
        is_now(x, length);
        return length;
    }
    while (!x.checkpoints.empty()) {
        if (restore_state(x, x.checkpoints.back())) {
            return x.n_read;
        }
        x.checkpoints.pop_back();
    }
    x.llama.seq_rm(x.memory, x.first_id, 0, -1);
    is_now(x, 0);
    return 0;
}

} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_cache_save(dyspec_cache *cache, int32_t n_kept) {
    dyspec_cache &x = *cache;
    const bool is_saved = !x.checkpoints.empty() && x.checkpoints.back().length == x.n_past;
    if (!is_recurrent(x) || n_kept < 1 || x.n_past < 1 || x.n_seen > 0 || is_saved) {
        return 0;
    }
    Checkpoint saved = saved_state(x);
    if (saved.bytes.empty()) {
        return 0;
    }
    if (int32_t(x.checkpoints.size()) >= n_kept) {
        x.checkpoints.erase(x.checkpoints.begin());
    }
    x.checkpoints.push_back(std::move(saved));
    return int32_t(x.checkpoints.size());
}

} // extern "C"
