// A grammar that follows the text, and the paths of a tree below it.
//
// llama.cpp's grammar ends the process when it accepts what does not fit: every token is asked for
// before it is accepted.
#include "grammar.h"

#include "objects.h"

#include <algorithm>
#include <cmath>

namespace dyspec {

void apply(const dyspec_grammar &x, const dyspec_grammar::State &state,
           const dyspec_candidates &candidates) {
    dyspec_candidates left = candidates;
    x.call.apply(state.get(), &left);
    // Control tokens have a text for the grammar, but none in the reply.
    for (size_t i = 0; i < left.size; i++) {
        dyspec_candidate &candidate = left.data[i];
        if (candidate.logit > -INFINITY && x.call.is_control(x.vocab, candidate.id) &&
            !x.call.is_eog(x.vocab, candidate.id)) {
            candidate.logit = -INFINITY;
        }
    }
}

bool allows(const dyspec_grammar &x, const dyspec_grammar::State &state, int32_t token) {
    dyspec_candidate candidate = {token, 0.0f, 0.0f};
    apply(x, state, {&candidate, 1, -1, false});
    return std::isfinite(candidate.logit);
}

const dyspec_grammar::State *state_at(dyspec_grammar &x, const dyspec_tree &tree, int32_t node) {
    if (node == 0) { // what was written ends with the root
        return &x.text;
    }
    if (x.below.size() < size_t(tree.capacity)) {
        x.below.resize(size_t(tree.capacity));
        x.dead.resize(size_t(tree.capacity), 0);
    }
    dyspec_grammar::State &state = x.below[size_t(node)];
    if (state == nullptr && !x.dead[size_t(node)]) {
        const dyspec_grammar::State *above = state_at(x, tree, tree.parent[node]);
        if (above == nullptr || !allows(x, *above, tree.token[node])) {
            x.dead[size_t(node)] = 1;
        } else {
            state = x.copy(*above);
            x.call.accept(state.get(), tree.token[node]);
        }
    }
    return state == nullptr ? nullptr : &state;
}

} // namespace dyspec

using namespace dyspec;

extern "C" {

dyspec_grammar *dyspec_grammar_create(const dyspec_grammar_functions *functions, const void *vocab,
                                      struct llama_sampler *start) {
    return make<dyspec_grammar>(*functions, vocab, start);
}

void dyspec_grammar_free(dyspec_grammar *x) {
    delete x;
}

int32_t dyspec_grammar_accept(dyspec_grammar *x, const int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (!allows(*x, x->text, tokens[i])) {
            return i;
        }
        x->call.accept(x->text.get(), tokens[i]);
    }
    return n;
}

int32_t dyspec_grammar_follow(const dyspec_grammar *x, const int32_t *tokens, int32_t n) {
    const dyspec_grammar::State state = x->copy(x->text);
    for (int32_t i = 0; i < n; i++) {
        if (!allows(*x, state, tokens[i])) {
            return i;
        }
        x->call.accept(state.get(), tokens[i]);
    }
    return n;
}

int32_t dyspec_grammar_forced(const dyspec_grammar *x, const int32_t *ids, int32_t n, int32_t eog,
                              int32_t *out, int32_t most) {
    dyspec_grammar::State state;
    int32_t n_forced = 0;
    std::vector<dyspec_candidate> candidates;
    while (n_forced < most) {
        candidates.clear();
        for (int32_t i = 0; i < n; i++) {
            candidates.push_back({ids[i], 0.0f, 0.0f});
        }
        if (eog >= 0) {
            candidates.push_back({eog, 0.0f, 0.0f});
        }
        const dyspec_grammar::State &now = n_forced == 0 ? x->text : state;
        apply(*x, now, {candidates.data(), candidates.size(), -1, false});
        int32_t n_left = 0, left = -1;
        for (const dyspec_candidate &candidate : candidates) {
            if (std::isfinite(candidate.logit)) {
                n_left++;
                left = candidate.id;
            }
        }
        if (n_left != 1 || left == eog) {
            break;
        }
        if (n_forced == 0) {
            state = x->copy(x->text);
        }
        x->call.accept(state.get(), left);
        out[n_forced++] = left;
    }
    return n_forced;
}

void dyspec_grammar_start_step(dyspec_grammar *x) {
    x->below.clear();
    x->dead.clear();
}

int32_t dyspec_grammar_filter(dyspec_grammar *x, const dyspec_tree *tree, int32_t node,
                              const int32_t *ids, float *logits, int32_t n) {
    const dyspec_grammar::State *state = state_at(*x, *tree, node);
    std::vector<dyspec_candidate> candidates;
    for (int32_t i = 0; i < n && state != nullptr; i++) {
        if (std::isfinite(logits[i])) {
            candidates.push_back({ids[i], logits[i], float(i)});
        }
    }
    std::fill(logits, logits + n, -INFINITY);
    if (candidates.empty()) {
        return 0;
    }
    apply(*x, *state, {candidates.data(), candidates.size(), -1, false});
    int32_t n_left = 0;
    for (const dyspec_candidate &candidate : candidates) {
        logits[int32_t(candidate.p)] = candidate.logit;
        n_left += std::isfinite(candidate.logit);
    }
    return n_left;
}

} // extern "C"
