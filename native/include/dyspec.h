// The C interface of the native helper: what is hot in a decoding step.
//
// What lives longer than a call is an opaque object: `_create` returns NULL where there is no
// memory or a number is out of range, `_free` takes NULL as well.  Every other buffer belongs to
// the caller.  Functions return 0 or a count, or a negative code of `dyspec_error`.  Nothing here
// is linked to llama.cpp: logits arrive as plain pointers, and the few functions of llama.cpp and
// ggml that are called by address.
#ifndef DYSPEC_H
#define DYSPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define DYSPEC_API __declspec(dllexport)
#elif defined(__GNUC__)
#define DYSPEC_API __attribute__((visibility("default")))
#else
#define DYSPEC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised with every change of a signature, a struct or a meaning below.
#define DYSPEC_ABI_VERSION 18

enum dyspec_error {
    DYSPEC_E_ARGUMENT = -1,   // a size, an index or an order that the contract forbids
    DYSPEC_E_NOT_FINITE = -2, // no finite entry, or +inf
    DYSPEC_E_SEQUENCES = -3,  // more leaves than sequence ids
    DYSPEC_E_DECODE = -4,     // llama_decode failed; dyspec_cache_failure says how
    DYSPEC_E_CALLER = -5,     // the caller's own dyspec_proposer failed, and knows why
    DYSPEC_E_GRAMMAR = -6,    // no token fits the grammar
    DYSPEC_E_MEMORY = -7,     // no memory, or the system refuses a mapping
    DYSPEC_E_ROW = -1000,     // of several rows: row i is not finite, as DYSPEC_E_ROW - i
};

DYSPEC_API int32_t dyspec_abi_version(void);

// The instruction set that the row functions run on: "avx512", "avx2", "neon" or "baseline".
DYSPEC_API const char *dyspec_simd(void);

// ---- rows of logits ---------------------------------------------------------------------

// The k largest entries of each row, largest first, lower id first among equals, and the row's
// log-sum-exp.  rows[i] is the address of n_vocab floats; ids and logits are [n_rows, k], lse is
// [n_rows].  NaN counts as -inf.  Places beyond n_vocab get id -1 and logit -inf.
// Returns 0, or DYSPEC_E_ROW - i for the first row without a finite entry or with +inf.
DYSPEC_API int32_t dyspec_topk(const uint64_t *rows, int32_t n_rows, int32_t n_vocab, int32_t k,
                               int32_t *ids, float *logits, float *lse, int32_t n_threads);

// ---- backend sampler --------------------------------------------------------------------

struct ggml_context;
struct ggml_tensor;
struct llama_context;
struct llama_sampler;
struct llama_sampler_i;

// By value, as ggml.h has it.
struct dyspec_ggml_init_params {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
};

// Functions of the llama.cpp that is loaded, under their own names.
typedef struct dyspec_backend_functions {
    int64_t (*ggml_nelements)(const struct ggml_tensor *tensor);
    struct ggml_tensor *(*ggml_view_1d)(struct ggml_context *, struct ggml_tensor *, int64_t ne0,
                                        size_t offset);
    struct ggml_tensor *(*ggml_cont)(struct ggml_context *, struct ggml_tensor *);
    struct ggml_tensor *(*ggml_reshape_2d)(struct ggml_context *, struct ggml_tensor *, int64_t ne0,
                                           int64_t ne1);
    struct ggml_tensor *(*ggml_top_k)(struct ggml_context *, struct ggml_tensor *, int k);
    struct ggml_tensor *(*ggml_get_rows)(struct ggml_context *, struct ggml_tensor *data,
                                         struct ggml_tensor *rows);
    struct ggml_tensor *(*ggml_soft_max)(struct ggml_context *, struct ggml_tensor *);
    void (*ggml_set_output)(struct ggml_tensor *);
    // for asking a backend whether it has these operations
    struct ggml_context *(*ggml_init)(struct dyspec_ggml_init_params params);
    void (*ggml_free)(struct ggml_context *);
    size_t (*ggml_tensor_overhead)(void);
    struct ggml_tensor *(*ggml_new_tensor_1d)(struct ggml_context *, int type, int64_t ne0);
    struct ggml_tensor *(*ggml_get_first_tensor)(const struct ggml_context *);
    struct ggml_tensor *(*ggml_get_next_tensor)(const struct ggml_context *, struct ggml_tensor *);
    void *(*ggml_backend_buft_get_device)(void *buffer_type);
    bool (*ggml_backend_dev_supports_op)(void *device, const struct ggml_tensor *op);
    struct llama_sampler *(*llama_sampler_init)(struct llama_sampler_i *, void *ctx);
    int32_t *(*llama_get_sampled_candidates_ith)(struct llama_context *, int32_t row);
    uint32_t (*llama_get_sampled_candidates_count_ith)(struct llama_context *, int32_t row);
    float *(*llama_get_sampled_logits_ith)(struct llama_context *, int32_t row);
    uint32_t (*llama_get_sampled_logits_count_ith)(struct llama_context *, int32_t row);
    float *(*llama_get_sampled_probs_ith)(struct llama_context *, int32_t row);
    uint32_t (*llama_get_sampled_probs_count_ith)(struct llama_context *, int32_t row);
} dyspec_backend_functions;

