// Weights that are read again in every pass.
#ifndef DYSPEC_WEIGHT_STREAM_H
#define DYSPEC_WEIGHT_STREAM_H

#include "clock.h"
#include "dyspec.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// A cycle is all streamed weights in the order of use, their whole pages only.  Its bytes lie at
// their place modulo the ring's size, so that each address belongs to one page of the ring for
// good, and nothing is mapped, faulted in or cleared while passes run.
//
//     cycle   | attn_q 0 | ffn_up 0 | attn_q 1 | ffn_up 1 | ... |
//     ring    | ffn_up 1 ~~~ | attn_q 1 |~~~~~|                      ~ being read
//
// The rest of the weights' address range, the pages that two weights share among it, is anonymous
// memory that is read once.
struct dyspec_weight_stream {
    struct Weight {
        uint8_t *data;
        uint64_t size, offset, row_size;
        int32_t file, place, item; // item: place in the order of use, or -1
        uint8_t *begin, *end;      // its whole pages
    };

    struct Use {
        int32_t weight, use;
    };

    dyspec_weight_stream(const dyspec_graph_functions &functions, int32_t src_offset);
    ~dyspec_weight_stream();
    dyspec_weight_stream(const dyspec_weight_stream &) = delete;
    dyspec_weight_stream &operator=(const dyspec_weight_stream &) = delete;

    int32_t open(const char *const *paths, int32_t n_files);
    int32_t add(const dyspec_weight *added, int32_t n);
    int32_t start(const int32_t *places, const int32_t *order, int32_t n_order, uint64_t window,
                  uint64_t rows_room, int32_t n_threads);
    int64_t fill(uint64_t n_bytes);
    int32_t find(const void *data) const;

    // The weight's bytes are there when this returns true; false: interrupted or failed.
    bool acquire(int32_t weight, const int32_t *flag);
    void release(); // what was acquired last
    double seconds_of_reading() const;
    bool load_rows(Weight &weight, const int32_t *ids, int64_t n);

    const dyspec_graph_functions functions;
    const int32_t src_offset;
    bool recording = true;
    std::vector<Weight> weights; // by address
    std::vector<Use> uses;

    std::mutex mutex;
    int32_t failure[3] = {0, 0, 0}; // kind, file, errno
    std::atomic<int64_t> n_bytes{0}, n_row_bytes{0};
    int64_t n_passes = 0, n_jumps = 0;
    double read_seconds = 0, wait_seconds = 0;

  private:
    struct File {
        int fd;
        bool direct;
        int64_t size, modified;
    };

    struct Run { // resident pages
        uint8_t *begin, *end;
        int32_t weight;
    };

    struct Position {
        int64_t cycle = 0;
        int32_t item = 0;
        uint64_t done = 0;
    };

    void fail(int32_t kind, int32_t file, int32_t number);
    int32_t map_resident();
    int32_t map_ring(uint64_t window);
    bool read(const Weight &weight, uint8_t *begin, uint64_t size);
    bool is_unchanged();
    uint64_t place_of(const Position &position) const;
    uint64_t size_of(int32_t item) const;
    uint64_t num_loaded() const;
    void jump(std::unique_lock<std::mutex> &lock, int32_t item);
    void run(int32_t thread);

    const uint64_t page;
    std::vector<File> files;
    std::vector<Run> resident;
    size_t n_filled = 0;
    std::vector<int32_t> order;   // weights
    std::vector<uint64_t> starts; // of the items, in the cycle
    uint64_t cycle_size = 0, ring_size = 0, rows_room = 0, rows_used = 0;
    std::vector<std::vector<bool>> row_pages; // by weight

    std::condition_variable changed;
    std::vector<std::thread> threads;
    std::vector<uint64_t> reading; // by thread: where it reads, or NOWHERE
    Position next;                 // what is to be read
    Position current;              // what is to be used
    uint64_t released = 0;
    bool held = false, paused = false, stopped = false;
    int32_t n_reading = 0;
    dyspec::Clock::time_point busy_since;
};

#endif
