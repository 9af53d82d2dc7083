// What a dyspec_grammar holds.
#ifndef DYSPEC_GRAMMAR_H
#define DYSPEC_GRAMMAR_H

#include "sampling.h"

#include <memory>
#include <vector>

struct dyspec_grammar {
    struct Free {
        void (*free)(llama_sampler *);
        void operator()(llama_sampler *state) const { free(state); }
    };
    using State = std::unique_ptr<llama_sampler, Free>;

    dyspec_grammar(const dyspec_grammar_functions &call, const void *vocab, llama_sampler *start)
        : call(call), vocab(vocab), text(start, Free{call.free}) {}

    State copy(const State &state) const { return {call.clone(state.get()), Free{call.free}}; }

    const dyspec_grammar_functions call;
    const void *const vocab;
    State text;                // after what was written
    std::vector<State> below;  // by node of this step's tree; NULL where nobody asked yet
    std::vector<uint8_t> dead; // by node: the grammar forbids it
};

namespace dyspec {

// Logits of what must not come next become -inf.
void apply(const dyspec_grammar &x, const dyspec_grammar::State &state,
           const dyspec_candidates &candidates);

bool allows(const dyspec_grammar &x, const dyspec_grammar::State &state, int32_t token);

// The state at a node of this step's tree; NULL if the grammar forbids the node.
const dyspec_grammar::State *state_at(dyspec_grammar &x, const dyspec_tree &tree, int32_t node);

} // namespace dyspec

#endif
