// Random trees over a model of llama.cpp's unified cache in plain sets: evaluated in random pieces,
// with unread text, padding, failed passes and malformed input in between, committed at a random
// node or taken back.  Every row must see the text and its own ancestors and nothing else; after a
// commit the cache must hold the text and nothing else.  Sanitizers watch over the rest.
//
//   dyspec_fuzz [SECONDS [FIRST_SEED]]     one conversation a seed; a failure names its seed
#include "check.h"
#include "dyspec.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

namespace {

using Ints = std::vector<int32_t>;

// Query i sees cell j iff j has i's first id and stands no later.
struct FakeLlama {
    struct Cell {
        int32_t pos, token;
        std::set<int32_t> ids;
    };
    std::vector<Cell> cells;
    std::map<int32_t, Ints> path_to; // what a row with this token must see, itself included
    float logits = 0.0f;
    bool fails = false;

    // The tokens that a sequence has, by position; there is one at each from 0 on.
    Ints tokens(int32_t id, int32_t last = INT32_MAX) const {
        std::map<int32_t, int32_t> found;
        for (const Cell &cell : cells) {
            if (cell.pos <= last && cell.ids.count(id)) {
                CHECK(found.emplace(cell.pos, cell.token).second);
            }
        }
        Ints all;
        for (const auto &[pos, token] : found) {
            CHECK(pos == int32_t(all.size()));
            all.push_back(token);
        }
        return all;
    }

    int32_t decode(const dyspec_batch &batch) {
        std::map<int32_t, int32_t> lengths;
        for (int32_t row = 0; row < batch.n_tokens; row++) {
            for (int32_t j = 0; j < batch.n_seq_id[row]; j++) {
                const int32_t id = batch.seq_id[row][j];
                lengths.emplace(id, int32_t(tokens(id).size()));
                // Sequences that meet in a row have equally much in the cache.
                CHECK(lengths.at(id) == lengths.at(batch.seq_id[row][0]));
            }
        }
        const size_t before = cells.size();
        for (int32_t row = 0; row < batch.n_tokens; row++) {
            const int32_t *ids = batch.seq_id[row];
            Cell cell{batch.pos[row], batch.token[row], {ids, ids + batch.n_seq_id[row]}};
            CHECK(int32_t(cell.ids.size()) == batch.n_seq_id[row]);
            for (const int32_t id : cell.ids) {
                CHECK(cell.pos == int32_t(tokens(id).size()));
            }
            cells.push_back(cell);
        }
        if (fails) {
            return 2; // what was stored stays, as with llama.cpp
        }
        for (int32_t row = 0; row < batch.n_tokens; row++) {
            const Cell &cell = cells[before + size_t(row)];
            for (const int32_t id : cell.ids) {
                const Ints seen = tokens(id, cell.pos);
                const auto path = path_to.find(cell.token);
                CHECK(path == path_to.end() || is_padding(batch, row) || seen == path->second);
            }
        }
        return 0;
    }

    // Padding repeats the token of the row before it.
    static bool is_padding(const dyspec_batch &batch, int32_t row) {
        return row > 0 && batch.token[row] == batch.token[row - 1];
    }

    void remove(int32_t id, int32_t first, int32_t end) {
        for (Cell &cell : cells) {
            if (cell.pos >= first && (end < 0 || cell.pos < end)) {
                if (id < 0) {
                    cell.ids.clear();
                }
                cell.ids.erase(id);
            }
        }
        const auto is_free = [](const Cell &cell) { return cell.ids.empty(); };
        cells.erase(std::remove_if(cells.begin(), cells.end(), is_free), cells.end());
    }