// A sampler in the decode graph of a context, on whatever backend holds the logits: it adds, for
// each row, the k largest of the first n_vocab logits, their ids and their probabilities, so that
// these come back instead of the whole row.
typedef struct dyspec_backend_sampler dyspec_backend_sampler;

// k: at most 256.
DYSPEC_API dyspec_backend_sampler *
dyspec_backend_sampler_create(const dyspec_backend_functions *functions, int32_t n_vocab,
                              int32_t k);

// After the llama_samplers that were made of it.
DYSPEC_API void dyspec_backend_sampler_free(dyspec_backend_sampler *x);

// A llama_sampler of it for one sequence, to be put into a chain, which then owns it.
DYSPEC_API struct llama_sampler *dyspec_backend_sampler_add(dyspec_backend_sampler *x);

// How many of these were attached where the backend has all operations.
DYSPEC_API int32_t dyspec_backend_sampler_n_supported(const dyspec_backend_sampler *x);

// What was found in the last pass: as dyspec_topk writes it, for `rows` of its batch.  The
// log-sum-exp is the largest logit less the logarithm of its probability.  A row with NaN or +inf
// among its logits is an error, DYSPEC_E_ROW - i; DYSPEC_E_ARGUMENT: a row without samples.
DYSPEC_API int32_t dyspec_backend_sampler_read(const dyspec_backend_sampler *x,
                                               struct llama_context *context, const int32_t *rows,
                                               int32_t n_rows, int32_t *ids, float *logits,
                                               float *lse);

// ---- counter-based noise ----------------------------------------------------------------

// out[i] = (x + 1/2) 2^-32 with x = word (token & 3) of Philox at counter
// (index, token >> 2, stream, 0) under the key `seed`.  Strictly between 0 and 1.
DYSPEC_API int32_t dyspec_uniform(uint64_t seed, uint32_t index, uint32_t stream,
                                  const int32_t *tokens, int32_t n, double *out);

// out[i] = -log(-log(u)) of the same u: standard Gumbel numbers.
DYSPEC_API int32_t dyspec_gumbel(uint64_t seed, uint32_t index, uint32_t stream,
                                 const int32_t *tokens, int32_t n, double *out);

// ---- ranking ----------------------------------------------------------------------------

// How a draft's most probable tokens become candidates.  `match` ranks them by the logit, with
// the target's own noise (times the temperature) if `noisy`; `residual` draws them without
// replacement from the soft-max at the draft's temperature, with noise of their own.
typedef struct dyspec_ranking dyspec_ranking;

// temperature and cuts (top_k 0: none) are the target's; at temperature 0 there is no noise and no
// cut.  draft_temperature is that of the soft-max; 0: 1 under match, the target's under residual.
// bias [n_bias] is added to the logits of bias_ids.  NULL: no memory.
DYSPEC_API dyspec_ranking *dyspec_ranking_create(uint64_t seed, double temperature,
                                                 double draft_temperature, double top_p,
                                                 double min_p, int32_t top_k, int32_t residual,
                                                 int32_t noisy, const int32_t *bias_ids,
                                                 const float *bias, int32_t n_bias);
DYSPEC_API void dyspec_ranking_free(dyspec_ranking *ranking);

// ---- grammar ----------------------------------------------------------------------------

struct dyspec_candidates; // llama_token_data_array
struct dyspec_tree;
struct llama_sampler;

// llama_sampler_clone, _apply, _accept and _free, llama_vocab_is_control and _is_eog.
typedef struct dyspec_grammar_functions {
    struct llama_sampler *(*clone)(const struct llama_sampler *);
    void (*apply)(struct llama_sampler *, struct dyspec_candidates *);
    void (*accept)(struct llama_sampler *, int32_t token);
    void (*free)(struct llama_sampler *);
    bool (*is_control)(const void *vocab, int32_t token);
    bool (*is_eog)(const void *vocab, int32_t token);
} dyspec_grammar_functions;

// What a reply may be: llama.cpp's grammar sampler after the text so far, and copies of it at the
// nodes of a tree.  Control tokens never fit, but for those that end a text.
typedef struct dyspec_grammar dyspec_grammar;

// Takes `start`, made by llama_sampler_init_grammar for `vocab`.
DYSPEC_API dyspec_grammar *dyspec_grammar_create(const dyspec_grammar_functions *functions,
                                                 const void *vocab, struct llama_sampler *start);
DYSPEC_API void dyspec_grammar_free(dyspec_grammar *x);

