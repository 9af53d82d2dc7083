// The draft phase of a step: a tree asks, a draft model answers, a pass at a time.
#include "clock.h"
#include "dyspec.h"

#include <algorithm>
#include <cmath>

namespace dyspec {
namespace {

// The nodes that the draft can read, into x.nodes; the others have no candidates.
int32_t readable(const dyspec_drafter &x, const int32_t *nodes, int32_t n) {
    const dyspec_tree &tree = *x.tree;
    int32_t n_readable = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t node = nodes[i];
        const int32_t above = tree.parent[node];
        const bool below_unreadable =
            node > 0 && tree.n_cand[above] == 0 && x.cache->seq[above] < 0;
        if (below_unreadable || tree.token[node] >= x.cache->n_vocab) {
            tree.n_cand[node] = 0;
        } else {
            x.nodes[n_readable++] = node;
        }
    }
    return n_readable;
}

// The largest logits of the i-th of the nodes of the last pass.
int32_t find_candidates(const dyspec_drafter &x, int32_t i, int32_t *ids, float *logits) {
    float lse = 0.0f;
    if (x.device == nullptr) {
        return dyspec_topk(x.cache->row + x.nodes[i], 1, x.vocab_limit, x.tree->n_ranks, ids,
                           logits, &lse, 1);
    }
    // The nodes stand behind what was read with them, and ask for logits as the first ones.
    const dyspec_batch &batch = x.cache->batch;
    const int8_t *first = std::find(batch.logits, batch.logits + batch.n_tokens, int8_t(1));
    const int32_t row = int32_t(first - batch.logits) + i;
    return dyspec_device_read(x.device, static_cast<llama_context *>(x.cache->context), &row, 1,
                              ids, logits, &lse);
}

// What must not be drafted, and what the user prefers, among a row's largest logits.
void adjust(const dyspec_drafter &x, const int32_t *ids, float *logits) {
    for (int32_t i = 0; i < x.tree->n_ranks; i++) {
        if (std::binary_search(x.excluded, x.excluded + x.n_excluded, ids[i])) {
            logits[i] = -INFINITY;
        }
        for (int32_t b = 0; b < x.n_bias; b++) {
            logits[i] += ids[i] == x.bias_ids[b] ? x.bias[b] : 0.0f;
        }
    }
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

int32_t dyspec_draft(void *drafter, const int32_t *nodes, int32_t n) {
    dyspec_drafter &x = *static_cast<dyspec_drafter *>(drafter);
    const dyspec_tree &tree = *x.tree;
    n = readable(x, nodes, n);
    if (n == 0) {
        return 0;
    }
    const auto started = Clock::now();
    const int32_t n_rows = dyspec_evaluate(x.cache, x.tree, x.nodes, n, x.unread, x.n_unread);
    if (n_rows < 0) {
        return n_rows;
    }
    x.n_unread = 0;
    const auto evaluated = Clock::now();
    for (int32_t i = 0; i < n; i++) {
        const int32_t node = x.nodes[i];
        const int64_t at = int64_t(node) * tree.n_ranks;
        int32_t *ids = tree.cand_ids + at;
        const int32_t code = find_candidates(x, i, ids, x.logits);
        if (code < 0) {
            return code <= DYSPEC_E_ROW ? code - i : code;
        }
        adjust(x, ids, x.logits);
        const uint32_t index = uint32_t(x.first_index + tree.depth[node]);
        const uint32_t stream = x.ranking.residual ? uint32_t(1 + node) : 0;
        dyspec_rank(&x.ranking, 1, tree.n_ranks, ids, x.logits, &index, &stream,
                    tree.cand_probs + at, tree.n_cand + node);
    }
    x.rows_seconds += seconds_since(evaluated);
    if (x.n_passes < x.max_passes) {
        x.pass_rows[x.n_passes] = n_rows;
        x.pass_seconds[x.n_passes++] = seconds_since(started);
    }
    return 0;
}

int32_t dyspec_expansion_grow(dyspec_expansion *x, dyspec_proposer propose, void *data,
                              int32_t *nodes) {
    while (const int32_t n = dyspec_expansion_run(x, nodes)) {
        const int32_t code = propose(data, nodes, n);
        if (code < 0) {
            return code;
        }
    }
    return dyspec_depth_first(x->tree->parent, x->tree->n_nodes, x->order, nodes);
}

int32_t dyspec_planner_grow(dyspec_planner *x, dyspec_proposer propose, void *data,
                            int32_t *nodes) {
    while (true) {
        const int32_t n = dyspec_plan(x, nodes);
        if (n < 0 || !x->drafts) {
            return n;
        }
        int32_t code = propose(data, nodes, n);
        if (code >= 0) {
            code = dyspec_enter(x, nodes, n);
        }
        if (code < 0) {
            return code;
        }
        x->left -= x->price;
        std::copy(x->later, x->later + 3, x->first);
    }
}

} // extern "C"