    void copy(int32_t from, int32_t to, int32_t first, int32_t end) {
        for (Cell &cell : cells) {
            if (cell.ids.count(from) && cell.pos >= first && cell.pos < end) {
                cell.ids.insert(to);
            }
        }
    }
};

FakeLlama &fake(void *pointer) {
    return *static_cast<FakeLlama *>(pointer);
}

const dyspec_llama functions{
    [](void *llama, dyspec_batch batch) { return fake(llama).decode(batch); },
    [](void *) {},
    [](void *llama) { return &fake(llama).logits; },
    [](void *llama, int32_t id, int32_t first, int32_t end) {
        fake(llama).remove(id, first, end);
        return true;
    },
    [](void *llama, int32_t from, int32_t to, int32_t first, int32_t end) {
        fake(llama).copy(from, to, first, end);
    },
};

struct Fuzz {
    std::mt19937 rng;
    FakeLlama llama;
    dyspec_cache cache{};
    Ints text;
    int32_t next_token = 1000;
    // the tree
    Ints token, parent, depth;
    // what the cache points to
    Ints batch_token, batch_pos, batch_n_seq_id, ids, offsets, copies, seq, row_of, shared, sizes;
    std::vector<int32_t *> batch_seq_id;
    std::vector<int8_t> batch_logits;
    std::vector<uint8_t> continued;
    std::vector<uint64_t> row;

    explicit Fuzz(uint32_t seed) : rng(seed) {
        cache.n_seq = 1 + below(20);
        cache.max_outputs = 1 + below(24);
        cache.max_rows = cache.max_outputs + below(16);
        cache.tree_capacity = 1 + below(48);
        for (int32_t size = below(4); size < cache.max_rows && below(5); size += 1 + below(8)) {
            sizes.push_back(size);
        }
        const size_t n_seq = size_t(cache.n_seq), n_nodes = size_t(cache.tree_capacity);
        const size_t n_rows = size_t(cache.max_rows), n_outputs = size_t(cache.max_outputs);
        batch_token.resize(n_rows);
        batch_pos.resize(n_rows);
        batch_n_seq_id.resize(n_rows);
        batch_seq_id.resize(n_rows);
        batch_logits.resize(n_rows);
        ids.resize((1 + n_outputs) * n_seq);
        for (size_t i = 0; i < n_seq; i++) {
            ids[i] = int32_t(i);
        }
        offsets.resize(n_outputs + 1);
        copies.resize(3 * n_outputs);
        seq.assign(n_nodes, -1);
        continued.resize(n_nodes);
        row.resize(n_nodes);
        row_of.resize(n_nodes);
        shared.resize(n_seq);
        cache.llama = functions;
        cache.context = cache.memory = &llama;
        cache.batch = {0,
                       batch_token.data(),
                       nullptr,
                       batch_pos.data(),
                       batch_n_seq_id.data(),
                       batch_seq_id.data(),
                       batch_logits.data()};
        cache.ids = ids.data();
        cache.offsets = offsets.data();
        cache.copies = copies.data();
        cache.seq = seq.data();
        cache.continued = continued.data();
        cache.row = row.data();
        cache.row_of = row_of.data();
        cache.shared = shared.data();
        cache.sizes = sizes.data();
        cache.n_sizes = int32_t(sizes.size());
        cache.n_vocab = 1;
        cache.n_used = 1;
    }

    int32_t below(int32_t n) { return int32_t(rng() % uint32_t(n)); }
    bool is_placed(int32_t node) const { return seq[size_t(node)] >= 0; }
    int32_t size() const { return int32_t(parent.size()); }

    Ints path_to(int32_t node) const {
        Ints path;
        for (; node >= 0; node = parent[size_t(node)]) {
            path.insert(path.begin(), node);
        }
        return path;
    }

    // Every node has one of the `reach` nodes before it as its parent: 1 is a chain.
    void grow() {
        const int32_t n = 1 + below(cache.tree_capacity), reach = 1 + below(n);
        token.clear();
        parent.clear();
        depth.clear();
        for (int32_t i = 0; i < n; i++) {
            token.push_back(next_token++);
            parent.push_back(i == 0 ? -1 : i - 1 - below(std::min(i, reach)));
            depth.push_back(i == 0 ? 0 : depth[size_t(parent.back())] + 1);
        }
    }

    // Nodes whose parents are placed or come first, in a random order of that kind.
    Ints next_nodes(int32_t n) {
        Ints nodes;
        std::set<int32_t> chosen;
        while (int32_t(nodes.size()) < n) {
            Ints open;
            for (int32_t i = 0; i < size(); i++) {
                const int32_t above = parent[size_t(i)];
                const bool is_open = above < 0 || is_placed(above) || chosen.count(above);
                if (is_open && !is_placed(i) && !chosen.count(i)) {
                    open.push_back(i);
                }
            }
            if (open.empty()) {
                break;
            }
            nodes.push_back(open[size_t(below(int32_t(open.size())))]);
            chosen.insert(nodes.back());
        }
        return nodes;
    }