// Go on with the first of the tokens that fit.  Returns how many.
DYSPEC_API int32_t dyspec_grammar_accept(dyspec_grammar *x, const int32_t *tokens, int32_t n);

// How many of the tokens, one after the other, might follow the text.
DYSPEC_API int32_t dyspec_grammar_follow(const dyspec_grammar *x, const int32_t *tokens, int32_t n);

// The only way for the text to go on, told by n ids of which each has a text of one character, and
// by `eog`, an id that ends a text (-1: none): one of the n after the other, as long as no other
// one fits.  Writes at most `most` of them to `out`; returns how many.
DYSPEC_API int32_t dyspec_grammar_forced(const dyspec_grammar *x, const int32_t *ids, int32_t n,
                                         int32_t eog, int32_t *out, int32_t most);

// Forget the tree of the step before.
DYSPEC_API void dyspec_grammar_start_step(dyspec_grammar *x);

// -inf for those of n logits whose ids must not come below the node.  Returns how many are left.
DYSPEC_API int32_t dyspec_grammar_filter(dyspec_grammar *x, const struct dyspec_tree *tree,
                                         int32_t node, const int32_t *ids, float *logits,
                                         int32_t n);

// ---- the target's own token -------------------------------------------------------------

// llama_sampler_apply and llama_sampler_accept.
typedef void (*dyspec_apply_function)(struct llama_sampler *, struct dyspec_candidates *);
typedef void (*dyspec_accept_function)(struct llama_sampler *, int32_t token);

// llama.cpp's sampler chain, then arg max (logit + Gumbel) in stream 0: the tokens of a reply as a
// function of logits and seed.
typedef struct dyspec_sampler dyspec_sampler;

// `chain` ends without a draw and outlives the sampler; NULL: the arg max of the bare row.
// `accept` NULL: nothing in the chain depends on what was written.  `greedy`: the arg max of what
// the chain leaves, the first among equals.
DYSPEC_API dyspec_sampler *dyspec_sampler_create(dyspec_apply_function apply,
                                                 dyspec_accept_function accept,
                                                 struct llama_sampler *chain, int32_t n_vocab,
                                                 uint64_t seed, int32_t greedy);
DYSPEC_API void dyspec_sampler_free(dyspec_sampler *x);
DYSPEC_API void dyspec_sampler_set_seed(dyspec_sampler *x, uint64_t seed);

// From here on the text has to fit `grammar`, which outlives the sampler.
DYSPEC_API void dyspec_sampler_set_grammar(dyspec_sampler *x, dyspec_grammar *grammar);

// The token number `index` of the reply, given its row of logits.
// The grammar looks at the whole row only where the draw does not fit; then what it leaves goes
// through the chain, and the draw is made again with the same noise.
// Returns DYSPEC_E_NOT_FINITE or DYSPEC_E_GRAMMAR if nothing can be chosen.
DYSPEC_API int32_t dyspec_sampler_sample(dyspec_sampler *x, const float *row, uint32_t index);

// Tell penalties, DRY and the grammar that the tokens are part of the text.
DYSPEC_API void dyspec_sampler_accept(dyspec_sampler *x, const int32_t *tokens, int32_t n);

// What the chain leaves of a row, in any order; ids and logits have room for n_vocab.
// Returns how many there are.
DYSPEC_API int32_t dyspec_sampler_apply(dyspec_sampler *x, const float *row, int32_t *ids,
                                        float *logits);

// Totals: in the chain and the draw; of reducing bare rows.
DYSPEC_API double dyspec_sampler_seconds(const dyspec_sampler *x);
DYSPEC_API double dyspec_sampler_rows_seconds(const dyspec_sampler *x);

// ---- the tree ---------------------------------------------------------------------------

// Arrays have `capacity` entries, candidates [capacity, n_ranks].  Node 0 is the root, parents
// stand before their children, and those in the order in which they were added.
typedef struct dyspec_tree {
    int32_t *token;
    int32_t *parent;
    int32_t *depth;
    int32_t *n_children;
    float *confidence; // of the node among its siblings
    double *value;     // the product of the confidences along the path
    uint8_t *terminal; // 1: must not get children
    // what the draft gave, in the order of drawing; n_cand -1: not evaluated yet
    int32_t *cand_ids;
    float *cand_probs;
    int32_t *n_cand;
    int32_t n_nodes; // with the root
    int32_t capacity;
    int32_t n_ranks;
} dyspec_tree;

// Depth-first order of the first n nodes, earlier children first.  parent[i] < i.  scratch[2n].
DYSPEC_API int32_t dyspec_depth_first(const int32_t *parent, int32_t n, int32_t *scratch,
                                      int32_t *order);

// ---- interruption -----------------------------------------------------------------------

// A ggml_abort_callback: true while the int32 that `flag` points to is not 0.
DYSPEC_API bool dyspec_abort(void *flag);

