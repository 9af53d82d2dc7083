// Rows of a llama_batch, and the flag that interrupts its evaluation.
#include "dyspec.h"

extern "C" {

int32_t dyspec_add_rows(dyspec_batch *batch, int32_t capacity, const int32_t *tokens, int32_t n,
                        int32_t first_pos, int32_t *ids, int32_t n_ids, int8_t output) {
    if (n < 0 || n_ids < 1 || batch->n_tokens < 0 || batch->n_tokens > capacity - n) {
        return DYSPEC_E_ARGUMENT;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t row = batch->n_tokens++;
        batch->token[row] = tokens[i];
        batch->pos[row] = first_pos + i;
        batch->n_seq_id[row] = n_ids;
        batch->seq_id[row] = ids;
        batch->logits[row] = output;
    }
    return batch->n_tokens;
}

bool dyspec_abort(void *flag) {
    return __atomic_load_n(static_cast<const int32_t *>(flag), __ATOMIC_RELAXED) != 0;
}

} // extern "C"
