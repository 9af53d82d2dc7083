#include "check.h"
#include "dyspec.h"

#include <algorithm>
#include <set>

namespace {

using Ints = std::vector<int32_t>;

// Cells with sets of ids: query i sees cell j iff j has i's first id and stands no later.
struct Cache {
    Ints parent, depth, seq;
    std::vector<uint8_t> continued;
    std::vector<std::set<int32_t>> cells;
    int32_t n_used = 1, n_seq;

    Cache(uint32_t seed, int32_t n, int32_t n_seq_)
        : parent(size_t(n), -1), depth(size_t(n)), seq(size_t(n), -1), continued(size_t(n)),
          cells(size_t(n)), n_seq(n_seq_) {
        std::mt19937 rng(seed);
        for (int32_t i = 1; i < n; i++) {
            parent[size_t(i)] = int32_t(rng() % uint32_t(i));
            depth[size_t(i)] = depth[size_t(parent[size_t(i)])] + 1;
        }
    }

    int32_t size() const { return int32_t(parent.size()); }

    int32_t n_leaves() const {
        const std::set<int32_t> parents(parent.begin(), parent.end());
        int32_t n = 0;
        for (int32_t i = 0; i < size(); i++) {
            n += parents.count(i) == 0;
        }
        return n;
    }

    std::set<int32_t> ancestors(int32_t node) const {
        std::set<int32_t> path;
        for (; node >= 0; node = parent[size_t(node)]) {
            path.insert(node);
        }
        return path;
    }

    std::set<int32_t> seen(int32_t node, int32_t id) const {
        std::set<int32_t> found;
        for (int32_t j = 0; j < size(); j++) {
            if (cells[size_t(j)].count(id) && depth[size_t(j)] <= depth[size_t(node)]) {
                found.insert(j);
            }
        }
        return found;
    }

    int32_t decode(const Ints &nodes) {
        const int32_t n = int32_t(nodes.size());
        Ints row_of(parent.size()), offsets(nodes.size() + 1), copies(nodes.size() * 3);
        Ints ids(nodes.size() * size_t(n_seq));
        const int32_t n_copies = dyspec_assign_sequences(
            nodes.data(), n, parent.data(), depth.data(), size(), seq.data(), continued.data(),
            &n_used, n_seq, row_of.data(), offsets.data(), ids.data(), copies.data());
        if (n_copies < 0) {
            return n_copies;
        }
        for (int32_t c = 0; c < n_copies; c++) {
            const int32_t *copy = copies.data() + 3 * c;
            for (int32_t j = 0; j < size(); j++) {
                if (cells[size_t(j)].count(copy[0]) && depth[size_t(j)] <= copy[2]) {
                    cells[size_t(j)].insert(copy[1]);
                }
            }
        }
        for (int32_t i = 0; i < n; i++) {
            cells[size_t(nodes[size_t(i)])] = {ids.begin() + offsets[size_t(i)],
                                               ids.begin() + offsets[size_t(i) + 1]};
        }
        for (int32_t i = 0; i < n; i++) {
            const int32_t node = nodes[size_t(i)];
            CHECK(ids[size_t(offsets[size_t(i)])] == seq[size_t(node)]);
            for (int32_t j = offsets[size_t(i)]; j < offsets[size_t(i) + 1]; j++) {
                CHECK(seen(node, ids[size_t(j)]) == ancestors(node));
            }
        }
        return n_copies;
    }
};

} // namespace

TEST(every_row_sees_its_ancestors) {
    for (uint32_t seed = 0; seed < 60; seed++) {
        Cache cache(seed, 1 + int32_t(seed), 64);
        cache.n_seq = cache.n_leaves();
        // Random cuts of the order 0, 1, 2, ...: parents always come first.
        std::mt19937 rng(seed);
        for (int32_t begin = 0; begin < cache.size();) {
            const int32_t end = std::min(cache.size(), begin + 1 + int32_t(rng() % 12));
            Ints nodes;
            for (int32_t node = begin; node < end; node++) {
                nodes.push_back(node);
            }
            CHECK(cache.decode(nodes) >= 0);
            begin = end;
        }
        CHECK(cache.n_used == cache.n_leaves());
    }
}

TEST(running_out_of_ids_changes_nothing) {
    for (uint32_t seed = 0; seed < 20; seed++) {
        Cache cache(seed, 40, 1);
        cache.n_seq = cache.n_leaves() - 1;
        CHECK(cache.decode({0, 1}) >= 0);
        const Ints seq = cache.seq;
        const std::vector<uint8_t> continued = cache.continued;
        Ints rest;
        for (int32_t node = 2; node < 40; node++) {
            rest.push_back(node);
        }
        CHECK(cache.decode(rest) == DYSPEC_E_SEQUENCES);
        CHECK(cache.seq == seq && cache.continued == continued && cache.n_used == 1);
        rest.push_back(5);
        cache.n_seq++;
        CHECK(cache.decode(rest) == DYSPEC_E_ARGUMENT);
        CHECK(cache.seq == seq && cache.continued == continued && cache.n_used == 1);
    }
}

TEST(depth_first_order) {
    for (const int32_t n : {1, 2, 63, 64, 65, 200}) {
        const Cache tree(uint32_t(n), n, 1);
        Ints scratch(2 * size_t(n)), order(static_cast<size_t>(n));
        CHECK(dyspec_depth_first(tree.parent.data(), n, scratch.data(), order.data()) == n);
        for (size_t i = 1; i < size_t(n); i++) {
            // A node stands right behind its parent or behind an earlier child's subtree.
            CHECK(tree.ancestors(order[i]).count(order[i - 1]) == 1 ||
                  tree.ancestors(order[i - 1]).count(tree.parent[size_t(order[i])]) == 1);
        }
        std::sort(order.begin(), order.end());
        for (int32_t i = 0; i < n; i++) {
            CHECK(order[size_t(i)] == i);
        }
    }
    Ints scratch(6), order(3);
    const Ints late{-1, 2, 0};
    CHECK(dyspec_depth_first(late.data(), 3, scratch.data(), order.data()) == DYSPEC_E_ARGUMENT);
}
