#include "check.h"
#include "dyspec.h"

#if defined(__linux__)

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

// As much of a node as the stream looks at.
struct ggml_tensor {
    const char *op;
    ggml_tensor *src[10];
    void *data;
    int64_t n;
};

namespace {

const dyspec_graph_functions FUNCTIONS = {
    [](const ggml_tensor *tensor) { return tensor->op; },
    [](const ggml_tensor *tensor) { return tensor->data; },
    [](const ggml_tensor *tensor) { return tensor->n; },
};

constexpr int32_t PAGES = 4096;

// A file of random bytes, mapped, and weights at odd places of it.
struct Mapped {
    std::vector<uint8_t> bytes;
    std::vector<dyspec_weight> weights;
    std::vector<ggml_tensor> tensors;
    std::string path;
    uint8_t *base = nullptr;
    dyspec_weight_stream *stream = nullptr;

    explicit Mapped(const std::vector<uint64_t> &sizes, uint64_t row_size = 0) {
        std::mt19937 random(1);
        uint64_t at = 100;
        for (uint64_t size : sizes) {
            weights.push_back({at, size, at, row_size, 0});
            at += size;
        }
        bytes.resize(at);
        for (uint8_t &byte : bytes)
            byte = uint8_t(random());
        char name[] = "/tmp/dyspec-weights-XXXXXX";
        const int fd = mkstemp(name);
        path = name;
        CHECK(write(fd, bytes.data(), bytes.size()) == ssize_t(bytes.size()));
        base = static_cast<uint8_t *>(mmap(nullptr, at, PROT_READ, MAP_SHARED, fd, 0));
        close(fd);
        for (dyspec_weight &weight : weights) {
            weight.address = uint64_t(base) + weight.offset;
            tensors.push_back({"NONE", {}, reinterpret_cast<void *>(weight.address), 0});
        }
        const char *paths[] = {path.c_str()};
        stream = dyspec_weight_stream_create(&FUNCTIONS, offsetof(ggml_tensor, src), paths, 1,
                                             weights.data(), int32_t(weights.size()));
        CHECK(stream != nullptr);
    }

    ~Mapped() {
        dyspec_weight_stream_free(stream);
        munmap(base, bytes.size());
        unlink(path.c_str());
    }

    void start(const std::vector<int32_t> &places, const std::vector<int32_t> &order,
               uint64_t window) {
        CHECK(dyspec_weight_stream_start(stream, places.data(), order.data(), int32_t(order.size()),
                                         window, 2 * PAGES, 2) == 0);
        while (dyspec_weight_stream_fill(stream, PAGES) > 0)
            ;
    }

    bool is_right(int32_t w, uint64_t begin, uint64_t size) const {
        const dyspec_weight &weight = weights[w];
        return std::memcmp(base + weight.offset + begin, bytes.data() + weight.offset + begin,
                           size) == 0;
    }

    // A pass over the weights; whether all bytes were right at the time of their use.
    bool pass(dyspec_gate *gate, const std::vector<int32_t> &order) {
        bool right = true;
        for (int32_t w : order) {
            ggml_tensor node = {"MUL_MAT", {&tensors[w]}, nullptr, 0};
            const bool ends_here = dyspec_gate_eval(&node, true, gate);
            if (dyspec_gate_abort(gate))
                return false;
            right = right && is_right(w, 0, weights[w].size);
            if (ends_here)
                dyspec_gate_eval(&node, false, gate);
        }
        return right;
    }
};

std::vector<uint64_t> odd_sizes(int32_t n) {
    std::mt19937 random(2);
    std::vector<uint64_t> sizes;
    for (int32_t i = 0; i < n; i++)
        sizes.push_back(random() % (4 * PAGES) + 1);
    return sizes;
}

} // namespace

