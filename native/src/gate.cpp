// Where the passes of a context wait for their weights.
#include "dyspec.h"
#include "objects.h"

#if defined(__linux__)

#include "weight_stream.h"

#include <cstring>

struct dyspec_gate {
    dyspec_weight_stream *stream;
    const int32_t *flag;
    std::atomic<bool> is_broken{false};
    bool holds = false;

    dyspec_gate(dyspec_weight_stream *stream, const int32_t *flag) : stream(stream), flag(flag) {}
};

namespace {

constexpr int32_t MAX_SRC = 10; // GGML_MAX_SRC

ggml_tensor *source(const dyspec_weight_stream &stream, const ggml_tensor *node, int32_t i) {
    ggml_tensor *found = nullptr;
    const auto *at = reinterpret_cast<const char *>(node) + stream.src_offset;
    std::memcpy(&found, at + size_t(i) * sizeof found, sizeof found);
    return found;
}

int32_t use_of(const dyspec_weight_stream &stream, const ggml_tensor *node, int32_t i) {
    const char *op = stream.functions.op_desc(node);
    if (i != 0)
        return DYSPEC_USED_OTHERWISE;
    if (std::strcmp(op, "MUL_MAT") == 0)
        return DYSPEC_MULTIPLIED;
    if (std::strcmp(op, "MUL_MAT_ID") == 0)
        return DYSPEC_MULTIPLIED_BY_CHOICE;
    // Rows are known before the pass if they are an input of the graph.
    const ggml_tensor *rows = source(stream, node, 1);
    if (std::strcmp(op, "GET_ROWS") == 0 &&
        std::strcmp(stream.functions.op_desc(rows), "NONE") == 0)
        return DYSPEC_ROWS_TAKEN;
    return DYSPEC_USED_OTHERWISE;
}

// Has what a node uses ready, before it and what stands before it are computed.  Returns whether
// no later node may be looked at before that is done.
bool prepare(dyspec_gate &gate, const ggml_tensor *node) {
    dyspec_weight_stream &stream = *gate.stream;
    bool ends_here = false;
    for (int32_t i = 0; i < MAX_SRC; i++) {
        const ggml_tensor *src = source(stream, node, i);
        const int32_t index = src ? stream.find(stream.functions.get_data(src)) : -1;
        if (index < 0)
            continue;
        if (stream.recording) {
            stream.uses.push_back({index, use_of(stream, node, i)});
            continue;
        }
        dyspec_weight_stream::Weight &weight = stream.weights[index];
        bool ok = true;
        ends_here |= weight.place == DYSPEC_STREAMED || weight.place == DYSPEC_ROWS;
        if (weight.place == DYSPEC_STREAMED && !gate.holds) {
            ok = stream.acquire(index, gate.flag);
            gate.holds = ok;
        } else if (weight.place == DYSPEC_STREAMED) {
            ok = false; // two at once were not planned for
        } else if (weight.place == DYSPEC_ROWS) {
            const ggml_tensor *rows = source(stream, node, 1);
            ok = i == 0 && use_of(stream, node, 0) == DYSPEC_ROWS_TAKEN &&
                 stream.load_rows(weight,
                                  static_cast<const int32_t *>(stream.functions.get_data(rows)),
                                  stream.functions.nelements(rows));
        }
        if (!ok)
            gate.is_broken = true;
    }
    return ends_here;
}

} // namespace

#endif

extern "C" {

#if defined(__linux__)

dyspec_gate *dyspec_gate_create(dyspec_weight_stream *stream, const int32_t *flag) {
    return dyspec::make<dyspec_gate>(stream, flag);
}

void dyspec_gate_free(dyspec_gate *gate) {
    delete gate;
}

void dyspec_gate_watch(dyspec_gate *gate, const int32_t *flag) {
    gate->flag = flag;
}

bool dyspec_gate_eval(struct ggml_tensor *node, bool ask, void *data) {
    auto &gate = *static_cast<dyspec_gate *>(data);
    if (!ask) {
        if (gate.holds)
            gate.stream->release();
        return true;
    }
    gate.holds = false; // of a pass that was stopped
    return prepare(gate, node);
}

bool dyspec_gate_abort(void *data) {
    auto &gate = *static_cast<dyspec_gate *>(data);
    const bool is_broken = gate.is_broken.exchange(false);
    return is_broken || (gate.flag != nullptr && dyspec_abort(const_cast<int32_t *>(gate.flag)));
}

#else

dyspec_gate *dyspec_gate_create(dyspec_weight_stream *, const int32_t *) {
    return nullptr;
}

void dyspec_gate_free(dyspec_gate *) {}

void dyspec_gate_watch(dyspec_gate *, const int32_t *) {}

bool dyspec_gate_eval(struct ggml_tensor *, bool, void *) {
    return false;
}

bool dyspec_gate_abort(void *) {
    return false;
}

#endif

} // extern "C"
