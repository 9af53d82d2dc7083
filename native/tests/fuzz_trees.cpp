// Random trees over a model of llama.cpp's unified cache in plain sets, which several conversations
// share: evaluated in random pieces, with unread text, padding, failed passes and malformed input
// in between, committed at a random node or taken back.  Every row must see the text and its own
// ancestors and nothing else; after a commit the cache must hold the text and nothing else, and
// what the others have is never touched.  Sanitizers watch over the rest.
//
//   dyspec_fuzz [SECONDS [FIRST_SEED]]     one shared cache a seed; a failure names its seed
#include "cache.h"
#include "check.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
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
    int32_t first_id = 0, end_id = 0; // of the conversation whose turn it is

    void check_own(int32_t id) const { CHECK(id >= first_id && id < end_id); }

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
                check_own(id);
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
        check_own(id);
        for (Cell &cell : cells) {
            if (cell.pos >= first && (end < 0 || cell.pos < end)) {
                cell.ids.erase(id);
            }
        }
        const auto is_free = [](const Cell &cell) { return cell.ids.empty(); };
        cells.erase(std::remove_if(cells.begin(), cells.end(), is_free), cells.end());
    }

    void copy(int32_t from, int32_t to, int32_t first, int32_t end) {
        check_own(from);
        check_own(to);
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
    nullptr, // there is no recurrent state, and no head
    nullptr,
    nullptr,
    nullptr,
};

struct Free {
    void operator()(dyspec_cache *cache) const { dyspec_cache_free(cache); }
};

struct Conversation {
    std::mt19937 &rng;
    FakeLlama &llama;
    int32_t &next_token;
    std::unique_ptr<dyspec_cache, Free> cache;
    Ints text;
    // the tree
    Ints token, parent, depth;

    Conversation(std::mt19937 &rng, FakeLlama &llama, int32_t &next_token, int32_t first_id)
        : rng(rng), llama(llama), next_token(next_token) {
        const int32_t max_outputs = 1 + below(24), max_rows = max_outputs + below(16);
        cache.reset(dyspec_cache_create(&functions, &llama, &llama, 1, max_rows, max_outputs,
                                        1 + below(48), first_id, 1 + below(20), -1, 0));
        CHECK(cache != nullptr);
        Ints sizes;
        for (int32_t size = below(4); size < max_rows && below(5); size += 1 + below(8)) {
            sizes.push_back(size);
        }
        CHECK(dyspec_cache_pad_to(cache.get(), sizes.data(), int32_t(sizes.size())) == 0);
    }

