// The target's own token.
#include "sampling.h"

#include "clock.h"
#include "grammar.h"
#include "objects.h"

#include <cmath>

namespace dyspec {
namespace {

// Position of the largest logit, the first among equals; a NaN anywhere is an error.
int64_t largest(const dyspec_candidates &left) {
    int64_t best = DYSPEC_E_NOT_FINITE;
    float most = -INFINITY;
    for (int64_t i = 0; i < int64_t(left.size); i++) {
        if (std::isnan(left.data[i].logit)) {
            return DYSPEC_E_NOT_FINITE;
        }
        if (left.data[i].logit > most) {
            most = left.data[i].logit;
            best = i;
        }
    }
    return std::isfinite(most) ? best : int64_t(DYSPEC_E_NOT_FINITE);
}

// What the chain leaves of a row; it may point to storage of the chain's own.
dyspec_candidates left_of(dyspec_sampler &x, const float *row, bool grammar_first) {
    dyspec_fill_candidates(row, x.n_vocab, x.data.data());
    dyspec_candidates left{x.data.data(), size_t(x.n_vocab), -1, false};
    if (grammar_first) {
        apply(*x.grammar, x.grammar->text, left);
    }
    if (x.chain != nullptr) {
        x.apply(x.chain, &left);
    }
    return left;
}

int32_t draw(dyspec_sampler &x, const float *row, uint32_t index, bool grammar_first) {
    const auto started = Clock::now();
    if (x.chain == nullptr && !grammar_first) {
        const int32_t token = dyspec_argmax(row, x.n_vocab);
        x.rows_seconds += seconds_since(started);
        return token;
    }
    const dyspec_candidates left = left_of(x, row, grammar_first);
    const int64_t chosen =
        x.greedy ? largest(left)
                 : dyspec_gumbel_argmax(left.data, int64_t(left.size), x.seed, index, 0);
    x.seconds += seconds_since(started);
    return chosen < 0 ? int32_t(chosen) : left.data[chosen].id;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

dyspec_sampler *dyspec_sampler_create(dyspec_apply_function apply, dyspec_accept_function accept,
                                      struct llama_sampler *chain, int32_t n_vocab, uint64_t seed,
                                      int32_t greedy) {
    return n_vocab < 1 ? nullptr
                       : make<dyspec_sampler>(apply, accept, chain, n_vocab, seed, greedy != 0);
}

void dyspec_sampler_free(dyspec_sampler *x) {
    delete x;
}

void dyspec_sampler_set_seed(dyspec_sampler *x, uint64_t seed) {
    x->seed = seed;
}

void dyspec_sampler_set_grammar(dyspec_sampler *x, dyspec_grammar *grammar) {
    x->grammar = grammar;
}

int32_t dyspec_sampler_sample(dyspec_sampler *x, const float *row, uint32_t index) {
    const int32_t token = draw(*x, row, index, false);
    if (x->grammar == nullptr || token < 0 || allows(*x->grammar, x->grammar->text, token)) {
        return token;
    }
    const int32_t fitting = draw(*x, row, index, true);
    return fitting == DYSPEC_E_NOT_FINITE ? int32_t(DYSPEC_E_GRAMMAR) : fitting;
}

void dyspec_sampler_accept(dyspec_sampler *x, const int32_t *tokens, int32_t n) {
    if (x->grammar != nullptr) {
        dyspec_grammar_accept(x->grammar, tokens, n);
    }
    if (x->chain == nullptr || x->accept == nullptr) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        x->accept(x->chain, tokens[i]);
    }
}

int32_t dyspec_sampler_apply(dyspec_sampler *x, const float *row, int32_t *ids, float *logits) {
    const auto started = Clock::now();
    const dyspec_candidates left = left_of(*x, row, false);
    for (size_t i = 0; i < left.size; i++) {
        ids[i] = left.data[i].id;
        logits[i] = left.data[i].logit;
    }
    x->seconds += seconds_since(started);
    return int32_t(left.size);
}

double dyspec_sampler_seconds(const dyspec_sampler *x) {
    return x->seconds;
}

double dyspec_sampler_rows_seconds(const dyspec_sampler *x) {
    return x->rows_seconds;
}

} // extern "C"
