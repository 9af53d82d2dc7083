// Reading weights ahead of the passes that use them.
#include "weight_stream.h"

#include "objects.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#if defined(__linux__)

namespace {

constexpr uint64_t CHUNK = 2 << 20; // of one read: large enough for a disk's full speed
constexpr uint64_t NOWHERE = ~uint64_t(0);
constexpr auto POLL = std::chrono::milliseconds(20); // how late an interruption may be noticed

void *map_fixed(uint8_t *begin, uint8_t *end, int fd, uint64_t offset) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    return mmap(begin, size_t(end - begin), PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd,
                off_t(offset));
}

} // namespace

dyspec_weight_stream::dyspec_weight_stream(const dyspec_graph_functions &functions,
                                           int32_t src_offset)
    : functions(functions), src_offset(src_offset), page(uint64_t(sysconf(_SC_PAGESIZE))) {}

dyspec_weight_stream::~dyspec_weight_stream() {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        stopped = true;
    }
    changed.notify_all();
    for (std::thread &thread : threads)
        thread.join();
    for (const File &file : files)
        close(file.fd);
}

int32_t dyspec_weight_stream::open(const char *const *paths, int32_t n_files) {
    for (int32_t i = 0; i < n_files; i++) {
        int fd = ::open(paths[i], O_RDONLY | O_CLOEXEC | O_DIRECT);
        const bool direct = fd >= 0;
        if (!direct)
            fd = ::open(paths[i], O_RDONLY | O_CLOEXEC); // not every file system has it
        if (fd < 0)
            return DYSPEC_E_ARGUMENT;
        struct stat found;
        if (fstat(fd, &found) != 0) {
            close(fd);
            return DYSPEC_E_ARGUMENT;
        }
        const int64_t modified = int64_t(found.st_mtim.tv_sec) * 1000000000 + found.st_mtim.tv_nsec;
        files.push_back({fd, direct, int64_t(found.st_size), modified});
    }
    return 0;
}

int32_t dyspec_weight_stream::add(const dyspec_weight *added, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const dyspec_weight &w = added[i];
        if (w.file < 0 || w.file >= int32_t(files.size()) || w.size == 0 ||
            w.offset + w.size > uint64_t(files[w.file].size) ||
            w.address % page != w.offset % page ||
            (!weights.empty() && w.address < uint64_t(weights.back().data) + weights.back().size))
            return DYSPEC_E_ARGUMENT;
        const uint64_t begin = (w.address + page - 1) / page * page;
        const uint64_t end = std::max(begin, (w.address + w.size) / page * page);
        weights.push_back({reinterpret_cast<uint8_t *>(w.address), w.size, w.offset, w.row_size,
                           w.file, DYSPEC_RESIDENT, -1, reinterpret_cast<uint8_t *>(begin),
                           reinterpret_cast<uint8_t *>(end)});
    }
    row_pages.resize(weights.size());
    return 0;
}

int32_t dyspec_weight_stream::find(const void *data) const {
    const auto *at = static_cast<const uint8_t *>(data);
    const auto after =
        std::upper_bound(weights.begin(), weights.end(), at,
                         [](const uint8_t *a, const Weight &w) { return a < w.data; });
    if (after == weights.begin())
        return -1;
    const Weight &weight = *(after - 1);
    return at < weight.data + weight.size ? int32_t(after - 1 - weights.begin()) : -1;
}

int32_t dyspec_weight_stream::start(const int32_t *places, const int32_t *streamed, int32_t n,
                                    uint64_t window, uint64_t room, int32_t n_threads) {
    if (!recording || n_threads < 1)
        return DYSPEC_E_ARGUMENT;
    for (size_t i = 0; i < weights.size(); i++)
        weights[i].place = places[i];
    rows_room = room;
    for (int32_t i = 0; i < n; i++) {
        const int32_t w = streamed[i];
        if (w < 0 || w >= int32_t(weights.size()) || weights[w].place != DYSPEC_STREAMED ||
            weights[w].item >= 0 || uint64_t(weights[w].end - weights[w].begin) > window)
            return DYSPEC_E_ARGUMENT;
        weights[w].item = i;
        order.push_back(w);
        starts.push_back(cycle_size);
        cycle_size += size_of(i);
    }
    for (const Weight &weight : weights)
        if (weight.place == DYSPEC_STREAMED && weight.item < 0)
            return DYSPEC_E_ARGUMENT;
    recording = false;
    const int32_t code = map_resident();
    if (code != 0 || cycle_size == 0)
        return code;
    const int32_t mapped = map_ring(window);
    if (mapped != 0)
        return mapped;
    reading.assign(size_t(n_threads), NOWHERE);
    for (int32_t i = 0; i < n_threads; i++)
        threads.emplace_back([this, i] { run(i); });
    return 0;
}

