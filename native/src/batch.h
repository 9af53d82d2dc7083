// Rows of a llama_batch.
#ifndef DYSPEC_BATCH_H
#define DYSPEC_BATCH_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

// Same layout as llama_batch (llama.cpp 0c1e570).
struct dyspec_batch {
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits;
};

namespace dyspec {

// A llama_batch and what it points to; room for `capacity` rows.
class Batch {
  public:
    // n_state: floats of a hidden state that each row takes beside its token; 0: none.
    explicit Batch(int32_t capacity, int32_t n_state = 0)
        : n_state_(n_state), states_(size_t(capacity) * size_t(n_state)), token_(size_t(capacity)),
          pos_(size_t(capacity)), n_seq_id_(size_t(capacity)), seq_id_(size_t(capacity)),
          logits_(size_t(capacity)), rows_{0,
                                           token_.data(),
                                           n_state > 0 ? states_.data() : nullptr,
                                           pos_.data(),
                                           n_seq_id_.data(),
                                           seq_id_.data(),
                                           logits_.data()} {}
    Batch(const Batch &) = delete;

    const dyspec_batch &rows() const { return rows_; }
    int32_t size() const { return rows_.n_tokens; }
    void clear() { rows_.n_tokens = 0; }

    // The hidden state that goes into a row; nullptr for zeros.
    void set_state(int32_t row, const float *state) {
        float *to = states_.data() + size_t(row) * size_t(n_state_);
        if (state == nullptr) {
            std::fill_n(to, n_state_, 0.0f);
        } else {
            std::copy_n(state, n_state_, to);
        }
    }

    // Rows for n consecutive tokens, which all carry the ids that `ids` points to; they live until
    // the batch is decoded.  `output`: the rows want logits.
    void add(const int32_t *tokens, int32_t n, int32_t first_pos, int32_t *ids, int32_t n_ids,
             bool output) {
        for (int32_t i = 0; i < n; i++) {
            const size_t row = size_t(rows_.n_tokens++);
            token_[row] = tokens[i];
            pos_[row] = first_pos + i;
            n_seq_id_[row] = n_ids;
            seq_id_[row] = ids;
            logits_[row] = output;
        }
    }

  private:
    int32_t n_state_;
    std::vector<float> states_;
    std::vector<int32_t> token_, pos_, n_seq_id_;
    std::vector<int32_t *> seq_id_;
    std::vector<int8_t> logits_;
    dyspec_batch rows_;
};

} // namespace dyspec

#endif
