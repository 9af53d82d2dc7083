// The draft phase of a step: a tree asks, a draft model answers, a pass at a time.
#include "cache.h"
#include "clock.h"
#include "dyspec.h"
#include "objects.h"

#include <algorithm>
#include <cmath>
#include <vector>

struct dyspec_drafter {
    dyspec_cache *cache;
    int32_t vocab_limit;
    std::vector<int32_t> excluded; // ascending
    const dyspec_backend_sampler *sampler = nullptr;
    // of a draft with another vocabulary than the tree's; -1: the other one has no such token
    std::vector<int32_t> target_ids; // by the draft's id
    std::vector<int32_t> own_ids;    // by the tree's
    int32_t own_root = -1;
    // this step
    dyspec_tree *tree = nullptr;
    const dyspec_ranking *ranking = nullptr;
    dyspec_grammar *grammar = nullptr;
    std::vector<int32_t> unread; // committed with the first pass
    int32_t first_index = 0;
    std::vector<int32_t> pass_rows;
    std::vector<double> pass_seconds;
    double rows_seconds = 0.0; // total
    // working memory
    std::vector<int32_t> nodes;
    std::vector<int32_t> own_tokens; // of the tree's nodes
    std::vector<float> logits;

    dyspec_drafter(dyspec_cache *cache, int32_t vocab_limit, const int32_t *ids, int32_t n)
        : cache(cache), vocab_limit(vocab_limit), excluded(ids, ids + n) {}
};