    // Of the placed part of the tree with `nodes`.
    int32_t n_leaves(const Ints &nodes) const {
        std::set<int32_t> leaves(nodes.begin(), nodes.end());
        for (int32_t i = 0; i < size(); i++) {
            if (is_placed(i)) {
                leaves.insert(i);
            }
        }
        const std::set<int32_t> there = leaves;
        for (const int32_t node : there) {
            leaves.erase(parent[size_t(node)]);
        }
        return int32_t(leaves.size());
    }

    int32_t evaluate(const Ints &nodes, const Ints &unread = {}) {
        dyspec_tree tree{};
        tree.token = token.data();
        tree.parent = parent.data();
        tree.depth = depth.data();
        return dyspec_evaluate(&cache, &tree, nodes.data(), int32_t(nodes.size()), unread.data(),
                               int32_t(unread.size()));
    }

    void check_refused(const Ints &nodes, int32_t code) {
        const Ints old_seq = seq;
        const std::vector<uint8_t> old_continued = continued;
        const int32_t n_used = cache.n_used, n_past = cache.n_past;
        const size_t n_cells = llama.cells.size();
        CHECK(evaluate(nodes) == code);
        CHECK(seq == old_seq && continued == old_continued && cache.n_used == n_used);
        CHECK(cache.n_past == n_past && llama.cells.size() == n_cells);
    }

    // What must be refused: a stranger, a node twice, an orphan, too many nodes.
    void spoil(Ints nodes) {
        if (n_leaves(nodes) > cache.n_seq) {
            return; // it may run out of ids before
        }
        const int32_t strangers[] = {-1, cache.tree_capacity, INT32_MAX, INT32_MIN};
        const int32_t kind = below(3);
        int32_t bad = strangers[below(4)];
        if (kind == 1) {
            bad = nodes[size_t(below(int32_t(nodes.size())))];
        } else if (kind == 2) {
            const std::set<int32_t> chosen(nodes.begin(), nodes.end());
            for (int32_t i = 1; i < size(); i++) {
                const int32_t above = parent[size_t(i)];
                if (!is_placed(above) && !chosen.count(above)) {
                    bad = i;
                }
            }
        }
        nodes.insert(nodes.begin() + below(int32_t(nodes.size()) + 1), bad);
        check_refused(nodes, DYSPEC_E_ARGUMENT);
    }

    // As the package does it after a pass that failed.
    void take_back(int32_t length) {
        llama.remove(-1, length, -1);
        dyspec_forget(&cache, length);
        text.resize(size_t(length));
        check_text();
    }

    void check_text() const {
        CHECK(cache.n_past == int32_t(text.size()) && cache.n_used == 1 && cache.n_seen == 0);
        CHECK(llama.tokens(0) == text);
        for (int32_t id = 1; id < cache.n_seq; id++) {
            const Ints tokens = llama.tokens(id);
            CHECK(int32_t(tokens.size()) >= shared[size_t(id)]);
            CHECK(tokens.size() <= text.size());
            CHECK(std::equal(tokens.begin(), tokens.end(), text.begin()));
        }
        for (int32_t i = 0; i < cache.tree_capacity; i++) {
            CHECK(seq[size_t(i)] == -1 && continued[size_t(i)] == 0 && row[size_t(i)] == 0);
        }
    }

    // A random piece of the tree.  Returns whether the step can go on.
    bool decode(const Ints &nodes, const Ints &unread) {
        const int32_t n_needed = n_leaves(nodes);
        if (n_needed > cache.n_seq) {
            check_refused(nodes, DYSPEC_E_SEQUENCES);
            return true;
        }
        Ints before = text;
        for (const int32_t word : unread) {
            before.push_back(word);
            llama.path_to[word] = before;
        }
        for (const int32_t node : nodes) {
            Ints &path = llama.path_to[token[size_t(node)]] = before;
            for (const int32_t above : path_to(node)) {
                path.push_back(token[size_t(above)]);
            }
        }
        llama.fails = below(12) == 0;
        const int32_t n_rows = evaluate(nodes, unread);
        text.assign(before.begin(), before.begin() + cache.n_past);
        if (llama.fails) {
            llama.fails = false;
            CHECK(n_rows == DYSPEC_E_DECODE && cache.decode_code == 2);
            take_back(cache.n_past);
            return false;
        }
        CHECK(n_rows >= int32_t(nodes.size()) && n_rows <= cache.max_rows);
        CHECK(text == before && cache.n_used == n_needed);
        for (const int32_t node : nodes) {
            CHECK(is_placed(node) && row[size_t(node)] != 0);
        }
        return true;
    }

