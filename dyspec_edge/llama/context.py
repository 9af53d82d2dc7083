"""KV cache, compute buffers and decoding of one model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.errors import Cancelled, DecodeError, DeviceError, DyspecError, OptionError
from dyspec_edge.llama import hidden_states
from dyspec_edge.llama.backend_sampler import BackendSampler, attach
from dyspec_edge.llama.log import sink
from dyspec_edge.llama.model import Model
from dyspec_edge.native import MAX_SEQUENCES

UBATCH = 512
"""Rows of one physical pass; prompts are read in pieces of this size."""

CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
"""Spellings of -ctk and -ctv, as in llama.cpp, with their ggml_type numbers."""

UNQUANTIZED = ("f32", "f16", "bf16")
"""Cache types that values may have without flash attention."""

FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}


class Context(native.Used):
    """One model's KV cache and compute buffers.

    Args:
        num_ctx: cells of the cache.
        num_sequences: sequence ids S, 1 to 256; the cache is unified, so they share cells.
        num_outputs: rows of one decode that may ask for logits.
        num_threads: CPU threads for both single rows and batches.
        flash_attn: "auto", "on" or "off".
        type_k, type_v: a key of `CACHE_TYPES`.
        num_snapshots: of a recurrent state, for each sequence; None for a model without a state
            that can be saved.
        head_layer: the context is that of a layer, from 0, of the multi-token-prediction head in
            the model's file, and has a cache of its own; the file must have that layer and
            llama.cpp a graph for it, or the process aborts.
        gives_states: passes leave hidden states, as a head needs them.

    Attributes:
        num_snapshots: those that llama.cpp keeps.
        is_head: whether it is a head's.
        gives_states: whether `hidden_states` may be asked for.
        abort_flag: what passes look at; set it to stop them.
        backend_sampler: finds candidates where the logits are, or None; with it no logits come to
            the host.

    Raises:
        DeviceError: llama.cpp cannot make the context, memory being the usual cause.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_ctx: int,
        num_sequences: int,
        num_outputs: int,
        num_threads: int,
        flash_attn: str = "auto",
        type_k: str = "f16",
        type_v: str = "f16",
        num_snapshots: int | None = None,
        head_layer: int | None = None,
        gives_states: bool = False,
        adapters: Sequence[Any] = (),
    ) -> None:
        if not 1 <= num_sequences <= MAX_SEQUENCES:
            raise OptionError(
                f"{num_sequences} sequences asked for; a context has 1 to {MAX_SEQUENCES}"
            )
        super().__init__()
        self.is_head = is_head = head_layer is not None
        self.abort_flag = native.AbortFlag()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_ctx
        # llama.cpp aborts the process when a batch wants more outputs than it was built for.
        params.n_outputs_max = max(num_outputs, num_sequences)
        params.n_outputs_max_per_seq = 0  # all of them: only a backend sampler cares
        params.n_batch = params.n_ubatch = max(UBATCH, params.n_outputs_max)
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        params.type_k, params.type_v = CACHE_TYPES[type_k], CACHE_TYPES[type_v]
        params.swa_full = True  # a sliding window that drops cells could not be rewound
        params.kv_unified = True
        params.n_rs_seq = num_snapshots or 0
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP if is_head else params.ctx_type
        params.no_perf = True
        self._abort_callback = llama_cpp.ggml_abort_callback(native.abort_callback_address)
        params.abort_callback_data = self.abort_flag.address
        self._gate: native.Gate | None = None
        if model.weight_stream is not None:
            self._gate = native.Gate(model.weight_stream, self.abort_flag)
            eval_callback = llama_cpp.ggml_backend_sched_eval_callback
            self._eval_callback = eval_callback(self._gate.eval_address)
            params.cb_eval = self._eval_callback
            params.cb_eval_user_data = self._gate.handle.address
            self._abort_callback = llama_cpp.ggml_abort_callback(self._gate.abort_address)
            params.abort_callback_data = self._gate.handle.address
        params.abort_callback = self._abort_callback
        sink.complaint = ""
        self._context: Any = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._context:
            raise DeviceError(
                f"{model.path.name}: llama.cpp cannot make a context of {num_ctx} tokens "
                f"({sink.complaint or 'no reason given'}); -c {max(256, num_ctx // 2)} needs less"
            )
        sink.complaint = ""
        model.keep_for(self)
        self.backend_sampler: BackendSampler | None = None
        self.model = model
        self.num_sequences = num_sequences
        self.num_ctx = int(llama_cpp.llama_n_ctx(self._context))
        self.max_rows = int(llama_cpp.llama_n_batch(self._context))
        self.num_outputs = int(params.n_outputs_max)
        self.num_snapshots = num_snapshots
        if num_snapshots is not None:
            self.num_snapshots = int(llama_cpp.llama_n_rs_seq(self._context))
        self.gives_states = gives_states or is_head
        if self.gives_states:
            hidden_states.enable(self._context)
        if head_layer:
            hidden_states.choose_layer(self._context, head_layer)
        self._memory: Any = llama_cpp.llama_get_memory(self._context)
        if adapters:
            handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
            scales = (ctypes.c_float * len(adapters))(*[1.0] * len(adapters))
            llama_cpp.llama_set_adapters_lora(self._context, handles, len(adapters), scales)

    def poll(self, flag: native.AbortFlag) -> None:
        """From now on passes look at `flag` instead of the present `abort_flag`."""
        if self._gate is not None:
            self._gate.watch(flag)
            self.abort_flag = flag
        elif flag is not self.abort_flag:
            llama_cpp.llama_set_abort_callback(self._context, self._abort_callback, flag.address)
            self.abort_flag = flag

    def require_outputs(self, num_rows: int) -> None:
        """Check that so many rows of one pass may ask for logits.

        Raises:
            DecodeError: llama.cpp would end the process.
        """
        if num_rows > self.num_outputs:
            raise DecodeError(
                f"{num_rows} rows of logits asked for; the context has {self.num_outputs}"
            )

    def failure(self, code: int, num_rows: int) -> DyspecError:
        """What it means that llama_decode of `num_rows` rows returned `code`, not 0."""
        failure = self._gate.stream.failure() if self._gate is not None else None
        if failure is not None:
            return failure
        if code == 2 or self.abort_flag.is_set:
            return Cancelled("stopped")
        meaning = {1: "no room for the batch in the KV cache", -1: "invalid batch"}.get(
            code, "the computation failed"
        )
        detail = f": {sink.complaint}" if sink.complaint else ""
        sink.complaint = ""
        return DecodeError(f"llama_decode of {num_rows} rows returned {code}, {meaning}{detail}")

    def create_cache(self, tree_capacity: int, first_id: int, num_ids: int) -> native.Handle:
        """A dyspec_cache over the ids first_id .. first_id + num_ids - 1 of this context.

        Args:
            tree_capacity: nodes of the largest tree, the root included.
        """
        addresses = [function_address(name) for name in native.LLAMA_FUNCTIONS]
        address = native.lib.dyspec_cache_create(
            (ctypes.c_void_p * len(addresses))(*addresses),
            native.address_of(self._context),
            native.address_of(self._memory),
            self.model.num_vocab,
            self.max_rows,
            self.num_outputs,
            tree_capacity,
            first_id,
            num_ids,
            -1 if self.num_snapshots is None else self.num_snapshots,
            self.model.num_embd if self.is_head else 0,
        )
        return native.Handle(address, native.lib.dyspec_cache_free, uses=[self])

    def attach_backend_sampler(self, *, num_vocab: int, k: int, commit: str | None = None) -> bool:
        """Let the backend of the logits find the k largest of the first `num_vocab` in each row.

        Args:
            commit: as in `llama.backend_sampler.attach`.

        Returns:
            Whether `backend_sampler` is there now; if not, the log for debugging says why.
        """
        self.detach_backend_sampler()
        self.backend_sampler = attach(
            self._context, self.num_sequences, num_vocab=num_vocab, k=k, commit=commit
        )
        return self.backend_sampler is not None

    def detach_backend_sampler(self) -> None:
        """Let whole rows of logits come to the host again."""
        if self.backend_sampler is not None:
            self.backend_sampler.detach()
            self.backend_sampler = None

    def logits_address(self) -> int:
        """Address of float32[num_outputs, num_vocab] in batch order, until the next decode.

        Nothing of use stands there while `backend_sampler` is attached.
        """
        return native.address_of(llama_cpp.llama_get_logits(self._context))

    def hidden_states(self, num_rows: int) -> npt.NDArray[np.float32]:
        """float32[num_rows, num_embd] of the last pass's first rows; valid until the next one."""
        shape = (num_rows, self.model.num_embd)
        size = ctypes.c_float * (shape[0] * shape[1])
        rows = size.from_address(hidden_states.address(self._context))
        return np.ctypeslib.as_array(rows).reshape(shape)

    def row_view(self, address: int) -> npt.NDArray[np.float32]:
        """A logits row as float32[num_vocab], without a copy; valid until the next decode."""
        size = self.model.num_vocab
        return np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))

    @property
    def handle(self) -> Any:
        """The llama_context pointer."""
        return self._context

    def close(self) -> None:
        """Free cache and buffers, after the native caches over them.  Idempotent."""
        if self._context:
            self.close_users()
            llama_cpp.llama_free(self._context)
            self._context = None
            if self.backend_sampler is not None:
                self.backend_sampler.close()
            if self._gate is not None:
                self._gate.handle.close()


def function_address(name: str) -> int:
    """Of llama.cpp's function llama_`name`."""
    if name == hidden_states.GETTER:
        return hidden_states.getter_address()
    return native.address_of(getattr(llama_cpp.llama_cpp._lib, f"llama_{name}"))
