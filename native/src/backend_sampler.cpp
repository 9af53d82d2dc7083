// A sampler of llama.cpp's that runs inside the decode graph, on whatever device holds the logits.
//
//   logits [V] -+- top_k -------------------------> ids   [k], in no order
//               +- get_rows(logits, ids) ---------> their logits
//               +- get_rows(soft_max(logits), ids)  their probabilities
//
// A probability p of a logit x gives the row's log-sum-exp as x - log p, without operations that
// some backends lack.  llama.cpp copies the three to the host; the row itself stays on the device.
#include "dyspec.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Layouts of llama.h; the caller knows for which commits they hold.

struct llama_sampler {
    llama_sampler_i *iface;
    void *ctx;
};

struct llama_sampler_data {
    ggml_tensor *logits;
    ggml_tensor *probs;
    ggml_tensor *sampled;
    ggml_tensor *candidates;
};

struct llama_sampler_i {
    const char *(*name)(const llama_sampler *);
    void (*accept)(llama_sampler *, int32_t token);
    void (*apply)(llama_sampler *, void *candidates);
    void (*reset)(llama_sampler *);
    llama_sampler *(*clone)(const llama_sampler *);
    void (*free)(llama_sampler *);
    bool (*backend_init)(llama_sampler *, void *buffer_type, uint32_t n_outputs_max_per_seq);
    void (*backend_accept)(llama_sampler *, ggml_context *, void *graph, ggml_tensor *token);
    void (*backend_apply)(llama_sampler *, ggml_context *, void *graph, llama_sampler_data *);
    void (*backend_set_input)(llama_sampler *);
    void (*backend_reset)(llama_sampler *);
    void (*copy_state)(const llama_sampler *from, llama_sampler *to);
};

namespace dyspec {
namespace {

constexpr int ggml_type_f32 = 0;
constexpr int32_t max_k = 256;

// Vulkan ends the process where soft-max reads from an address that its device cannot bind; no
// device asks for more than this (minStorageBufferOffsetAlignment).
constexpr int64_t row_alignment = 256;

dyspec_device &device_of(const llama_sampler *sampler) {
    return *static_cast<dyspec_device *>(sampler->ctx);
}

const char *name(const llama_sampler *) {
    return "dyspec-topk";
}

void apply_on_host(llama_sampler *, void *) {}

void add_to_graph(llama_sampler *sampler, ggml_context *ctx, void *, llama_sampler_data *data) {
    const dyspec_device &d = device_of(sampler);
    const int64_t n_row = d.ggml_nelements(data->logits);
    const int64_t n = std::min<int64_t>(d.n_vocab, n_row);
    ggml_tensor *row = d.ggml_view_1d(ctx, data->logits, n, 0);
    if (n_row * int64_t(sizeof(float)) % row_alignment != 0) {
        row = d.ggml_cont(ctx, row);
    }
    ggml_tensor *ids = d.ggml_top_k(ctx, row, int(std::min<int64_t>(d.k, n)));
    const auto gather = [&](ggml_tensor *values) {
        return d.ggml_get_rows(ctx, d.ggml_reshape_2d(ctx, values, 1, n), ids);
    };
    data->candidates = ids;
    data->logits = gather(row);
    data->probs = gather(d.ggml_soft_max(ctx, row));
    // llama.cpp does this for the sequences of a pass alone, but keeps the places in memory from
    // pass to pass: a sequence that comes later would find its place given to others.
    for (ggml_tensor *tensor : {data->candidates, data->logits, data->probs}) {
        d.ggml_set_output(tensor);
    }
}

bool has_operations(llama_sampler *sampler, void *device) {
    const dyspec_device &d = device_of(sampler);
    ggml_context *ctx = d.ggml_init({16 * d.ggml_tensor_overhead(), nullptr, true});
    if (ctx == nullptr) {
        return false;
    }
    llama_sampler_data data{};
    data.logits = d.ggml_new_tensor_1d(ctx, ggml_type_f32, d.n_vocab);
    add_to_graph(sampler, ctx, nullptr, &data);
    bool all = true;
    for (ggml_tensor *tensor = d.ggml_get_first_tensor(ctx); tensor != nullptr;
         tensor = d.ggml_get_next_tensor(ctx, tensor)) {
        all = all && d.ggml_backend_dev_supports_op(device, tensor);
    }
    d.ggml_free(ctx);
    return all;
}

bool init_on_device(llama_sampler *sampler, void *buffer_type, uint32_t) {
    dyspec_device &d = device_of(sampler);
    // A buffer without a device is the CPU's, which has everything.
    void *device = d.ggml_backend_buft_get_device(buffer_type);
    const bool supported = device == nullptr || has_operations(sampler, device);
    d.n_supported += supported;
    return supported;
}

llama_sampler_i interface = {
    name,           nullptr, apply_on_host, nullptr, nullptr, nullptr,
    init_on_device, nullptr, add_to_graph,  nullptr, nullptr, nullptr,
};

// The candidates of one row, largest first, lower id first among equals.
int32_t read_row(const dyspec_device &d, llama_context *context, int32_t row, int32_t *ids,
                 float *logits, float *lse) {
    const int32_t *found = d.llama_get_sampled_candidates_ith(context, row);
    const float *values = d.llama_get_sampled_logits_ith(context, row);
    const float *probs = d.llama_get_sampled_probs_ith(context, row);
    const uint32_t n = d.llama_get_sampled_candidates_count_ith(context, row);
    if (found == nullptr || values == nullptr || probs == nullptr || n < 1 || n > uint32_t(d.k) ||
        n != d.llama_get_sampled_logits_count_ith(context, row) ||
        n != d.llama_get_sampled_probs_count_ith(context, row)) {
        return DYSPEC_E_ARGUMENT;
    }
    dyspec_candidate best[max_k];
    for (uint32_t i = 0; i < n; i++) {
        // Soft-max spreads one NaN or +inf over all probabilities.
        if (found[i] < 0 || found[i] >= d.n_vocab || std::isnan(values[i]) ||
            !std::isfinite(probs[i])) {
            return DYSPEC_E_NOT_FINITE;
        }
        best[i] = {found[i], values[i], probs[i]};
    }
    std::sort(best, best + n, [](const dyspec_candidate &a, const dyspec_candidate &b) {
        return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    });
    *lse = float(double(best[0].logit) - std::log(double(best[0].p)));
    if (!std::isfinite(*lse)) {
        return DYSPEC_E_NOT_FINITE;
    }
    for (int32_t i = 0; i < d.k; i++) {
        const bool there = i < int32_t(n);
        ids[i] = there ? best[i].id : -1;
        logits[i] = there ? best[i].logit : -std::numeric_limits<float>::infinity();
    }
    return 0;
}

} // namespace
} // namespace dyspec

using namespace dyspec;

extern "C" {

llama_sampler *dyspec_device_sampler(dyspec_device *device) {
    return device->llama_sampler_init(&interface, device);
}

int32_t dyspec_device_read(const dyspec_device *device, llama_context *context, const int32_t *rows,
                           int32_t n_rows, int32_t *ids, float *logits, float *lse) {
    if (device->k < 1 || device->k > max_k || device->n_vocab < 1) {
        return DYSPEC_E_ARGUMENT;
    }
    for (int32_t i = 0; i < n_rows; i++) {
        const int64_t at = int64_t(i) * device->k;
        const int32_t code = read_row(*device, context, rows[i], ids + at, logits + at, lse + i);
        if (code == DYSPEC_E_NOT_FINITE) {
            return DYSPEC_E_ROW - i;
        }
        if (code < 0) {
            return code;
        }
    }
    return 0;
}

} // extern "C"
