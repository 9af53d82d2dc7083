"""Weights and vocabulary of one file."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntFlag
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.errors import ModelFileError
from dyspec_edge.llama import devices
from dyspec_edge.llama.log import sink


class Attribute(IntFlag):
    """What a token is: bits of llama_token_attr.

    Special ones stand for no text, and are found in a text only where that is asked for;
    user-defined ones are found in every text.  RSTRIP swallows the white space that follows.
    """

    SPECIAL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    USER_DEFINED = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
    RSTRIP = llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP


class InfillTokens(NamedTuple):
    """Ids of the control tokens for filling in the middle of a text; -1 for one that is not there.

    Attributes:
        prefix, suffix, middle: what follows is the text before, the text after, the reply.
        repository, separator: what follows is the repository's name, a file's name and text.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int = -1
    separator: int = -1


class Model(native.Used):
    """Weights and vocabulary of one GGUF file.

    Args:
        path: a GGUF file; of a split one the first shard.
        num_gpu_layers: layers to offload; -1 means all.
        rpc: servers, as of `gpu_devices`, that take layers, too; each has been connected.
        use_mmap, use_mlock: as llama.cpp's options.
        use_extra_bufts: repack weights for the CPU (a second copy in memory, faster).
        vocab_only: load the tokenizer, no weights.
        with_head: load the file's multi-token-prediction head, too.
        on_progress: called with 0..1 while weights are read.

    Raises:
        ModelFileError: llama.cpp does not load the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        num_gpu_layers: int = 0,
        rpc: Sequence[str] = (),
        use_mmap: bool = True,
        use_mlock: bool = False,
        use_extra_bufts: bool = True,
        vocab_only: bool = False,
        with_head: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = num_gpu_layers
        chosen = devices.chosen(rpc)
        if chosen is not None:
            params.devices = ctypes.cast(chosen, ctypes.c_void_p)
        params.load_mode = int(use_mmap) + 2 * int(use_mlock)  # NONE, MMAP, MLOCK, MMAP_MLOCK
        params.use_extra_bufts = use_extra_bufts
        params.vocab_only = vocab_only
        params.load_mtp = with_head

        raised: list[BaseException] = []
        interrupts: list[int] = []

        def progress(fraction: float, _user_data: int) -> bool:
            # Nothing can be raised through llama.cpp: it is told to stop, and then we raise.
            try:
                if on_progress is not None:
                    on_progress(fraction)
            except BaseException as error:
                raised.append(error)
            return not raised and not interrupts

        callback = llama_cpp.llama_progress_callback(progress)  # lives until the load is over
        params.progress_callback = callback
        sink.complaint = ""
        with _noting_interrupts(interrupts):
            self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if interrupts:
            raised.append(KeyboardInterrupt())
        if raised:
            self.close()
            raise raised[0]
        if not self._model:
            cause = sink.complaint or "no reason given"
            raise ModelFileError(f"{path}: llama.cpp cannot load this file ({cause})")
        self.path = path
        self._vocab: Any = llama_cpp.llama_model_get_vocab(self._model)
        self.num_vocab = int(llama_cpp.llama_vocab_n_tokens(self._vocab))
        self.num_ctx_train = int(llama_cpp.llama_model_n_ctx_train(self._model))
        self.num_embd = int(llama_cpp.llama_model_n_embd(self._model))
        self.num_layers = int(llama_cpp.llama_model_n_layer(self._model))
        self.bos = int(llama_cpp.llama_vocab_bos(self._vocab))
        self.eos = int(llama_cpp.llama_vocab_eos(self._vocab))
        self.nl = int(llama_cpp.llama_vocab_nl(self._vocab))
        self.end_tokens: npt.NDArray[np.int32] = np.array(
            [t for t in range(self.num_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, t)],
            dtype=np.int32,
        )
        """Ids that end a generation, ascending."""
        self.weight_stream: native.WeightStream | None = None
        """Reads the weights in every pass; None where they are in memory or left to the system."""
        self._adapters: list[Any] = []
        self._characters: dict[int, str] | None = None  # found once somebody asks

    @property
    def handle(self) -> Any:
        """The llama_model pointer."""
        return self._model

    @property
    def vocab(self) -> Any:
        """The llama_vocab pointer.

        Raises:
            ValueError: the model is closed.
        """
        if not self._model:
            raise ValueError("a model is used after it was closed")
        return self._vocab

    @property
    def description(self) -> str:
        """llama.cpp's own words for it, e.g. "qwen2 1.5B Q4_K - Medium"."""
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the file's own chat template, or None."""
        text = llama_cpp.llama_model_chat_template(self._model, None)
        return text.decode("utf-8", "replace") if text else None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`.

        Args:
            add_special: begin with the beginning-of-text token, if the model wants one.
            parse_special: texts of control tokens stand for these tokens.
        """
        data = text.encode("utf-8", "surrogatepass")
        count = len(data) + 8
        while True:
            tokens = (llama_cpp.llama_token * count)()
            n = llama_cpp.llama_tokenize(
                self.vocab, data, len(data), tokens, count, add_special, parse_special
            )
            if n >= 0:
                break
            count = -n
        # A file may ask for an end of text as well, which would end every prompt.
        ends = add_special and llama_cpp.llama_vocab_get_add_eos(self.vocab)
        return list(tokens[: n - 1 if ends and n and tokens[n - 1] == self.eos else n])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; control tokens are empty unless `special`."""
        buffer = ctypes.create_string_buffer(64)
        n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, -n, 0, special)
        return buffer.raw[:n]

    def character_tokens(self) -> dict[int, str]:
        """A token for each ASCII character that has one of its own."""
        if self._characters is None:
            found: dict[str, int] = {}
            buffer = ctypes.create_string_buffer(1)
            for token in range(self.num_vocab):
                n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, 1, 0, False)
                if n == 1 and b"\0" < buffer.raw < b"\x80":
                    found.setdefault(buffer.raw.decode("ascii"), token)
            self._characters = {token: text for text, token in found.items()}
        return self._characters

    @property
    def infill_tokens(self) -> InfillTokens | None:
        """The control tokens for filling in the middle, where the model knows them."""
        found = InfillTokens(
            prefix=int(llama_cpp.llama_vocab_fim_pre(self.vocab)),
            suffix=int(llama_cpp.llama_vocab_fim_suf(self.vocab)),
            middle=int(llama_cpp.llama_vocab_fim_mid(self.vocab)),
            repository=int(llama_cpp.llama_vocab_fim_rep(self.vocab)),
            separator=int(llama_cpp.llama_vocab_fim_sep(self.vocab)),
        )
        return None if min(found.prefix, found.suffix, found.middle) < 0 else found

    def attributes(self) -> list[int]:
        """The `Attribute` of each token as llama.cpp sees it; the file may say something else."""
        get = llama_cpp.llama_vocab_get_attr
        vocab = self.vocab
        return [get(vocab, token) for token in range(self.num_vocab)]

    def suppressed_tokens(self) -> list[int]:
        """Ids that the file says must never be generated (tokenizer.ggml.suppress_tokens)."""
        count = ctypes.c_int32()
        tokens = llama_cpp.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(count))
        return [int(tokens[i]) for i in range(count.value)]

    def load_adapter(self, path: Path) -> Any:
        """A LoRA adapter of this model; it lives as long as the model.

        Raises:
            ModelFileError: the file is no adapter for this model.
        """
        sink.complaint = ""
        adapter = llama_cpp.llama_adapter_lora_init(self._model, str(path).encode())
        if not adapter:
            raise ModelFileError(
                f"{path}: not a LoRA adapter for {self.path.name} ({sink.complaint})"
            )
        self._adapters.append(adapter)
        return adapter

    def leave_stream(self) -> None:
        """Leave the weights to the system after all; before the stream has been started."""
        if self.weight_stream is not None:
            self.weight_stream.close()
            self.weight_stream = None

    def close(self) -> None:
        """Free the weights, after the contexts and grammars over them.  Idempotent."""
        if self._model:
            self.close_users()
            stream = getattr(self, "weight_stream", None)
            if stream is not None:
                stream.close()
            llama_cpp.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _noting_interrupts(noted: list[int]) -> Iterator[None]:
    """Ctrl-C is noted instead of raised: an exception cannot pass through llama.cpp.

    Only where Python's own handler would raise it, which it does in the main thread alone.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
