"""llama.cpp's grammar sampler: GBNF in, a dyspec_grammar out."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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

_redirecting = threading.Lock()


def create_grammar(model: Model, gbnf: str) -> native.Handle:
    """A dyspec_grammar at the beginning of a text.

    Raises:
        OptionError: llama.cpp cannot parse the grammar, or it has no rule `root`.
    """
    data = gbnf.encode("utf-8", "surrogatepass")
    _check(gbnf, data)
    sink.complaint = ""
    with _kept_stderr() as lines:
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


@contextmanager
def _kept_stderr() -> Iterator[list[str]]:
    """The lines that C code writes to stderr meanwhile."""
    lines: list[str] = []
    with _redirecting, tempfile.TemporaryFile() as file:
        try:
            saved = os.dup(2)
        except OSError:  # there is no stderr
            yield lines
            return
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().decode("utf-8", "replace").splitlines()
