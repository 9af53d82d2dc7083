// What a dyspec_sampler holds.
#ifndef DYSPEC_SAMPLING_H
#define DYSPEC_SAMPLING_H

#include "dyspec.h"

#include <vector>

// Same layout as llama_token_data_array.
struct dyspec_candidates {
    dyspec_candidate *data;
    size_t size;
    int64_t selected;
    bool sorted;
};

struct dyspec_sampler {
    dyspec_sampler(dyspec_apply_function apply, dyspec_accept_function accept,
                   struct llama_sampler *chain, int32_t n_vocab, uint64_t seed, bool greedy)
        : apply(apply), accept(accept), chain(chain), n_vocab(n_vocab), greedy(greedy), seed(seed),
          data(size_t(n_vocab)) {}

    const dyspec_apply_function apply;
    const dyspec_accept_function accept; // NULL: nothing depends on what was written
    struct llama_sampler *const chain;   // NULL: the arg max of the bare row
    const int32_t n_vocab;
    const bool greedy; // arg max of what the chain leaves, the first among equals
    uint64_t seed;
    dyspec_grammar *grammar = nullptr;  // NULL: any text
    std::vector<dyspec_candidate> data; // [n_vocab], working memory
    double seconds = 0;                 // total in the chain and the draw
    double rows_seconds = 0;            // total of reducing bare rows
};

#endif