namespace dyspec {
namespace {

// The tree as the draft reads it, which has its own ids for the tokens of `nodes`.
dyspec_tree own_tree(dyspec_drafter &x, const int32_t *nodes, int32_t n) {
    dyspec_tree own = *x.tree;
    if (x.target_ids.empty()) {
        return own;
    }
    x.own_tokens.resize(size_t(own.capacity), -1);
    for (int32_t i = 0; i < n; i++) {
        const size_t node = size_t(nodes[i]), token = size_t(own.token[node]);
        const int32_t known = token < x.own_ids.size() ? x.own_ids[token] : -1;
        x.own_tokens[node] = node == 0 ? x.own_root : known;
    }
    own.token = x.own_tokens.data();
    return own;
}

// The nodes that the draft can read, into x.nodes; the others have no candidates.
void find_readable(dyspec_drafter &x, const dyspec_tree &tree, const int32_t *nodes, int32_t n) {
    x.nodes.clear();
    for (int32_t i = 0; i < n; i++) {
        const int32_t node = nodes[i];
        const int32_t above = tree.parent[node];
        const bool below_unreadable =
            node > 0 && tree.n_cand[above] == 0 && x.cache->seq[size_t(above)] < 0;
        if (below_unreadable || tree.token[node] < 0 || tree.token[node] >= x.cache->n_vocab) {
            tree.n_cand[node] = 0;
        } else {
            x.nodes.push_back(node);
        }
    }
}

// What stands above x.nodes that another layer of the head has read, and this one has not.
void add_nodes_above(dyspec_drafter &x, const dyspec_tree &tree) {
    const size_t n = x.nodes.size();
    for (size_t i = 0; i < n; i++) {
        int32_t above = tree.parent[x.nodes[i]];
        while (above >= 0 && x.cache->seq[size_t(above)] < 0 &&
               std::find(x.nodes.begin(), x.nodes.end(), above) == x.nodes.end()) {
            x.nodes.push_back(above);
            above = tree.parent[above];
        }
    }
    std::sort(x.nodes.begin(), x.nodes.end()); // parents have smaller numbers
}

// The largest logits of the i-th of the nodes of the last pass, -inf for what must not be drafted;
// the ids are the tree's.
int32_t find_candidates(dyspec_drafter &x, size_t i, int32_t *ids) {
    float lse = 0.0f;
    int32_t code;
    if (x.sampler == nullptr) {
        code = dyspec_topk(x.cache->row.data() + x.nodes[i], 1, x.vocab_limit, x.tree->n_ranks, ids,
                           x.logits.data(), &lse, 1);
    } else {
        const int32_t row = x.cache->first_row + int32_t(i);
        code =
            dyspec_backend_sampler_read(x.sampler, static_cast<llama_context *>(x.cache->context),
                                        &row, 1, ids, x.logits.data(), &lse);
    }
    for (size_t rank = 0; rank < x.logits.size() && !x.excluded.empty(); rank++) {
        if (std::binary_search(x.excluded.begin(), x.excluded.end(), ids[rank])) {
            x.logits[rank] = -INFINITY;
        }
    }
    for (size_t rank = 0; rank < x.logits.size() && !x.target_ids.empty(); rank++) {
        ids[rank] = ids[rank] < 0 ? -1 : x.target_ids[size_t(ids[rank])];
        if (ids[rank] < 0) {
            x.logits[rank] = -INFINITY;
        }
    }
    return code;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

dyspec_drafter *dyspec_drafter_create(dyspec_cache *cache, int32_t vocab_limit,
                                      const int32_t *excluded, int32_t n_excluded) {
    return make<dyspec_drafter>(cache, vocab_limit, excluded, n_excluded);
}

void dyspec_drafter_free(dyspec_drafter *drafter) {
    delete drafter;
}

void dyspec_drafter_set_backend_sampler(dyspec_drafter *drafter,
                                        const dyspec_backend_sampler *sampler) {
    drafter->sampler = sampler;
}

void dyspec_drafter_translate(dyspec_drafter *drafter, const int32_t *target_ids, int32_t n_own,
                              const int32_t *own_ids, int32_t n_target) {
    drafter->target_ids.assign(target_ids, target_ids + n_own);
    drafter->own_ids.assign(own_ids, own_ids + n_target);
}

void dyspec_drafter_set_root(dyspec_drafter *drafter, int32_t own_id) {
    drafter->own_root = own_id;
}

void dyspec_drafter_start_step(dyspec_drafter *drafter, dyspec_tree *tree,
                               const dyspec_ranking *ranking, dyspec_grammar *grammar,
                               const int32_t *unread, int32_t n_unread, int32_t first_index) {
    dyspec_drafter &x = *drafter;
    x.tree = tree;
    x.ranking = ranking;
    x.grammar = grammar;
    if (grammar != nullptr) {
        dyspec_grammar_start_step(grammar);
    }
    x.unread.assign(unread, unread + n_unread);
    x.first_index = first_index;
    x.pass_rows.clear();
    x.pass_seconds.clear();
    x.logits.resize(size_t(tree->n_ranks));
}

int32_t dyspec_drafter_propose(void *drafter, const int32_t *nodes, int32_t n) {
    dyspec_drafter &x = *static_cast<dyspec_drafter *>(drafter);
    const dyspec_tree &tree = *x.tree;
    const dyspec_tree own = own_tree(x, nodes, n);
    find_readable(x, own, nodes, n);
    if (x.nodes.empty()) {
        return 0;
    }
    if (x.cache->n_state > 0) {
        add_nodes_above(x, own);
    }
    const auto started = Clock::now();
    const int32_t n_rows =
        dyspec_cache_evaluate(x.cache, &own, x.nodes.data(), int32_t(x.nodes.size()),
                              x.unread.data(), int32_t(x.unread.size()));
    if (n_rows < 0) {
        return n_rows;
    }
    x.unread.clear();
    const auto evaluated = Clock::now();
    for (size_t i = 0; i < x.nodes.size(); i++) {
        const int32_t node = x.nodes[i];
        if (tree.n_cand[node] >= 0) {
            continue;
        }
        const int64_t at = int64_t(node) * tree.n_ranks;
        int32_t *ids = tree.cand_ids + at;
        const int32_t code = find_candidates(x, i, ids);
        if (code < 0) {
            return code <= DYSPEC_E_ROW ? code - int32_t(i) : code;
        }
        if (x.grammar != nullptr) {
            dyspec_grammar_filter(x.grammar, x.tree, node, ids, x.logits.data(), tree.n_ranks);
        }
        const int32_t index = x.first_index + tree.depth[node];
        dyspec_rank(x.ranking, 1, tree.n_ranks, ids, x.logits.data(), &index, &node,
                    tree.cand_probs + at, tree.n_cand + node);
    }
    x.rows_seconds += seconds_since(evaluated);
    x.pass_rows.push_back(n_rows);
    x.pass_seconds.push_back(seconds_since(started));
    return 0;
}

int32_t dyspec_drafter_passes(const dyspec_drafter *drafter, int32_t *rows, double *seconds,
                              int32_t capacity) {
    const int32_t n = std::min(capacity, int32_t(drafter->pass_rows.size()));
    std::copy_n(drafter->pass_rows.begin(), n, rows);
    std::copy_n(drafter->pass_seconds.begin(), n, seconds);
    return n;
}

double dyspec_drafter_rows_seconds(const dyspec_drafter *drafter) {
    return drafter->rows_seconds;
}

} // extern "C"
