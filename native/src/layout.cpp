// How structs lie in memory that others have a copy of.
#include "batch.h"
#include "dyspec.h"
#include "sampling.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>

namespace dyspec {
namespace {

int32_t write(std::initializer_list<size_t> entries, int32_t *layout, int32_t capacity) {
    const int32_t n = std::min(capacity, int32_t(entries.size()));
    std::copy_n(entries.begin(), n, layout);
    return n;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_tree_layout(int32_t *layout, int32_t capacity) {
    return write(
        {
            sizeof(dyspec_tree),
            offsetof(dyspec_tree, token),
            offsetof(dyspec_tree, parent),
            offsetof(dyspec_tree, depth),
            offsetof(dyspec_tree, n_children),
            offsetof(dyspec_tree, confidence),
            offsetof(dyspec_tree, value),
            offsetof(dyspec_tree, terminal),
            offsetof(dyspec_tree, cand_ids),
            offsetof(dyspec_tree, cand_probs),
            offsetof(dyspec_tree, n_cand),
            offsetof(dyspec_tree, n_nodes),
            offsetof(dyspec_tree, capacity),
            offsetof(dyspec_tree, n_ranks),
        },
        layout, capacity);
}

int32_t dyspec_batch_layout(int32_t *layout, int32_t capacity) {
    return write(
        {
            sizeof(dyspec_batch),
            offsetof(dyspec_batch, n_tokens),
            offsetof(dyspec_batch, token),
            offsetof(dyspec_batch, embd),
            offsetof(dyspec_batch, pos),
            offsetof(dyspec_batch, n_seq_id),
            offsetof(dyspec_batch, seq_id),
            offsetof(dyspec_batch, logits),
        },
        layout, capacity);
}

int32_t dyspec_candidates_layout(int32_t *layout, int32_t capacity) {
    return write(
        {
            sizeof(dyspec_candidates),
            offsetof(dyspec_candidates, data),
            offsetof(dyspec_candidates, size),
            offsetof(dyspec_candidates, selected),
            offsetof(dyspec_candidates, sorted),
        },
        layout, capacity);
}

int32_t dyspec_candidate_layout(int32_t *layout, int32_t capacity) {
    return write(
        {
            sizeof(dyspec_candidate),
            offsetof(dyspec_candidate, id),
            offsetof(dyspec_candidate, logit),
            offsetof(dyspec_candidate, p),
        },
        layout, capacity);
}

} // extern "C"