// ---- weights that are read in every pass ------------------------------------------------

// Linux only; elsewhere `_create` returns NULL.

struct ggml_tensor;

// Functions of the ggml that is loaded.
typedef struct dyspec_graph_functions {
    const char *(*op_desc)(const struct ggml_tensor *tensor);
    void *(*get_data)(const struct ggml_tensor *tensor);
    int64_t (*nelements)(const struct ggml_tensor *tensor);
} dyspec_graph_functions;

// A weight in the mapping of its file; row_size is its first dimension's in bytes.
typedef struct dyspec_weight {
    uint64_t address;
    uint64_t size;
    uint64_t offset;
    uint64_t row_size;
    int32_t file;
} dyspec_weight;

// How a node of the graph uses a weight.
enum dyspec_use {
    DYSPEC_MULTIPLIED = 0,
    DYSPEC_ROWS_TAKEN = 1,           // rows that are known before the pass
    DYSPEC_MULTIPLIED_BY_CHOICE = 2, // of experts
    DYSPEC_USED_OTHERWISE = 3,
};

enum dyspec_place {
    DYSPEC_RESIDENT = 0, // in memory, read once
    DYSPEC_STREAMED = 1, // read in every pass
    DYSPEC_ROWS = 2,     // rows are read when they are first used
    DYSPEC_MAPPED = 3,   // left as it is
};

enum dyspec_stream_failure {
    DYSPEC_STREAM_UNREADABLE = 1,
    DYSPEC_STREAM_TRUNCATED = 2,
    DYSPEC_STREAM_CHANGED = 3,
};

// Takes the place of the mapping of a model's files: some weights stay in memory, the others are
// read again in every pass, ahead of the nodes that use them, around a cache of the system.  The
// model is not closed before it, and afterwards nothing but closed.
typedef struct dyspec_weight_stream dyspec_weight_stream;

// weights: ascending addresses.  src_offset: of `src` in ggml_tensor.
DYSPEC_API dyspec_weight_stream *
dyspec_weight_stream_create(const dyspec_graph_functions *functions, int32_t src_offset,
                            const char *const *paths, int32_t n_files, const dyspec_weight *weights,
                            int32_t n_weights);
DYSPEC_API void dyspec_weight_stream_free(dyspec_weight_stream *stream);

// Which weights nodes have used, and how (dyspec_use), in their order, as gates have seen it before
// `_start`.  Returns how many; writes at most `capacity`.
DYSPEC_API int32_t dyspec_weight_stream_uses(dyspec_weight_stream *stream, int32_t *weights,
                                             int32_t *uses, int32_t capacity);

// Once, while no pass runs.  places: dyspec_place of each weight; order: the streamed ones as they
// are used; window: bytes of memory that they share, not less than the largest of them; rows_room:
// bytes that rows may take.  After a failure nothing of the model can be used.
DYSPEC_API int32_t dyspec_weight_stream_start(dyspec_weight_stream *stream, const int32_t *places,
                                              const int32_t *order, int32_t n_order,
                                              uint64_t window, uint64_t rows_room,
                                              int32_t n_threads);

// Reads about n_bytes of what is resident; before any pass, until it returns 0.  Returns the bytes
// that are left, or DYSPEC_E_DECODE; `_failure` says why.
DYSPEC_API int64_t dyspec_weight_stream_fill(dyspec_weight_stream *stream, uint64_t n_bytes);

// Why no pass can run any more (dyspec_stream_failure; the number of the file, errno), or 0.
DYSPEC_API int32_t dyspec_weight_stream_failure(dyspec_weight_stream *stream, int32_t *file,
                                                int32_t *number);

// Since `_start`: bytes read, those of rows among them, seconds in which something was being read,
// seconds in which passes waited, whole passes, passes that were left before their end.
DYSPEC_API void dyspec_weight_stream_totals(dyspec_weight_stream *stream, double *totals);

// Where the passes of one context wait for their weights.
typedef struct dyspec_gate dyspec_gate;

// flag: as for dyspec_abort.
DYSPEC_API dyspec_gate *dyspec_gate_create(dyspec_weight_stream *stream, const int32_t *flag);
DYSPEC_API void dyspec_gate_free(dyspec_gate *gate);
DYSPEC_API void dyspec_gate_watch(dyspec_gate *gate, const int32_t *flag);

// A ggml_backend_sched_eval_callback and a ggml_abort_callback of the context; data: the gate.
DYSPEC_API bool dyspec_gate_eval(struct ggml_tensor *node, bool ask, void *data);
DYSPEC_API bool dyspec_gate_abort(void *data);

// ---- one model's cache ------------------------------------------------------------------

struct dyspec_batch; // llama_batch

