// A tree whose arrays are exactly as large as the contract asks for, so that a sanitizer sees every
// step beyond.
#pragma once

#include "dyspec.h"

#include <vector>

struct TreeArrays {
    int32_t capacity, n_ranks;
    std::vector<int32_t> token, parent, depth, n_children, cand_ids, n_cand;
    std::vector<float> confidence, cand_probs;
    std::vector<double> value;
    std::vector<uint8_t> terminal;
    dyspec_tree tree{};

    TreeArrays(int32_t size, int32_t ranks)
        : capacity(size), n_ranks(ranks), token(at(size)), parent(at(size), -1), depth(at(size)),
          n_children(at(size)), cand_ids(at(size) * at(ranks)), n_cand(at(size), -1),
          confidence(at(size), 1.0f), cand_probs(at(size) * at(ranks)), value(at(size), 1.0),
          terminal(at(size)) {
        tree = {token.data(),
                parent.data(),
                depth.data(),
                n_children.data(),
                confidence.data(),
                value.data(),
                terminal.data(),
                cand_ids.data(),
                cand_probs.data(),
                n_cand.data(),
                1,
                capacity,
                n_ranks};
    }
    // The struct points into the vectors.
    TreeArrays(const TreeArrays &) = delete;

    static size_t at(int32_t i) { return size_t(i); }
};