// All pages of the weights that are not the inside of one that has another place.
int32_t dyspec_weight_stream::map_resident() {
    const auto add_run = [this](uint8_t *begin, uint8_t *end, int32_t weight) {
        if (begin < end)
            resident.push_back({begin, end, weight});
        return begin >= end || map_fixed(begin, end, -1, 0) != MAP_FAILED;
    };
    uint8_t *done = nullptr;
    int32_t file = -1;
    for (int32_t i = 0; i < int32_t(weights.size()); i++) {
        const Weight &weight = weights[i];
        const uint64_t first = uint64_t(weight.data) / page * page;
        const uint64_t last = (uint64_t(weight.data) + weight.size + page - 1) / page * page;
        auto *begin = reinterpret_cast<uint8_t *>(first), *end = reinterpret_cast<uint8_t *>(last);
        begin = file == weight.file ? std::max(begin, done) : begin;
        file = weight.file;
        done = end;
        if (weight.place == DYSPEC_RESIDENT) {
            if (!add_run(begin, end, i))
                return DYSPEC_E_MEMORY;
            continue;
        }
        if (!add_run(begin, std::max(begin, weight.begin), i) ||
            !add_run(std::max(begin, weight.end), end, i))
            return DYSPEC_E_MEMORY;
        if (weight.place == DYSPEC_ROWS && weight.begin < weight.end) {
            if (map_fixed(weight.begin, weight.end, -1, 0) == MAP_FAILED)
                return DYSPEC_E_MEMORY;
            row_pages[i].assign(size_t(weight.end - weight.begin) / page, false);
        }
    }
    return 0;
}

int32_t dyspec_weight_stream::map_ring(uint64_t window) {
    const uint64_t n_turns = std::max<uint64_t>(1, cycle_size / window);
    ring_size = (cycle_size / n_turns + page) / page * page;
    cycle_size = ring_size * n_turns; // a few pages longer, so that the next cycle starts in place
    const int ring = memfd_create("weights", MFD_CLOEXEC);
    if (ring < 0)
        return DYSPEC_E_MEMORY;
    int32_t code =
        ftruncate(ring, off_t(ring_size)) == 0 && fallocate(ring, 0, 0, off_t(ring_size)) == 0
            ? 0
            : DYSPEC_E_MEMORY;
    for (size_t i = 0; i < order.size() && code == 0; i++) {
        uint8_t *at = weights[order[i]].begin, *end = weights[order[i]].end;
        for (uint64_t place = starts[i]; at < end;) {
            const uint64_t slot = place % ring_size;
            const uint64_t size = std::min(uint64_t(end - at), ring_size - slot);
            if (map_fixed(at, at + size, ring, slot) == MAP_FAILED) {
                code = DYSPEC_E_MEMORY;
                break;
            }
            madvise(at, size, MADV_POPULATE_WRITE); // where the kernel knows it: no faults later
            at += size;
            place += size;
        }
    }
    close(ring);
    return code;
}

int64_t dyspec_weight_stream::fill(uint64_t n) {
    for (uint64_t done = 0; n_filled < resident.size() && done < n;) {
        Run &run = resident[n_filled];
        const uint64_t size = std::min(CHUNK, uint64_t(run.end - run.begin));
        if (!read(weights[run.weight], run.begin, size))
            return DYSPEC_E_DECODE;
        run.begin += size;
        done += size;
        n_filled += run.begin == run.end;
    }
    int64_t left = 0;
    for (size_t i = n_filled; i < resident.size(); i++)
        left += resident[i].end - resident[i].begin;
    if (left == 0)
        for (const File &file : files) // what the load has left in the page cache
            posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
    return left;
}

// Bytes of the weight's file to their addresses; pages, of which the file's last may be cut off.
bool dyspec_weight_stream::read(const Weight &weight, uint8_t *begin, uint64_t size) {
    const File &file = files[weight.file];
    const int64_t at = int64_t(weight.offset) + (begin - weight.data);
    const uint64_t wanted = std::min(size, uint64_t(std::max<int64_t>(0, file.size - at)));
    for (uint64_t done = 0; done < wanted;) {
        const ssize_t n =
            pread(file.fd, begin + done, size_t(size - done), off_t(at + int64_t(done)));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fail(n < 0 ? DYSPEC_STREAM_UNREADABLE : DYSPEC_STREAM_TRUNCATED, weight.file, errno);
            return false;
        }
        done += uint64_t(n);
    }
    if (!file.direct)
        posix_fadvise(file.fd, off_t(at), off_t(size), POSIX_FADV_DONTNEED);
    n_bytes += int64_t(wanted);
    return true;
}