// llama_decode, llama_synchronize, llama_get_logits, llama_memory_seq_rm, llama_memory_seq_cp.
typedef struct dyspec_llama {
    int32_t (*decode)(void *context, struct dyspec_batch batch);
    void (*synchronize)(void *context);
    float *(*get_logits)(void *context);
    bool (*seq_rm)(void *memory, int32_t seq, int32_t first, int32_t end);
    void (*seq_cp)(void *memory, int32_t from, int32_t to, int32_t first, int32_t end);
    size_t (*state_seq_get_size_ext)(void *context, int32_t seq, uint32_t flags);
    size_t (*state_seq_get_data_ext)(void *context, uint8_t *to, size_t size, int32_t seq,
                                     uint32_t flags);
    size_t (*state_seq_set_data_ext)(void *context, const uint8_t *from, size_t size, int32_t seq,
                                     uint32_t flags);
    float *(*get_embeddings_nextn)(void *context); // NULL where llama.cpp does not export it
} dyspec_llama;

// A committed prefix and a tree on top of it, in a block of sequence ids of a context.  Cells of
// other ids are never touched, so several caches may share a context.
typedef struct dyspec_cache dyspec_cache;

// The prefix is in `first_id`; the ids first_id .. first_id+n_ids-1 are for branches as well.
// `context` and `memory` outlive the cache, which leaves its cells there when it is freed.
// `max_rows` of a pass, `max_outputs` of them with logits; `tree_capacity` nodes with the root.
// n_snapshots: how many tokens of the last pass a recurrent state can take back; it has one id, and
// a pass over a tree has at most n_snapshots + 1 rows, a chain.  0: copies of it that the cache
// makes take back any number.  -1: the model has no such state.
// n_state: floats of the hidden state that each row of a multi-token-prediction head takes beside
// its token; 0 for everything else.
DYSPEC_API dyspec_cache *dyspec_cache_create(const dyspec_llama *llama, void *context, void *memory,
                                             int32_t n_vocab, int32_t max_rows, int32_t max_outputs,
                                             int32_t tree_capacity, int32_t first_id, int32_t n_ids,
                                             int32_t n_snapshots, int32_t n_state);
DYSPEC_API void dyspec_cache_free(dyspec_cache *cache);

// From now on the rows of a pass over nodes are filled up to the next of `sizes`, which ascend.
DYSPEC_API int32_t dyspec_cache_pad_to(dyspec_cache *cache, const int32_t *sizes, int32_t n);

// For a head: the hidden states float[n, n_state] that the target has left before each of the next
// n tokens, read or root; what is missing counts as zeros.  Below the root a node takes what the
// head itself has left at its parent.
DYSPEC_API int32_t dyspec_cache_set_states(dyspec_cache *cache, const float *states, int32_t n);

// For a head of several layers, each of which has a cache: below the root a node takes what the
// layer has left at its parent that found its parent's candidates.  Both caches have one capacity.
DYSPEC_API void dyspec_cache_share_states(dyspec_cache *cache, const dyspec_cache *with);

// One pass without logits over n tokens (at most max_rows), which are appended to the prefix.
// Returns 0 or DYSPEC_E_DECODE; DYSPEC_E_ARGUMENT: too many, or there is a tree.
DYSPEC_API int32_t dyspec_cache_read(dyspec_cache *cache, const int32_t *tokens, int32_t n);

// One pass over `nodes` (parents before children; evaluated before or earlier in `nodes`; the
// first call of a step starts with the root, 0).  `unread` tokens are committed first, in the same
// pass if they fit.  Returns the rows of the pass, padding included; DYSPEC_E_SEQUENCES and
// DYSPEC_E_ARGUMENT leave everything as it was.
DYSPEC_API int32_t dyspec_cache_evaluate(dyspec_cache *cache, const dyspec_tree *tree,
                                         const int32_t *nodes, int32_t n, const int32_t *unread,
                                         int32_t n_unread);

// After DYSPEC_E_DECODE of any function the tree is gone and the prefix is what was read of it.
// Returns what llama_decode said; `n_rows`: of that pass.
DYSPEC_API int32_t dyspec_cache_failure(const dyspec_cache *cache, int32_t *n_rows);

// Keep the evaluated part of `path` (from the root down), drop the rest of the tree and forget it.
// What a recurrent state's copy lacks of it, the next pass reads again.
// Returns how many nodes of `path` are part of the prefix now.
DYSPEC_API int32_t dyspec_cache_commit(dyspec_cache *cache, const int32_t *path, int32_t n);

// Drop the tree, and the prefix beyond `length`.  A recurrent state that cannot be taken back so
// far becomes what it was when it was last saved before, or forgets all.
// Returns the length of the prefix.
DYSPEC_API int32_t dyspec_cache_rewind(dyspec_cache *cache, int32_t length);

// Save a copy of the recurrent state behind the prefix; the oldest of more than n_kept copies goes.
// Returns how many there are; 0: nothing was saved, there being no such state, a tree, or a copy.
DYSPEC_API int32_t dyspec_cache_save(dyspec_cache *cache, int32_t n_kept);