TEST(streamed_weights_are_right_whenever_they_are_used) {
    const std::vector<uint64_t> sizes = odd_sizes(24);
    Mapped mapped(sizes);
    std::vector<int32_t> places, order, all;
    for (int32_t i = 0; i < 24; i++) {
        places.push_back(i % 3 == 0 ? DYSPEC_RESIDENT : DYSPEC_STREAMED);
        all.push_back(23 - i);
        if ((23 - i) % 3 != 0)
            order.push_back(23 - i);
    }
    mapped.start(places, order, 4 * PAGES); // the smallest window: one weight at a time
    dyspec_gate *gate = dyspec_gate_create(mapped.stream, nullptr);
    for (int32_t i = 0; i < 3000; i++)
        CHECK(mapped.pass(gate, all));
    double totals[6];
    dyspec_weight_stream_totals(mapped.stream, totals);
    CHECK(totals[4] == 3000);
    CHECK(totals[5] == 0);
    dyspec_gate_free(gate);
}

TEST(a_pass_may_begin_anywhere_and_end_anywhere) {
    Mapped mapped(odd_sizes(12));
    std::vector<int32_t> order;
    for (int32_t i = 0; i < 12; i++)
        order.push_back(i);
    mapped.start(std::vector<int32_t>(12, DYSPEC_STREAMED), order, 6 * PAGES);
    int32_t flag = 0;
    dyspec_gate *gate = dyspec_gate_create(mapped.stream, &flag);
    std::mt19937 random(3);
    for (int32_t i = 0; i < 1000; i++) {
        std::vector<int32_t> some(order.begin() + random() % 12, order.end());
        some.resize(random() % some.size() + 1);
        CHECK(mapped.pass(gate, some));
    }
    flag = 1;
    CHECK(!mapped.pass(gate, order));
    flag = 0;
    CHECK(mapped.pass(gate, order));
    dyspec_gate_free(gate);
}

TEST(rows_are_read_when_they_are_used) {
    constexpr uint64_t ROW = 1000;
    Mapped mapped({500, 200 * ROW, 500}, ROW);
    mapped.start({DYSPEC_RESIDENT, DYSPEC_ROWS, DYSPEC_RESIDENT}, {}, 0);
    dyspec_gate *gate = dyspec_gate_create(mapped.stream, nullptr);
    std::mt19937 random(4);
    for (int32_t i = 0; i < 500; i++) {
        std::vector<int32_t> ids;
        for (int32_t j = 0; j < 3; j++)
            ids.push_back(int32_t(random() % 200));
        ggml_tensor rows = {"NONE", {}, ids.data(), 3};
        ggml_tensor node = {"GET_ROWS", {&mapped.tensors[1], &rows}, nullptr, 0};
        CHECK(dyspec_gate_eval(&node, true, gate));
        CHECK(!dyspec_gate_abort(gate));
        for (int32_t id : ids)
            CHECK(mapped.is_right(1, uint64_t(id) * ROW, ROW));
        dyspec_gate_eval(&node, false, gate);
    }
    CHECK(mapped.is_right(0, 0, 500));
    CHECK(mapped.is_right(2, 0, 500));
    double totals[6];
    dyspec_weight_stream_totals(mapped.stream, totals);
    CHECK(totals[1] > 3 * PAGES); // more than there is room for: rows were dropped and read again
    dyspec_gate_free(gate);
}

TEST(a_file_that_changes_stops_passes) {
    for (bool cut : {true, false}) {
        Mapped mapped(odd_sizes(12));
        std::vector<int32_t> order;
        for (int32_t i = 0; i < 12; i++)
            order.push_back(i);
        mapped.start(std::vector<int32_t>(12, DYSPEC_STREAMED), order, 4 * PAGES);
        dyspec_gate *gate = dyspec_gate_create(mapped.stream, nullptr);
        CHECK(mapped.pass(gate, order));
        if (cut) {
            CHECK(truncate(mapped.path.c_str(), 3 * PAGES) == 0);
        } else {
            const int fd = open(mapped.path.c_str(), O_WRONLY);
            CHECK(pwrite(fd, "x", 1, 4000) == 1);
            close(fd);
        }
        // What was read before is still right; then passes stop, each of them.
        for (int32_t i = 0; i < 3; i++)
            mapped.pass(gate, order);
        CHECK(!mapped.pass(gate, order));
        CHECK(!mapped.pass(gate, order));
        int32_t file, number;
        const int32_t kind = dyspec_weight_stream_failure(mapped.stream, &file, &number);
        CHECK(kind == (cut ? DYSPEC_STREAM_TRUNCATED : DYSPEC_STREAM_CHANGED));
        dyspec_gate_free(gate);
    }
}

