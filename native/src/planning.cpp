// What to do next with a tree at measured prices: draft some of its nodes, or verify some.
#include "dyspec.h"
#include "objects.h"
#include "tree.h"

#include <algorithm>
#include <functional>
#include <vector>

struct dyspec_planner {
    dyspec_tree *tree;
    std::vector<int32_t> eog; // ascending
    int32_t n_rows;
    int32_t n_children_max;
    int32_t max_leaves;
    float max_confidence;
    // prices of this step
    std::vector<double> target;
    double acceptance = 0.0;
    double worth = 0.0;
    double left = 0.0;
    double first[3] = {};
    double later[3] = {};
    int32_t max_depth = 0;
    bool may_draft = false;
    // working memory
    double price = 0.0;                   // of the draft pass that is to come
    std::vector<int32_t> order;           // [capacity]
    std::vector<int32_t> chosen, scratch; // [n_rows], [3 * n_rows]
    std::vector<double> values;           // [n_rows]
    std::vector<uint8_t> flags;           // [capacity]

    dyspec_planner(dyspec_tree *tree, int32_t n_rows, int32_t n_children_max, int32_t max_leaves,
                   float max_confidence, const int32_t *ids, int32_t n)
        : tree(tree), eog(ids, ids + n), n_rows(n_rows), n_children_max(n_children_max),
          max_leaves(max_leaves), max_confidence(max_confidence), target(size_t(n_rows) + 1),
          order(size_t(tree->capacity)), chosen(size_t(n_rows)), scratch(3 * size_t(n_rows)),
          values(size_t(n_rows)), flags(size_t(tree->capacity)) {}
};