// Bytes that the whole state of the prefix takes outside the context; 0 while there is a tree, or
// while a recurrent state is still to read some of the prefix again.
DYSPEC_API int64_t dyspec_cache_state_size(dyspec_cache *cache);

// Copy it to uint8[size].  Returns the bytes written; less than `size` if llama.cpp cannot.
DYSPEC_API int64_t dyspec_cache_state_get(dyspec_cache *cache, uint8_t *to, int64_t size);

// Put a copy, taken when the prefix had `length` tokens, in place of what is there.  Returns the
// length of the prefix: 0 where there is no room for it.
DYSPEC_API int32_t dyspec_cache_state_set(dyspec_cache *cache, const uint8_t *from, int64_t size,
                                          int32_t length);

// Time one pass over n_rows rows behind the prefix, the last max_outputs of them with logits, and
// take it back.  Returns the length of the prefix, or as dyspec_cache_read.
DYSPEC_API int32_t dyspec_cache_time_pass(dyspec_cache *cache, int32_t n_rows, double *seconds);

DYSPEC_API int32_t dyspec_cache_length(const dyspec_cache *cache);

// Totals: passes over trees and their rows, padding included; seconds of these, and of copying and
// removing sequence ids.
DYSPEC_API int64_t dyspec_cache_n_passes(const dyspec_cache *cache);
DYSPEC_API int64_t dyspec_cache_n_rows(const dyspec_cache *cache);
DYSPEC_API double dyspec_cache_decode_seconds(const dyspec_cache *cache);
DYSPEC_API double dyspec_cache_sequence_seconds(const dyspec_cache *cache);

// rows[tree_capacity]: the addresses of the nodes' logits, valid until the next pass of the
// context; 0 for a node that this step has not evaluated.
DYSPEC_API void dyspec_cache_rows(const dyspec_cache *cache, uint64_t *rows);

// ---- verification -----------------------------------------------------------------------

// The end of a step, for which Python is woken once: dyspec_cache_evaluate of `nodes` with the
// target, dyspec_match, dyspec_cache_commit in both caches (draft NULL: in the target's alone).
// draw_seconds: of walking.  Returns the length of the path, or what failed.
DYSPEC_API int32_t dyspec_verify(dyspec_cache *target, dyspec_cache *draft, dyspec_sampler *sampler,
                                 const dyspec_tree *tree, const int32_t *nodes, int32_t n,
                                 uint32_t index, int32_t *path, int32_t *tokens,
                                 int32_t *n_accepted, double *draw_seconds);

// ---- drafting ---------------------------------------------------------------------------

// Finds the candidates of `nodes` and writes them into a tree.  Returns 0 or a dyspec_error.
typedef int32_t (*dyspec_proposer)(void *data, const int32_t *nodes, int32_t n);

// A draft model at work on a tree.
typedef struct dyspec_drafter dyspec_drafter;

// `cache` is the draft's; ids at or above `vocab_limit` and the `excluded` ones, ascending, are
// never drafted.  NULL: no memory.
DYSPEC_API dyspec_drafter *dyspec_drafter_create(dyspec_cache *cache, int32_t vocab_limit,
                                                 const int32_t *excluded, int32_t n_excluded);
DYSPEC_API void dyspec_drafter_free(dyspec_drafter *drafter);

// From now on candidates are found in the passes, by `sampler`; NULL: by the host.
DYSPEC_API void dyspec_drafter_set_backend_sampler(dyspec_drafter *drafter,
                                                   const dyspec_backend_sampler *sampler);

// The draft's vocabulary is another one than the tree's.  target_ids [n_own]: the tree's id by the
// draft's, -1: never drafted.  own_ids [n_target]: the draft's by the tree's, -1: it has none.
DYSPEC_API void dyspec_drafter_translate(dyspec_drafter *drafter, const int32_t *target_ids,
                                         int32_t n_own, const int32_t *own_ids, int32_t n_target);

// What a draft of another vocabulary reads as the root, in its own ids, until it is told anew.
DYSPEC_API void dyspec_drafter_set_root(dyspec_drafter *drafter, int32_t own_id);

// `tree`, `ranking` and `grammar` serve until the next step; without a grammar (NULL) anything may
// be drafted.  `unread` is committed with the first pass; first_index is that of the token below
// the root.
DYSPEC_API void dyspec_drafter_start_step(dyspec_drafter *drafter, dyspec_tree *tree,
                                          const dyspec_ranking *ranking, dyspec_grammar *grammar,
                                          const int32_t *unread, int32_t n_unread,
                                          int32_t first_index);

// A dyspec_proposer; `drafter` is a dyspec_drafter.  A node whose token the draft's vocabulary
// lacks has no candidates, nor has what is below it.  A head's layer reads with them what stands
// above them and another layer has read.
DYSPEC_API int32_t dyspec_drafter_propose(void *drafter, const int32_t *nodes, int32_t n);

