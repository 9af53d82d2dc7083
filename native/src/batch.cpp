// Rows of a llama_batch, and the flag that interrupts its evaluation.
#include "dyspec.h"

extern "C" {

int32_t dyspec_fill_batch(const dyspec_batch *batch, int32_t n0, int32_t n, const int32_t *tokens,
                          const int32_t *positions, const int32_t *offsets, int32_t *ids,
                          int8_t output, int32_t n_seq) {
    if (n0 < 0 || n < 0 || n0 > batch->capacity - n) {
        return DYSPEC_E_ARGUMENT;
    }
    for (int32_t i = 0; i < n; i++) {
        if (offsets[i + 1] <= offsets[i]) {
            return DYSPEC_E_ARGUMENT;
        }
        // llama.cpp ends the process at an id that it does not have.
        for (int32_t j = offsets[i]; j < offsets[i + 1]; j++) {
            if (ids[j] < 0 || ids[j] >= n_seq) {
                return DYSPEC_E_SEQUENCES;
            }
        }
        const int32_t row = n0 + i;
        batch->token[row] = tokens[i];
        batch->pos[row] = positions[i];
        batch->n_seq_id[row] = offsets[i + 1] - offsets[i];
        batch->seq_id[row] = ids + offsets[i];
        batch->logits[row] = output;
    }
    return n0 + n;
}

bool dyspec_abort(void *flag) {
    return __atomic_load_n(static_cast<const int32_t *>(flag), __ATOMIC_RELAXED) != 0;
}

} // extern "C"