    int32_t end_id() const { return cache->first_id + cache->n_ids; }
    int32_t below(int32_t n) { return int32_t(rng() % uint32_t(n)); }
    bool is_placed(int32_t node) const { return cache->seq[size_t(node)] >= 0; }
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
        const int32_t n = 1 + below(cache->tree_capacity), reach = 1 + below(n);
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
        return dyspec_cache_evaluate(cache.get(), &tree, nodes.data(), int32_t(nodes.size()),
                                     unread.data(), int32_t(unread.size()));
    }

    void check_refused(const Ints &nodes, int32_t code) {
        const Ints old_seq = cache->seq;
        const std::vector<uint8_t> old_continued = cache->continued;
        const int32_t n_used = cache->n_used, n_past = cache->n_past;
        const size_t n_cells = llama.cells.size();
        CHECK(evaluate(nodes) == code);
        CHECK(cache->seq == old_seq && cache->continued == old_continued &&
              cache->n_used == n_used);
        CHECK(cache->n_past == n_past && llama.cells.size() == n_cells);
    }

    // What must be refused: a stranger, a node twice, an orphan, too many nodes.
    void spoil(Ints nodes) {
        if (n_leaves(nodes) > cache->n_ids) {
            return; // it may run out of ids before
        }
        const int32_t strangers[] = {-1, cache->tree_capacity, INT32_MAX, INT32_MIN};
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

    void take_back(int32_t length) {
        CHECK(dyspec_cache_rewind(cache.get(), length) == length);
        text.resize(size_t(length));
        check_text();
    }

    // Plainly, as a prompt is.
    void read() {
        Ints tokens;
        for (int32_t n = 1 + below(cache->max_rows); n > 0; n--) {
            tokens.push_back(next_token++);
        }
        llama.fails = below(4) == 0;
        const int32_t code = dyspec_cache_read(cache.get(), tokens.data(), int32_t(tokens.size()));
        CHECK(code == (llama.fails ? int32_t(DYSPEC_E_DECODE) : 0));
        if (!llama.fails) {
            text.insert(text.end(), tokens.begin(), tokens.end());
        }
        llama.fails = false;
        check_text();
    }

    void time_pass() {
        double seconds = -1;
        llama.fails = below(4) == 0;
        const int32_t length =
            dyspec_cache_time_pass(cache.get(), 1 + below(cache->max_rows), &seconds);
        CHECK(length == (llama.fails ? int32_t(DYSPEC_E_DECODE) : int32_t(text.size())));
        CHECK(seconds >= 0);
        llama.fails = false;
        check_text();
    }

    void check_text() const {
        CHECK(cache->n_past == int32_t(text.size()) && cache->n_used == 1 && cache->n_seen == 0);
        const int32_t first_id = cache->first_id;
        CHECK(llama.tokens(first_id) == text);
        for (int32_t id = 1; id < cache->n_ids; id++) {
            const Ints tokens = llama.tokens(first_id + id);
            CHECK(int32_t(tokens.size()) == cache->shared[size_t(id)]);
            CHECK(tokens.size() <= text.size());
            CHECK(std::equal(tokens.begin(), tokens.end(), text.begin()));
        }
        for (size_t i = 0; i < cache->seq.size(); i++) {
            CHECK(cache->seq[i] == -1 && cache->continued[i] == 0 && cache->row[i] == 0);
        }
    }

    // A random piece of the tree.  Returns whether the step can go on.
    bool decode(const Ints &nodes, const Ints &unread) {
        const int32_t n_needed = n_leaves(nodes);
        if (n_needed > cache->n_ids) {
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
        text.assign(before.begin(), before.begin() + cache->n_past);
        if (llama.fails) {
            llama.fails = false;
            CHECK(n_rows == DYSPEC_E_DECODE && cache->decode_code == 2);
            check_text();
            return false;
        }
        CHECK(n_rows >= int32_t(nodes.size()) && n_rows <= cache->max_rows);
        CHECK(text == before && cache->n_used == n_needed);
        for (const int32_t node : nodes) {
            CHECK(is_placed(node) && cache->row[size_t(node)] != 0);
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
        CHECK(dyspec_cache_commit(cache.get(), path.data(), int32_t(path.size())) ==
              int32_t(n_kept));
        check_text();
    }

    void step() {
        llama.first_id = cache->first_id;
        llama.end_id = end_id();
        if (below(8) == 0) {
            read();
        }
        if (below(8) == 0) {
            time_pass();
        }
        grow();
        check_order();
        Ints unread;
        for (int32_t n = below(4) ? below(3) : below(40); n > 0; n--) {
            unread.push_back(next_token++);
        }
        Ints nodes = next_nodes(1 + below(std::min(cache->max_outputs, 8)));
        if (n_leaves(nodes) > cache->n_ids) {
            nodes = {0};
        }
        if (!decode(nodes, unread)) {
            return;
        }
        for (int32_t pass = below(6); pass > 0; pass--) {
            nodes = next_nodes(1 + below(std::min(cache->max_outputs, 12)));
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

    void check_order() {
        const int32_t n = size();
        Ints scratch(2 * size_t(n)), order(static_cast<size_t>(n));
        CHECK(dyspec_depth_first(parent.data(), n, scratch.data(), order.data()) == n);
        for (size_t i = 1; i < size_t(n); i++) {
            // Behind its parent, or behind all that is below a sibling.
            const Ints before = path_to(order[i - 1]);
            const int32_t above = parent[size_t(order[i])];
            CHECK(std::count(before.begin(), before.end(), above) == 1);
        }
        Ints loops = parent;
        const int32_t late = below(n);
        loops[size_t(late)] = late + below(3);
        CHECK(dyspec_depth_first(loops.data(), n, scratch.data(), order.data()) ==
              (late == 0 ? n : int32_t(DYSPEC_E_ARGUMENT)));
    }
};

void run(uint32_t seed) {
    std::mt19937 rng(seed);
    FakeLlama llama;
    int32_t next_token = 1000;
    std::vector<std::unique_ptr<Conversation>> all;
    for (int32_t n = 1 + int32_t(rng() % 3), first_id = int32_t(rng() % 3); n > 0; n--) {
        all.push_back(std::make_unique<Conversation>(rng, llama, next_token, first_id));
        first_id = all.back()->end_id() + int32_t(rng() % 2);
    }
    for (size_t step = 0; step < 5 * all.size(); step++) {
        all[rng() % all.size()]->step();
        for (const auto &conversation : all) {
            conversation->check_text();
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    using Clock = std::chrono::steady_clock;
    const std::chrono::duration<double> limit(argc > 1 ? std::atof(argv[1]) : 3.0);
    const uint32_t first = argc > 2 ? uint32_t(std::strtoul(argv[2], nullptr, 10)) : 0;
    const Clock::time_point started = Clock::now();
    uint32_t seed = first;
    try {
        do {
            run(seed++);
        } while (Clock::now() - started < limit);
    } catch (const std::exception &error) {
        std::printf("seed %u: %s\n", seed - 1, error.what());
        return 1;
    }
    std::printf("%u shared caches from seed %u on\n", seed - first, first);
    return 0;
}