// Rows and seconds of this step's passes, the first `capacity` of them.  Returns their number.
DYSPEC_API int32_t dyspec_drafter_passes(const dyspec_drafter *drafter, int32_t *rows,
                                         double *seconds, int32_t capacity);

// Total of reducing rows to candidates.
DYSPEC_API double dyspec_drafter_rows_seconds(const dyspec_drafter *drafter);

// ---- expansion --------------------------------------------------------------------------

// A tree that grows (DySpec, Algorithms 1 and 2).  A slot, the place of a node's next child, is
// worth the node's path product times the draft mass that is still undrawn there; it never depends
// on the token to be drawn.
typedef struct dyspec_expansion dyspec_expansion;

// max_nodes: without the root.  by_layer 0: best slot first; 1: shallower first, then the best.
// eog: ids, ascending, below which nothing grows.  NULL: no memory.
DYSPEC_API dyspec_expansion *dyspec_expansion_create(dyspec_tree *tree, int32_t max_nodes,
                                                     int32_t max_leaves, int32_t by_layer,
                                                     const int32_t *eog, int32_t n_eog);
DYSPEC_API void dyspec_expansion_free(dyspec_expansion *x);

// Start from the root alone, not evaluated.  All of node 0 but its token is written.
DYSPEC_API int32_t dyspec_expansion_reset(dyspec_expansion *x, int32_t max_depth, double threshold);

// Draw and evaluate until the tree is full or no slot is above the threshold.  nodes[capacity]
// takes the tree, depth first.  Returns its size, or what `propose` gave.
DYSPEC_API int32_t dyspec_expansion_grow(dyspec_expansion *x, dyspec_proposer propose, void *data,
                                         int32_t *nodes);

// ---- planning ---------------------------------------------------------------------------

// A tree whose nodes are bought at measured prices; a node's value is P.
typedef struct dyspec_planner dyspec_planner;

// n_rows: of the largest target pass; n_children_max: that enter per drafted node; max_leaves: of
// either pass, as sequence ids limit it; eog as for an expansion.  NULL: no memory.
DYSPEC_API dyspec_planner *dyspec_planner_create(dyspec_tree *tree, int32_t n_rows,
                                                 int32_t n_children_max, int32_t max_leaves,
                                                 float max_confidence, const int32_t *eog,
                                                 int32_t n_eog);
DYSPEC_API void dyspec_planner_free(dyspec_planner *x);

// What things cost in this step: target[n_rows + 1] seconds of a target pass by its rows, the
// chance that the draft's first child is right, tokens that a second is worth, seconds that the
// step may still cost, and seconds of a draft pass over 1, 4, 16 nodes: first[3] now (NULL: nothing
// is drafted), later[3] of a following one.
DYSPEC_API void dyspec_planner_set_prices(dyspec_planner *x, const double *target,
                                          double acceptance, double worth, double left,
                                          int32_t max_depth, const double *first,
                                          const double *later);

// Weigh every n likeliest nodes to verify, and drafting the 1, 4 or 16 likeliest nodes perhaps 1,
// 4 or 16 deep.  `drafts` says what is best: 1, `nodes` are to be drafted in one pass, then
// entered; 0, they are to be verified (the root first, depth first).  Nodes that need a leaf or
// branch beyond max_leaves are left out.  nodes[max(n_rows, 16)].  Returns how many there are.
DYSPEC_API int32_t dyspec_planner_plan(dyspec_planner *x, int32_t *nodes, int32_t *drafts);

// Plan, draft and enter until nothing more is to be drafted; the seconds left go down by the price
// of each pass, and after the first one `later` are the prices.  Returns as dyspec_planner_plan
// with drafts 0, or what `propose` gave.
DYSPEC_API int32_t dyspec_planner_grow(dyspec_planner *x, dyspec_proposer propose, void *data,
                                       int32_t *nodes);

// ---- what only tests and benchmarks call: parts of the above ---------------------------

// The size of a struct, then the offsets of its fields in their order: dyspec_tree, which Python
// has a copy of, and copies of llama_batch, llama_token_data_array and llama_token_data.
// Returns the number of entries, at most `capacity`.
DYSPEC_API int32_t dyspec_tree_layout(int32_t *layout, int32_t capacity);
DYSPEC_API int32_t dyspec_batch_layout(int32_t *layout, int32_t capacity);
DYSPEC_API int32_t dyspec_candidates_layout(int32_t *layout, int32_t capacity);
DYSPEC_API int32_t dyspec_candidate_layout(int32_t *layout, int32_t capacity);

// Philox4x32-10 (Salmon et al., 2011): out[4] of counter[4] under key[2], the generator of
// all noise.
DYSPEC_API void dyspec_philox(const uint32_t *counter, const uint32_t *key, uint32_t *out);