bool dyspec_weight_stream::is_unchanged() {
    for (size_t i = 0; i < files.size(); i++) {
        struct stat found;
        if (fstat(files[i].fd, &found) != 0) {
            fail(DYSPEC_STREAM_UNREADABLE, int32_t(i), errno);
            return false;
        }
        const int64_t modified = int64_t(found.st_mtim.tv_sec) * 1000000000 + found.st_mtim.tv_nsec;
        if (found.st_size < files[i].size || modified != files[i].modified) {
            fail(found.st_size < files[i].size ? DYSPEC_STREAM_TRUNCATED : DYSPEC_STREAM_CHANGED,
                 int32_t(i), 0);
            return false;
        }
    }
    return true;
}

void dyspec_weight_stream::fail(int32_t kind, int32_t file, int32_t number) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (failure[0] == 0) {
            failure[0] = kind;
            failure[1] = file;
            failure[2] = number;
        }
    }
    changed.notify_all();
}

bool dyspec_weight_stream::load_rows(Weight &weight, const int32_t *ids, int64_t n) {
    const int32_t index = int32_t(&weight - weights.data());
    std::vector<bool> &there = row_pages[index];
    if (there.empty())
        return true;
    if (rows_used + uint64_t(n) * (weight.row_size + page) > rows_room && rows_used > 0) {
        for (size_t i = 0; i < weights.size(); i++) {
            if (row_pages[i].empty())
                continue;
            row_pages[i].assign(row_pages[i].size(), false);
            madvise(weights[i].begin, size_t(weights[i].end - weights[i].begin), MADV_DONTNEED);
        }
        rows_used = 0;
    }
    const auto first_page = int64_t(weight.begin - weight.data);
    for (int64_t i = 0; i < n; i++) {
        const int64_t begin = int64_t(ids[i]) * int64_t(weight.row_size) - first_page;
        const int64_t end = begin + int64_t(weight.row_size);
        if (ids[i] < 0 || uint64_t(end + first_page) > weight.size)
            continue; // llama.cpp will refuse it
        const int64_t last =
            std::min<int64_t>((end + int64_t(page) - 1) / int64_t(page), int64_t(there.size()));
        for (int64_t p = std::max<int64_t>(0, begin) / int64_t(page); p < last; p++) {
            if (there[p])
                continue;
            if (!read(weight, weight.begin + p * int64_t(page), page))
                return false;
            there[p] = true;
            rows_used += page;
            n_row_bytes += int64_t(page);
        }
    }
    return true;
}

uint64_t dyspec_weight_stream::size_of(int32_t item) const {
    const Weight &weight = weights[order[item]];
    return uint64_t(weight.end - weight.begin);
}

uint64_t dyspec_weight_stream::place_of(const Position &position) const {
    return uint64_t(position.cycle) * cycle_size + starts[position.item] + position.done;
}

uint64_t dyspec_weight_stream::num_loaded() const {
    return std::min(place_of(next), *std::min_element(reading.begin(), reading.end()));
}

void dyspec_weight_stream::jump(std::unique_lock<std::mutex> &lock, int32_t item) {
    paused = true;
    changed.wait(lock, [this] { return n_reading == 0; });
    paused = false;
    current = {current.cycle + (item < current.item ? 1 : 0), item, 0};
    next = current;
    released = place_of(current);
    held = false;
    n_jumps++;
    changed.notify_all();
}

bool dyspec_weight_stream::acquire(int32_t weight, const int32_t *flag) {
    const auto start = dyspec::Clock::now();
    std::unique_lock<std::mutex> lock(mutex);
    const int32_t item = weights[weight].item;
    if (item != current.item)
        jump(lock, item);
    const uint64_t end = place_of(current) + size_of(item);
    const auto is_interrupted = [&] {
        return failure[0] != 0 || (flag != nullptr && __atomic_load_n(flag, __ATOMIC_RELAXED) != 0);
    };
    while (num_loaded() < end && !is_interrupted())
        changed.wait_for(lock, POLL);
    wait_seconds += dyspec::seconds_since(start);
    held = num_loaded() >= end && failure[0] == 0;
    return held;
}

void dyspec_weight_stream::release() {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!held)
            return;
        held = false;
        if (++current.item == int32_t(order.size())) {
            current = {current.cycle + 1, 0, 0};
            n_passes++;
        }
        released = place_of(current);
    }
    changed.notify_all();
}

double dyspec_weight_stream::seconds_of_reading() const {
    return read_seconds + (n_reading > 0 ? dyspec::seconds_since(busy_since) : 0.0);
}