    void commit() {
        Ints placed;
        for (int32_t i = 0; i < size(); i++) {
            if (is_placed(i)) {
                placed.push_back(i);
            }
        }
        // The walk may go on below what was evaluated.
        Ints path = path_to(placed[size_t(below(int32_t(placed.size())))]);
        const size_t n_kept = path.size();
        for (int32_t i = 1; i < size(); i++) {
            if (parent[size_t(i)] == path.back() && !is_placed(i)) {
                path.push_back(i);
            }
        }
        for (size_t i = 0; i < n_kept; i++) {
            text.push_back(token[size_t(path[i])]);
        }
        CHECK(dyspec_commit(&cache, path.data(), int32_t(path.size())) == int32_t(n_kept));
        check_text();
    }

    void step() {
        grow();
        check_orders();
        Ints unread;
        for (int32_t n = below(4) ? below(3) : below(40); n > 0; n--) {
            unread.push_back(next_token++);
        }
        Ints nodes = next_nodes(1 + below(std::min(cache.max_outputs, 8)));
        if (n_leaves(nodes) > cache.n_seq) {
            nodes = {0};
        }
        if (!decode(nodes, unread)) {
            return;
        }
        for (int32_t pass = below(6); pass > 0; pass--) {
            nodes = next_nodes(1 + below(std::min(cache.max_outputs, 12)));
            if (nodes.empty()) {
                break;
            }
            if (below(2)) {
                spoil(nodes);
            }
            if (!decode(nodes, {})) {
                return;
            }
        }
        if (below(6)) {
            commit();
        } else {
            take_back(below(int32_t(text.size()) + 1));
        }
    }

    void check_orders() {
        const int32_t n = size();
        const size_t n_words = (size_t(n) + 63) / 64;
        Ints scratch(2 * size_t(n)), order(static_cast<size_t>(n));
        std::vector<uint64_t> mask(size_t(n) * n_words);
        CHECK(dyspec_depth_first(parent.data(), n, scratch.data(), order.data()) == n);
        CHECK(dyspec_ancestor_mask(parent.data(), order.data(), n, scratch.data(), mask.data()) ==
              n);
        for (size_t i = 0; i < size_t(n); i++) {
            const Ints path = path_to(order[i]);
            for (size_t j = 0; j < size_t(n); j++) {
                const bool bit = mask[i * n_words + j / 64] >> (j % 64) & 1;
                CHECK(bit == (std::count(path.begin(), path.end(), order[j]) == 1));
            }
        }
        Ints wrong = order;
        wrong[size_t(below(n))] = wrong[size_t(below(n))];
        CHECK(dyspec_ancestor_mask(parent.data(), wrong.data(), n, scratch.data(), mask.data()) ==
              (wrong == order ? n : int32_t(DYSPEC_E_ARGUMENT)));
        Ints loops = parent;
        const int32_t late = below(n);
        loops[size_t(late)] = late + below(3);
        CHECK(dyspec_depth_first(loops.data(), n, scratch.data(), order.data()) ==
              (late == 0 ? n : int32_t(DYSPEC_E_ARGUMENT)));
    }
};

} // namespace

int main(int argc, char **argv) {
    using Clock = std::chrono::steady_clock;
    const std::chrono::duration<double> limit(argc > 1 ? std::atof(argv[1]) : 3.0);
    const uint32_t first = argc > 2 ? uint32_t(std::strtoul(argv[2], nullptr, 10)) : 0;
    const Clock::time_point started = Clock::now();
    uint32_t seed = first;
    try {
        do {
            Fuzz fuzz(seed++);
            for (int32_t step = 0; step < 5; step++) {
                fuzz.step();
            }
        } while (Clock::now() - started < limit);
    } catch (const std::exception &error) {
        std::printf("seed %u: %s\n", seed - 1, error.what());
        return 1;
    }
    std::printf("%u conversations from seed %u on\n", seed - first, first);
    return 0;
}