// Index of the largest entry, the lowest among equals; NaN never wins.
// Returns DYSPEC_E_NOT_FINITE for a row without a finite entry or with +inf.
DYSPEC_API int32_t dyspec_argmax(const float *row, int32_t n_vocab);

// Same layout as llama_token_data.
typedef struct dyspec_candidate {
    int32_t id;
    float logit;
    float p;
} dyspec_candidate;

// data[i] = {i, row[i], 0}
DYSPEC_API int32_t dyspec_fill_candidates(const float *row, int32_t n_vocab,
                                          dyspec_candidate *data);

// Position of the largest logit + Gumbel(id), the lower id among equals; -inf and NaN never win.
// Returns DYSPEC_E_NOT_FINITE if no logit is finite or one is +inf.
DYSPEC_API int64_t dyspec_gumbel_argmax(const dyspec_candidate *data, int64_t size, uint64_t seed,
                                        uint32_t index, uint32_t stream);

// Orders the k (at most 256) candidates of each row for drawing.  ids [n_rows, k] in and out,
// logits [n_rows, k] with -inf where a token must not be drafted, index [n_rows] that of the token
// below the row's node, nodes [n_rows] what numbers the noise under residual.  probs [n_rows, k]:
// inside the target's cuts the soft-max of what ranks.  Behind them stand those outside: under
// match by logit, with the plain soft-max; under residual with 0, in the order of a uniform draw.
// What must not be drafted comes last, as -1.  usable [n_rows]: candidates that may be ranked
// (match), or that have a probability (residual).  Returns n_rows.
DYSPEC_API int32_t dyspec_rank(const dyspec_ranking *ranking, int32_t n_rows, int32_t k,
                               int32_t *ids, const float *logits, const int32_t *index,
                               const int32_t *nodes, float *probs, int32_t *usable);

// A part of dyspec_expansion_grow: draw until the tree is full, no slot is above the threshold, or
// the best slot belongs to a node that is not evaluated.  Returns how many nodes are to be
// evaluated, 0 when finished; `pending` [capacity] takes them, best first: the one that is needed,
// and those whose first slot is among the best that could still be drawn (by_layer: of the same
// depth).
DYSPEC_API int32_t dyspec_expansion_run(dyspec_expansion *x, int32_t *pending);
DYSPEC_API int32_t dyspec_expansion_n_leaves(const dyspec_expansion *x);

// A part of dyspec_planner_grow: add the children of nodes that were drafted; a child that was
// there, copied from the text, gets the draft's confidence, or 0 if it is not among them.  A node
// without candidates keeps what it has, and nothing is drafted below it.  Then P is computed anew
// everywhere.  Returns the size of the tree.
DYSPEC_API int32_t dyspec_planner_enter(dyspec_planner *x, const int32_t *nodes, int32_t n);

// The walk of dyspec_verify: down from the root as long as the target's own token
// (dyspec_sampler_sample, then _accept) is a child that was evaluated and is not terminal.
// rows: as dyspec_cache_rows.  `index` is that of the token below the root.  path[capacity] takes
// the nodes that were reached, the root first, and tokens[capacity] what was emitted: tokens[i]
// stands below path[i].  n_accepted: emitted tokens that the target found in the tree.
// Returns the length of the path, or DYSPEC_E_NOT_FINITE.
DYSPEC_API int32_t dyspec_match(dyspec_sampler *x, const dyspec_tree *tree, const uint64_t *rows,
                                uint32_t index, int32_t *path, int32_t *tokens,
                                int32_t *n_accepted);

// Sequence ids for `nodes` (parents before children; a parent has one before or stands earlier
// in `nodes`).  The first child of a node continues on its parent's id, a later one takes the next
// unused id, whose cached path must be copied first.
//   seq[capacity]        in/out, -1: not placed; continued[capacity]: in/out, id handed on
//   n_used               in/out, ids 0..n_used-1 are taken
//   row_of[capacity]     scratch
//   offsets[n+1], ids    out, the id set of each batch row; seq[node] comes first.  If node 0 is
//                        in `nodes` it is the first one, and carries all ids 0..n_used-1
//   copies[n*3]          out, (src id, dst id, last depth): copy depths 0..last before decoding
// Returns the number of copies; DYSPEC_E_SEQUENCES if ids run out, DYSPEC_E_ARGUMENT: both leave
// the in/out arrays as they were.  `ids` has room for n * n_seq entries.
DYSPEC_API int32_t dyspec_assign_sequences(const int32_t *nodes, int32_t n, const int32_t *parent,
                                           const int32_t *depth, int32_t capacity, int32_t *seq,
                                           uint8_t *continued, int32_t *n_used, int32_t n_seq,
                                           int32_t *row_of, int32_t *offsets, int32_t *ids,
                                           int32_t *copies);

#ifdef __cplusplus
}
#endif
#endif
