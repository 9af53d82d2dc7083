// Recurrent states: what a pass does to them cannot be cut off like cells of attention.
//
// llama.cpp may keep snapshots: a pass over n rows of a sequence writes the state after each of its
// last n_snapshots + 1 rows, and the next pass starts from the one that seq_rm has chosen.  It
// checks how many tokens are taken back, not whether the last pass has written that snapshot, and
// not whether that pass was aborted.  So we count, and where snapshots do not reach, a copy of the
// state goes back.
//
// Where it keeps none, a copy is made before every pass of which less may be kept than the whole.
// If a part is refused, it goes back, and the next pass first reads again what was kept (`owed`):
//
//     prefix  root  a  b  c      c is refused       prefix  root  a  b | root'  d  e
//           ^ copy                                        ^ state      owed   next pass
#include "cache.h"

#include <algorithm>

namespace dyspec {
namespace {

constexpr uint32_t WHOLE_STATE = 0;
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

// Bring back what was saved last within the step, of at most `length` tokens; the rest is owed.
bool restore_step(dyspec_cache &x, int32_t length) {
    while (x.n_step_states > 0) {
        const Checkpoint &saved = x.step_states[size_t(x.n_step_states - 1)];
        if (saved.length <= length && restore_state(x, saved)) {
            const int32_t first = x.step_states[0].length;
            const auto kept = x.read_since.begin() + (saved.length - first);
            x.owed.assign(kept, x.read_since.begin() + (length - first));
            x.read_since.erase(kept, x.read_since.end());
            return true;
        }
        x.n_step_states--;
    }
    return false;
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
    if (x.n_step_states > 0) { // whether or not it succeeded: some of it is to be read again then
        x.read_since.insert(x.read_since.end(), rows.token, rows.token + rows.n_tokens);
    }
}

void begin_step(dyspec_cache &x) {
    const size_t n = size_t(x.n_step_states);
    const bool is_saved = n > 0 && x.step_states[n - 1].length == x.n_read;
    if (is_saved) {
        std::swap(x.step_states[0], x.step_states[n - 1]);
    }
    x.n_step_states = int32_t(is_saved);
    x.read_since.clear();
}

void save_for_step(dyspec_cache &x) {
    const size_t n = size_t(x.n_step_states);
    if (n > 0 && x.step_states[n - 1].length == x.n_read) {
        return;
    }
    if (n == x.step_states.size()) {
        x.step_states.emplace_back();
    }
    x.n_step_states += int32_t(save_state(x, x.step_states[n]));
}

bool save_state(const dyspec_cache &x, Checkpoint &to) {
    to.length = x.n_read;
    if (x.n_read == 0) {
        return true; // there is none yet
    }
    to.bytes.resize(x.llama.state_seq_get_size_ext(x.context, x.first_id, STATE_ONLY));
    return !to.bytes.empty() &&
           x.llama.state_seq_get_data_ext(x.context, to.bytes.data(), to.bytes.size(), x.first_id,
                                          STATE_ONLY) == to.bytes.size();
}

bool restore_state(dyspec_cache &x, const Checkpoint &checkpoint) {
    const std::vector<uint8_t> &bytes = checkpoint.bytes;
    const bool done = (checkpoint.length == 0 ||
                       x.llama.state_seq_set_data_ext(x.context, bytes.data(), bytes.size(),
                                                      x.first_id, STATE_ONLY) == bytes.size()) &&
                      x.llama.seq_rm(x.memory, x.first_id, checkpoint.length, -1);
    if (done) {
        is_now(x, checkpoint.length);
    }
    return done;
}

int32_t cut_state(dyspec_cache &x, int32_t length) {
    const int32_t owed = int32_t(x.owed.size());
    if (!x.is_broken && x.n_read <= length) {
        x.owed.resize(size_t(std::min(owed, length - x.n_read)));
        return x.n_read + int32_t(x.owed.size());
    }
    forget_later_checkpoints(x, length);
    x.owed.clear();
    if (!x.is_broken && length > 0 && x.n_read - length <= x.n_removable &&
        x.llama.seq_rm(x.memory, x.first_id, length, -1)) {
        is_now(x, length);
        return length;
    }
    if (restore_step(x, length)) {
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
    const bool is_saved = !x.checkpoints.empty() && x.checkpoints.back().length == x.n_read;
    if (!is_recurrent(x) || n_kept < 1 || x.n_read < 1 || x.n_seen > 0 || is_saved) {
        return 0;
    }
    Checkpoint saved;
    if (!save_state(x, saved)) {
        return 0;
    }
    if (int32_t(x.checkpoints.size()) >= n_kept) {
        x.checkpoints.erase(x.checkpoints.begin());
    }
    x.checkpoints.push_back(std::move(saved));
    return int32_t(x.checkpoints.size());
}

int64_t dyspec_cache_state_size(dyspec_cache *cache) {
    const dyspec_cache &x = *cache;
    if (x.n_seen > 0 || x.n_past < 1 || !x.owed.empty()) {
        return 0;
    }
    return int64_t(x.llama.state_seq_get_size_ext(x.context, x.first_id, WHOLE_STATE));
}

int64_t dyspec_cache_state_get(dyspec_cache *cache, uint8_t *to, int64_t size) {
    const dyspec_cache &x = *cache;
    return int64_t(
        x.llama.state_seq_get_data_ext(x.context, to, size_t(size), x.first_id, WHOLE_STATE));
}

int32_t dyspec_cache_state_set(dyspec_cache *cache, const uint8_t *from, int64_t size,
                               int32_t length) {
    dyspec_cache &x = *cache;
    dyspec_cache_rewind(cache, 0);
    if (int64_t(x.llama.state_seq_set_data_ext(x.context, from, size_t(size), x.first_id,
                                               WHOLE_STATE)) != size) {
        x.llama.seq_rm(x.memory, x.first_id, 0, -1); // what it may have begun with
        return 0;
    }
    x.n_past = length;
    is_now(x, length);
    x.n_step_states = 0; // of another text
    x.read_since.clear();
    return length;
}

} // extern "C"