TEST(a_stream_refuses_what_cannot_be) {
    Mapped mapped({5 * PAGES, 2 * PAGES});
    const int32_t places[] = {DYSPEC_STREAMED, DYSPEC_STREAMED}, order[] = {0, 1};
    // a window that is too small, and a streamed weight that has no place in the order
    CHECK(dyspec_weight_stream_start(mapped.stream, places, order, 2, 3 * PAGES, 0, 1) < 0);
    Mapped other({5 * PAGES, 2 * PAGES});
    CHECK(dyspec_weight_stream_start(other.stream, places, order, 1, 9 * PAGES, 0, 1) < 0);
    const char *paths[] = {"/nowhere"};
    CHECK(!dyspec_weight_stream_create(&FUNCTIONS, 0, paths, 1, other.weights.data(), 2));
}

TEST(a_file_that_cannot_be_read_is_a_failure) {
    // Of a directory there is a size, but nothing can be read.
    constexpr uint64_t SIZE = 100;
    void *base = mmap(nullptr, PAGES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const dyspec_weight weight = {uint64_t(base), SIZE, 0, 0, 0};
    const char *paths[] = {"/"};
    dyspec_weight_stream *stream = dyspec_weight_stream_create(&FUNCTIONS, 0, paths, 1, &weight, 1);
    CHECK(stream != nullptr);
    const int32_t place = DYSPEC_RESIDENT;
    CHECK(dyspec_weight_stream_start(stream, &place, nullptr, 0, 0, 0, 1) == 0);
    CHECK(dyspec_weight_stream_fill(stream, SIZE) == DYSPEC_E_DECODE);
    int32_t file, number;
    CHECK(dyspec_weight_stream_failure(stream, &file, &number) == DYSPEC_STREAM_UNREADABLE);
    CHECK(number == EISDIR);
    dyspec_weight_stream_free(stream);
    munmap(base, PAGES);
}

TEST(uses_are_noted_before_a_stream_starts) {
    Mapped mapped({100, 100, 100, 100});
    dyspec_gate *gate = dyspec_gate_create(mapped.stream, nullptr);
    ggml_tensor ids = {"NONE", {}, nullptr, 1}, chosen = {"ARGSORT", {}, nullptr, 1};
    auto *t = mapped.tensors.data();
    ggml_tensor nodes[] = {
        {"GET_ROWS", {&t[3], &ids}, nullptr, 0},   {"GET_ROWS", {&t[2], &chosen}, nullptr, 0},
        {"MUL", {&ids, &t[0]}, nullptr, 0},        {"MUL_MAT", {&t[1], &ids}, nullptr, 0},
        {"MUL_MAT_ID", {&t[2], &ids}, nullptr, 0},
    };
    for (ggml_tensor &node : nodes)
        CHECK(!dyspec_gate_eval(&node, true, gate));
    int32_t weights[5], uses[5];
    CHECK(dyspec_weight_stream_uses(mapped.stream, weights, uses, 5) == 5);
    const std::vector<int32_t> found_weights(weights, weights + 5), found_uses(uses, uses + 5);
    CHECK(found_weights == std::vector<int32_t>({3, 2, 0, 1, 2}));
    CHECK(found_uses ==
          std::vector<int32_t>({DYSPEC_ROWS_TAKEN, DYSPEC_USED_OTHERWISE, DYSPEC_USED_OTHERWISE,
                                DYSPEC_MULTIPLIED, DYSPEC_MULTIPLIED_BY_CHOICE}));
    dyspec_gate_free(gate);
}

#endif
