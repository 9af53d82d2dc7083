"""llama.cpp's grammar sampler: GBNF in, a dyspec_grammar out."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import llama_cpp

from dyspec_edge import native
from dyspec_edge.errors import OptionError
from dyspec_edge.llama.context import function_address
from dyspec_edge.llama.log import sink
from dyspec_edge.llama.model import Model

MAX_DEPTH = 256
"""Of brackets: llama.cpp's parser calls itself for each, until the stack of the thread is full."""

MAX_BYTES = 1 << 20

_NAMES = {"linux": "stderr", "darwin": "__stderrp"}
"""Of C's variable."""


def create_grammar(model: Model, gbnf: str) -> native.Handle:
    """A dyspec_grammar at the beginning of a text.

    Raises:
        OptionError: llama.cpp cannot parse the grammar, or it has no rule `root`.
    """
    data = gbnf.encode("utf-8", "surrogatepass")
    _check(gbnf, data)
    sink.complaint = ""
    lines: list[str] = []
    with _keeping_stderr(lines):
        state: Any = llama_cpp.llama_sampler_init_grammar(model.vocab, data, b"root")
    if not state:
        raise OptionError(f"the grammar cannot be used: {_reason(lines)}")
    addresses = [function_address(name) for name in native.GRAMMAR_FUNCTIONS]
    address = native.lib.dyspec_grammar_create(
        (ctypes.c_void_p * len(addresses))(*addresses),
        native.address_of(model.vocab),
        native.address_of(state),
    )
    return native.Handle(address, native.lib.dyspec_grammar_free, uses=[model])


def _check(gbnf: str, data: bytes) -> None:
    """Refuse what llama.cpp's parser does not survive, or takes for no grammar at all."""
    if not gbnf.strip() or "\0" in gbnf:
        raise OptionError("the grammar is empty or holds a NUL; it needs a rule `root ::= ...`")
    if len(data) > MAX_BYTES:
        raise OptionError(f"the grammar has {len(data)} bytes; at most {MAX_BYTES} can be used")
    depth = deepest = 0
    for bracket in re.findall(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[()<]', gbnf):
        if bracket == "<":
            raise OptionError("the grammar names tokens (<...>); only characters can be named")
        depth += (bracket == "(") - (bracket == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise OptionError(f"the grammar nests brackets {deepest} deep; at most {MAX_DEPTH} can be")


def _reason(lines: list[str]) -> str:
    """What llama.cpp's parser has written: to stderr, not to the log, the rest of the text last."""
    found = (line.split("error parsing grammar: ", 1) for line in lines)
    parser = next((parts[1] for parts in found if len(parts) == 2), "")
    reason = parser or sink.complaint or "no reason given"
    return reason if len(reason) <= 120 else reason[:117] + "..."


class _CStderr:
    """C's `stderr`, which llama.cpp's parser writes to; Python's own is another, and stays.

    For good it has a buffer of its own beside it: another thread's C code may write late.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._variable = ctypes.c_void_p.in_dll(self._libc, _NAMES[sys.platform])
        if sys.platform == "linux":
            _ = self._libc.gnu_get_libc_version  # in another library the variable is read-only
        self._text, self._size = ctypes.c_void_p(), ctypes.c_size_t()
        self._libc.open_memstream.restype = ctypes.c_void_p
        self._buffer = ctypes.c_void_p(
            self._libc.open_memstream(ctypes.byref(self._text), ctypes.byref(self._size))
        )
        self._in_use = threading.Lock()

    @contextmanager
    def kept(self, lines: list[str]) -> Iterator[None]:
        """What C code writes meanwhile goes to `lines`."""
        with self._in_use:
            self._libc.rewind(self._buffer)
            ours, self._variable.value = self._variable.value, self._buffer.value
            try:
                yield
            finally:
                self._variable.value = ours
                self._libc.fflush(self._buffer)
                text = ctypes.string_at(self._text.value or 0, self._size.value)
                lines += text.decode("utf-8", "replace").splitlines()


@cache
def _c_stderr() -> _CStderr | None:
    try:
        return _CStderr()
    except (KeyError, AttributeError, ValueError, TypeError):
        return None  # there the reason is on stderr instead


def _keeping_stderr(lines: list[str]) -> AbstractContextManager[None]:
    stderr = _c_stderr()
    return nullcontext() if stderr is None else stderr.kept(lines)
