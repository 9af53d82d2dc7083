// A sampler of llama.cpp's that runs inside the decode graph, on whatever backend holds the logits.
//
//   logits [V] -+- top_k -------------------------> ids   [k], in no order
//               +- get_rows(logits, ids) ---------> their logits
//               +- get_rows(soft_max(logits), ids)  their probabilities
//
// A probability p of a logit x gives the row's log-sum-exp as x - log p, without operations that
// some backends lack.  llama.cpp copies the three to the host; the row itself stays where it is.
#include "dyspec.h"
#include "objects.h"

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

struct dyspec_backend_sampler {
    dyspec_backend_sampler(const dyspec_backend_functions &functions, int32_t n_vocab, int32_t k)
        : call(functions), n_vocab(n_vocab), k(k) {}

    const dyspec_backend_functions call;
    const int32_t n_vocab;
    const int32_t k;
    int32_t n_supported = 0;
};

namespace dyspec {
namespace {

constexpr int ggml_type_f32 = 0;
constexpr int32_t max_k = 256;

// Vulkan ends the process where soft-max reads from an address that its device cannot bind; no
// device asks for more than this (minStorageBufferOffsetAlignment).
constexpr int64_t row_alignment = 256;

dyspec_backend_sampler &owner_of(const llama_sampler *sampler) {
    return *static_cast<dyspec_backend_sampler *>(sampler->ctx);
}

const char *name(const llama_sampler *) {
    return "dyspec-topk";
}

void apply_on_host(llama_sampler *, void *) {}

void add_to_graph(llama_sampler *sampler, ggml_context *ctx, void *, llama_sampler_data *data) {
    const dyspec_backend_sampler &x = owner_of(sampler);
    const dyspec_backend_functions &call = x.call;
    const int64_t n_row = call.ggml_nelements(data->logits);
    const int64_t n = std::min<int64_t>(x.n_vocab, n_row);
    ggml_tensor *row = call.ggml_view_1d(ctx, data->logits, n, 0);
    if (n_row * int64_t(sizeof(float)) % row_alignment != 0) {
        row = call.ggml_cont(ctx, row);
    }
    ggml_tensor *ids = call.ggml_top_k(ctx, row, int(std::min<int64_t>(x.k, n)));
    const auto gather = [&](ggml_tensor *values) {
        return call.ggml_get_rows(ctx, call.ggml_reshape_2d(ctx, values, 1, n), ids);
    };
    data->candidates = ids;
    data->logits = gather(row);
    data->probs = gather(call.ggml_soft_max(ctx, row));
    // llama.cpp does this for the sequences of a pass alone, but keeps the places in memory from
    // pass to pass: a sequence that comes later would find its place given to others.
    for (ggml_tensor *tensor : {data->candidates, data->logits, data->probs}) {
        call.ggml_set_output(tensor);
    }
}

bool has_operations(llama_sampler *sampler, void *device) {
    const dyspec_backend_sampler &x = owner_of(sampler);
    const dyspec_backend_functions &call = x.call;
    ggml_context *ctx = call.ggml_init({16 * call.ggml_tensor_overhead(), nullptr, true});
    if (ctx == nullptr) {
        return false;
    }
    llama_sampler_data data{};
    data.logits = call.ggml_new_tensor_1d(ctx, ggml_type_f32, x.n_vocab);
    add_to_graph(sampler, ctx, nullptr, &data);
    bool all = true;
    for (ggml_tensor *tensor = call.ggml_get_first_tensor(ctx); tensor != nullptr;
         tensor = call.ggml_get_next_tensor(ctx, tensor)) {
        all = all && call.ggml_backend_dev_supports_op(device, tensor);
    }
    call.ggml_free(ctx);
    return all;
}

bool init_on_backend(llama_sampler *sampler, void *buffer_type, uint32_t) {
    dyspec_backend_sampler &x = owner_of(sampler);
    // A buffer without a device is the CPU's, which has everything.
    void *device = x.call.ggml_backend_buft_get_device(buffer_type);
    const bool supported = device == nullptr || has_operations(sampler, device);
    x.n_supported += supported;
    return supported;
}

llama_sampler_i interface = {
    name,    nullptr,      apply_on_host, nullptr, nullptr, nullptr, init_on_backend,
    nullptr, add_to_graph, nullptr,       nullptr, nullptr,
};

// The candidates of one row, largest first, lower id first among equals.
int32_t read_row(const dyspec_backend_sampler &x, llama_context *context, int32_t row, int32_t *ids,
                 float *logits, float *lse) {
    const int32_t *found = x.call.llama_get_sampled_candidates_ith(context, row);
    const float *values = x.call.llama_get_sampled_logits_ith(context, row);
    const float *probs = x.call.llama_get_sampled_probs_ith(context, row);
    const uint32_t n = x.call.llama_get_sampled_candidates_count_ith(context, row);
    if (found == nullptr || values == nullptr || probs == nullptr || n < 1 || n > uint32_t(x.k) ||
        n != x.call.llama_get_sampled_logits_count_ith(context, row) ||
        n != x.call.llama_get_sampled_probs_count_ith(context, row)) {
        return DYSPEC_E_ARGUMENT;
    }
    dyspec_candidate best[max_k];
    for (uint32_t i = 0; i < n; i++) {
        // Soft-max spreads one NaN or +inf over all probabilities.
        if (found[i] < 0 || found[i] >= x.n_vocab || std::isnan(values[i]) ||
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
    for (int32_t i = 0; i < x.k; i++) {
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

dyspec_backend_sampler *dyspec_backend_sampler_create(const dyspec_backend_functions *functions,
                                                      int32_t n_vocab, int32_t k) {
    if (n_vocab < 1 || k < 1 || k > max_k) {
        return nullptr;
    }
    return make<dyspec_backend_sampler>(*functions, n_vocab, k);
}

void dyspec_backend_sampler_free(dyspec_backend_sampler *x) {
    delete x;
}

llama_sampler *dyspec_backend_sampler_add(dyspec_backend_sampler *x) {
    return x->call.llama_sampler_init(&interface, x);
}

int32_t dyspec_backend_sampler_n_supported(const dyspec_backend_sampler *x) {
    return x->n_supported;
}

int32_t dyspec_backend_sampler_read(const dyspec_backend_sampler *x, llama_context *context,
                                    const int32_t *rows, int32_t n_rows, int32_t *ids,
                                    float *logits, float *lse) {
    for (int32_t i = 0; i < n_rows; i++) {
        const int64_t at = int64_t(i) * x->k;
        const int32_t code = read_row(*x, context, rows[i], ids + at, logits + at, lse + i);
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