namespace dyspec {
namespace {

constexpr int32_t WIDTHS[] = {1, 4, 16};          // nodes of a draft pass that are considered
constexpr int32_t DEPTHS[] = {1, 2, 3, 4, 8, 16}; // how far the look-ahead goes below them
constexpr int32_t MAX_WIDTH = 16;
constexpr int32_t MAX_DEPTH = 16;

enum flag : uint8_t {
    CHOSEN = 1,      // a candidate for the target's pass
    DRAFTED = 2,     // the draft's cache holds it, or will
    HAS_CHOSEN = 4,  // a chosen child goes on with this node's leaf
    HAS_DRAFTED = 8, // a drafted child goes on with this node's branch
    REPLACED = 16    // the draft is hoped to say the same
};

struct Best {
    double value;
    int32_t n;
};

// The best number of nodes to verify if their P were values[0 .. n_values), in descending order.
Best best_of(const dyspec_planner *x, const double *values, int32_t n_values, double left) {
    Best best = {-x->worth * x->target[1], 0};
    double sum = 0.0;
    const int32_t last = std::min(n_values, x->n_rows - 1);
    for (int32_t n = 1; n <= last; n++) {
        sum += values[n - 1];
        const double seconds = x->target[size_t(1 + n)];
        const double value = sum - x->worth * seconds;
        if (seconds <= left && value > best.value) {
            best = {value, n};
        }
    }
    return best;
}

// Nodes below the root with P > 0, and the root, most likely first; parents before children.
int32_t sort_nodes(dyspec_planner *x) {
    const dyspec_tree &tree = *x->tree;
    int32_t n = 0;
    for (int32_t i = 0; i < tree.n_nodes; i++) {
        if (i == 0 || tree.value[i] > 0.0) {
            x->order[size_t(n++)] = i;
        }
    }
    std::sort(x->order.begin(), x->order.begin() + n, [&tree](int32_t a, int32_t b) {
        return tree.value[a] != tree.value[b] ? tree.value[a] > tree.value[b] : a < b;
    });
    return n;
}

// The likeliest nodes whose leaves fit, into x->chosen; returns how many.
int32_t choose(dyspec_planner *x, int32_t n_sorted) {
    int32_t n = 0;
    int32_t n_leaves = 1;
    x->flags[0] |= CHOSEN;
    for (int32_t i = 1; i < n_sorted && n < x->n_rows - 1; i++) {
        const int32_t node = x->order[size_t(i)];
        uint8_t &up = x->flags[size_t(x->tree->parent[node])];
        const bool needs_leaf = (up & HAS_CHOSEN) != 0;
        if (!(up & CHOSEN) || (needs_leaf && n_leaves >= x->max_leaves)) {
            continue;
        }
        n_leaves += needs_leaf;
        up |= HAS_CHOSEN;
        x->flags[size_t(node)] |= CHOSEN;
        x->chosen[size_t(n++)] = node;
    }
    return n;
}

// The likeliest nodes that the draft can evaluate next, into `todo`; returns how many.
int32_t find_todo(dyspec_planner *x, int32_t n_sorted, int32_t *todo) {
    const dyspec_tree &tree = *x->tree;
    int32_t n_branches = 1;
    for (int32_t i = 0; i < tree.n_nodes; i++) {
        if (tree.n_cand[i] >= 0) {
            x->flags[size_t(i)] |=
                tree.n_cand[i] > 0 ? DRAFTED : 0; // what has no children is a dead end
            if (i > 0) {
                uint8_t &up = x->flags[size_t(tree.parent[i])];
                n_branches += (up & HAS_DRAFTED) != 0;
                up |= HAS_DRAFTED;
            }
        }
    }
    int32_t n = 0;
    const int32_t room = (tree.capacity - tree.n_nodes) / std::max(1, x->n_children_max);
    for (int32_t i = 0; i < n_sorted && n < std::min(MAX_WIDTH, room); i++) {
        const int32_t node = x->order[size_t(i)];
        if (tree.n_cand[node] >= 0 || tree.terminal[node] || tree.depth[node] >= x->max_depth) {
            continue;
        }
        if (node > 0) {
            uint8_t &up = x->flags[size_t(tree.parent[node])];
            const bool needs_branch = (up & HAS_DRAFTED) != 0;
            if (!(up & DRAFTED) || (needs_branch && n_branches >= x->max_leaves)) {
                continue;
            }
            n_branches += needs_branch;
            up |= HAS_DRAFTED;
        }
        x->flags[size_t(node)] |= DRAFTED;
        todo[n++] = node;
    }
    return n;
}

// Merge P of the chosen nodes with what drafting todo[:width] to `depth` may add, descending. Where
// the text's own copy goes on below a node, the draft is expected to say the same: it adds
// certainty, not another token.
int32_t look_ahead(dyspec_planner *x, int32_t n_chosen, const int32_t *todo, int32_t width,
                   int32_t depth, double *merged) {
    const dyspec_tree &tree = *x->tree;
    double hoped[MAX_WIDTH * MAX_DEPTH];
    int32_t replaced[MAX_WIDTH * MAX_DEPTH];
    int32_t n_hoped = 0;
    int32_t n_replaced = 0;
    for (int32_t i = 0; i < width; i++) {
        double value = tree.value[todo[i]];
        int32_t copied = todo[i];
        for (int32_t j = 0; j < depth; j++) {
            value *= x->acceptance;
            copied = copied >= 0 && tree.n_children[copied] > 0
                         ? next_child(tree, copied, copied + 1)
                         : -1;
            if (copied < 0) {
                hoped[n_hoped++] = value;
                continue;
            }
            x->flags[size_t(copied)] |= REPLACED;
            replaced[n_replaced++] = copied;
            hoped[n_hoped++] = std::max(value, tree.value[copied]);
        }
    }
    const int32_t kept = std::min(n_hoped, x->n_rows);
    std::partial_sort(hoped, hoped + kept, hoped + n_hoped, std::greater<double>());
    int32_t total = 0;
    for (int32_t a = 0, b = 0; total < x->n_rows;) {
        if (a < n_chosen && (x->flags[size_t(x->chosen[size_t(a)])] & REPLACED)) {
            a++;
        } else if (b < kept && (a == n_chosen || hoped[b] > tree.value[x->chosen[size_t(a)]])) {
            merged[total++] = hoped[b++];
        } else if (a < n_chosen) {
            merged[total++] = tree.value[x->chosen[size_t(a++)]];
        } else {
            break;
        }
    }
    for (int32_t i = 0; i < n_replaced; i++) {
        x->flags[size_t(replaced[i])] &= uint8_t(~REPLACED);
    }
    return total;
}

// Depth-first order of the root and the n likeliest chosen nodes.
int32_t order_rows(dyspec_planner *x, int32_t n, int32_t *nodes) {
    int32_t *rows = x->order.data(); // node of each row, ascending
    std::copy_n(x->chosen.begin(), n, rows + 1);
    rows[0] = 0;
    std::sort(rows + 1, rows + 1 + n);
    int32_t *parent = x->scratch.data(); // n + 1, then 2 (n + 1) for the search
    int32_t *order = parent + n + 1;
    parent[0] = -1;
    for (int32_t i = 1; i <= n; i++) {
        parent[i] = int32_t(std::lower_bound(rows, rows + i, x->tree->parent[rows[i]]) - rows);
    }
    if (dyspec_depth_first(parent, n + 1, order, nodes) < 0) {
        return DYSPEC_E_ARGUMENT;
    }
    for (int32_t i = 0; i <= n; i++) {
        nodes[i] = rows[nodes[i]];
    }
    return n + 1;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

dyspec_planner *dyspec_planner_create(dyspec_tree *tree, int32_t n_rows, int32_t n_children_max,
                                      int32_t max_leaves, float max_confidence, const int32_t *eog,
                                      int32_t n_eog) {
    return make<dyspec_planner>(tree, n_rows, n_children_max, max_leaves, max_confidence, eog,
                                n_eog);
}

void dyspec_planner_free(dyspec_planner *x) {
    delete x;
}

void dyspec_planner_set_prices(dyspec_planner *x, const double *target, double acceptance,
                               double worth, double left, int32_t max_depth, const double *first,
                               const double *later) {
    std::copy_n(target, x->n_rows + 1, x->target.begin());
    x->acceptance = acceptance;
    x->worth = worth;
    x->left = left;
    x->max_depth = max_depth;
    x->may_draft = first != nullptr;
    std::copy_n(first != nullptr ? first : later, 3, x->first);
    std::copy_n(later, 3, x->later);
}

int32_t dyspec_planner_plan(dyspec_planner *x, int32_t *nodes, int32_t *drafts) {
    const dyspec_tree &tree = *x->tree;
    if (tree.n_nodes < 1 || tree.n_nodes > tree.capacity || x->n_rows < 1 ||
        x->n_rows > tree.capacity || x->max_leaves < 1) {
        return DYSPEC_E_ARGUMENT;
    }
    std::fill_n(x->flags.begin(), tree.n_nodes, uint8_t(0));
    const int32_t n_sorted = sort_nodes(x);
    const int32_t n_chosen = choose(x, n_sorted);
    for (int32_t i = 0; i < n_chosen; i++) {
        x->values[size_t(i)] = tree.value[x->chosen[size_t(i)]];
    }
    const Best now = best_of(x, x->values.data(), n_chosen, x->left);
    int32_t todo[MAX_WIDTH];
    const int32_t n_todo = x->may_draft ? find_todo(x, n_sorted, todo) : 0;
    double most = now.value;
    int32_t n_draft = 0;
    for (int32_t w = 0; w < 3 && WIDTHS[w] <= n_todo; w++) {
        for (const int32_t depth : DEPTHS) {
            const double cost = x->first[w] + (depth - 1) * x->later[w];
            const int32_t n = look_ahead(x, n_chosen, todo, WIDTHS[w], depth, x->values.data());
            const double value =
                best_of(x, x->values.data(), n, x->left - cost).value - x->worth * cost;
            if (value > most) {
                most = value;
                n_draft = WIDTHS[w];
                x->price = x->first[w];
            }
        }
    }
    *drafts = n_draft > 0;
    if (n_draft > 0) {
        std::copy(todo, todo + n_draft, nodes);
        return n_draft;
    }
    return order_rows(x, now.n, nodes);
}

int32_t dyspec_planner_enter(dyspec_planner *x, const int32_t *nodes, int32_t n) {
    dyspec_tree &tree = *x->tree;
    for (int32_t i = 0; i < n; i++) {
        const int32_t node = nodes[i];
        if (node < 0 || node >= tree.n_nodes) {
            return DYSPEC_E_ARGUMENT;
        }
        const int32_t n_new = std::min({tree.n_cand[node], tree.n_ranks, x->n_children_max});
        if (n_new <= 0) {
            continue; // the draft has no opinion
        }
        if (tree.n_nodes + n_new > tree.capacity) {
            return DYSPEC_E_ARGUMENT;
        }
        const int32_t copied = tree.n_children[node] > 0 ? next_child(tree, node, node + 1) : -1;
        if (copied >= 0) {
            tree.confidence[copied] = 0.0f;
        }
        for (int32_t rank = 0; rank < n_new; rank++) {
            const int64_t at = int64_t(node) * tree.n_ranks + rank;
            const int32_t token = tree.cand_ids[at];
            const float confidence = std::min(tree.cand_probs[at], x->max_confidence);
            if (copied >= 0 && tree.token[copied] == token) {
                tree.confidence[copied] = confidence;
                continue;
            }
            add_child(tree, node, rank, confidence, x->eog);
        }
    }
    for (int32_t i = 1; i < tree.n_nodes; i++) {
        tree.value[i] = tree.value[tree.parent[i]] * double(tree.confidence[i]);
    }
    return tree.n_nodes;
}

int32_t dyspec_planner_grow(dyspec_planner *x, dyspec_proposer propose, void *data,
                            int32_t *nodes) {
    while (true) {
        int32_t drafts = 0;
        const int32_t n = dyspec_planner_plan(x, nodes, &drafts);
        if (n < 0 || !drafts) {
            return n;
        }
        int32_t code = propose(data, nodes, n);
        if (code >= 0) {
            code = dyspec_planner_enter(x, nodes, n);
        }
        if (code < 0) {
            return code;
        }
        x->left -= x->price;
        std::copy_n(x->later, 3, x->first);
    }
}

} // extern "C"