void dyspec_weight_stream::run(int32_t thread) {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        changed.wait(lock, [this] {
            return stopped ||
                   (!paused && failure[0] == 0 && place_of(next) < released + ring_size &&
                    place_of(next) + std::min(CHUNK, size_of(next.item) - next.done) <=
                        released + ring_size);
        });
        if (stopped)
            return;
        const Weight &weight = weights[order[next.item]];
        uint8_t *begin = weight.begin + next.done;
        const uint64_t size = std::min(CHUNK, size_of(next.item) - next.done);
        const bool starts_cycle = next.item == 0 && next.done == 0;
        reading[thread] = place_of(next);
        next.done += size;
        if (next.done == size_of(next.item))
            next = next.item + 1 == int32_t(order.size()) ? Position{next.cycle + 1, 0, 0}
                                                          : Position{next.cycle, next.item + 1, 0};
        if (n_reading++ == 0)
            busy_since = dyspec::Clock::now();
        lock.unlock();
        if (!starts_cycle || is_unchanged())
            read(weight, begin, size);
        lock.lock();
        if (--n_reading == 0)
            read_seconds += dyspec::seconds_since(busy_since);
        // After a failure nothing counts as loaded any more.
        if (failure[0] == 0)
            reading[thread] = NOWHERE;
        changed.notify_all();
    }
}

#endif

extern "C" {

#if defined(__linux__)

dyspec_weight_stream *dyspec_weight_stream_create(const dyspec_graph_functions *functions,
                                                  int32_t src_offset, const char *const *paths,
                                                  int32_t n_files, const dyspec_weight *weights,
                                                  int32_t n_weights) {
    std::unique_ptr<dyspec_weight_stream> stream(
        dyspec::make<dyspec_weight_stream>(*functions, src_offset));
    if (!stream || stream->open(paths, n_files) != 0 || stream->add(weights, n_weights) != 0)
        return nullptr;
    return stream.release();
}

void dyspec_weight_stream_free(dyspec_weight_stream *stream) {
    delete stream;
}

int32_t dyspec_weight_stream_uses(dyspec_weight_stream *stream, int32_t *weights, int32_t *uses,
                                  int32_t capacity) {
    const int32_t n = std::min(capacity, int32_t(stream->uses.size()));
    for (int32_t i = 0; i < n; i++) {
        weights[i] = stream->uses[i].weight;
        uses[i] = stream->uses[i].use;
    }
    return int32_t(stream->uses.size());
}

int32_t dyspec_weight_stream_start(dyspec_weight_stream *stream, const int32_t *places,
                                   const int32_t *order, int32_t n_order, uint64_t window,
                                   uint64_t rows_room, int32_t n_threads) {
    return stream->start(places, order, n_order, window, rows_room, n_threads);
}

int64_t dyspec_weight_stream_fill(dyspec_weight_stream *stream, uint64_t n_bytes) {
    return stream->fill(n_bytes);
}

int32_t dyspec_weight_stream_failure(dyspec_weight_stream *stream, int32_t *file, int32_t *number) {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    *file = stream->failure[1];
    *number = stream->failure[2];
    return stream->failure[0];
}

void dyspec_weight_stream_totals(dyspec_weight_stream *stream, double *totals) {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    totals[0] = double(stream->n_bytes);
    totals[1] = double(stream->n_row_bytes);
    totals[2] = stream->seconds_of_reading();
    totals[3] = stream->wait_seconds;
    totals[4] = double(stream->n_passes);
    totals[5] = double(stream->n_jumps);
}

#else

dyspec_weight_stream *dyspec_weight_stream_create(const dyspec_graph_functions *, int32_t,
                                                  const char *const *, int32_t,
                                                  const dyspec_weight *, int32_t) {
    return nullptr;
}

void dyspec_weight_stream_free(dyspec_weight_stream *) {}

int32_t dyspec_weight_stream_uses(dyspec_weight_stream *, int32_t *, int32_t *, int32_t) {
    return 0;
}

int32_t dyspec_weight_stream_start(dyspec_weight_stream *, const int32_t *, const int32_t *,
                                   int32_t, uint64_t, uint64_t, int32_t) {
    return DYSPEC_E_ARGUMENT;
}

int64_t dyspec_weight_stream_fill(dyspec_weight_stream *, uint64_t) {
    return DYSPEC_E_ARGUMENT;
}

int32_t dyspec_weight_stream_failure(dyspec_weight_stream *, int32_t *, int32_t *) {
    return 0;
}

void dyspec_weight_stream_totals(dyspec_weight_stream *, double *) {}

#endif

} // extern "C"
