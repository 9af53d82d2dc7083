"""Tokens that two vocabularies have in common: those that stand for the same bytes.

    target (gpt2)   "Ġthe" 279     bytes b" the"     "<|im_end|>" 151645   control tokens: by name
    draft  (llama)  "▁the" 278     bytes b" the"     "<|im_end|>" 32001

Kinds of tokenizers write spaces and bytes in ways of their own; the bytes are what they agree on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import TokenType

from dyspec_edge.files.model_file import FileReport

LEAST_SHARE = 1 / 8
"""Of the smaller vocabulary's tokens of several bytes that the other has to have, too."""

_Name = tuple[bool, bytes]
"""Of a token: whether it controls the model, and its bytes."""


def common_ids(target: FileReport, draft: FileReport) -> npt.NDArray[np.int32] | None:
    """The target's ids by the draft's, -1 where the target has no such token: int32[draft's].

    None where the vocabularies have too little in common for the draft to be of use, or are of a
    kind whose texts are not understood.
    """
    ours, theirs = _names(target), _names(draft)
    if not ours or not theirs:
        return None
    ids = np.full(draft.num_vocab, -1, np.int32)
    shared = ours.keys() & theirs.keys()
    for name in shared:
        ids[theirs[name]] = ours[name]
    smaller = min(_num_long(ours), _num_long(theirs))
    num_common = sum(len(text) > 1 for is_control, text in shared if not is_control)
    return ids if num_common >= max(1, LEAST_SHARE * smaller) else None


def _names(report: FileReport) -> dict[_Name, int]:
    """Ids by name; of several with one name that which texts are made of, then the lowest."""
    if report.tokenizer not in ("gpt2", "llama"):
        return {}
    kinds, found = report.token_types, dict[_Name, int]()
    for token in sorted(range(report.num_vocab), key=lambda t: kinds[t] == TokenType.BYTE):
        if kinds[token] not in (TokenType.UNKNOWN, TokenType.UNUSED):
            is_control = kinds[token] == TokenType.CONTROL
            text = report.tokens[token] if is_control else _bytes_of(report, token)
            if text:
                found.setdefault((is_control, text), token)
    return found


def _bytes_of(report: FileReport, token: int) -> bytes:
    """What a token stands for in a text."""
    text, kind = report.token_text(token), report.token_types[token]
    if report.tokenizer == "llama":
        if kind == TokenType.BYTE:
            return bytes.fromhex(text[3:-1])
        return text.replace("\u2581", " ").encode()
    if kind != TokenType.NORMAL:
        return text.encode()
    try:
        return text.translate(_BYTES).encode("latin-1")
    except UnicodeEncodeError:  # no byte-level text, whatever the file says
        return text.encode()


def _byte_level() -> dict[int, int]:
    """The byte that each character of a byte-level text stands for, as GPT-2 numbers them."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return {256 + number: byte for number, byte in enumerate(hidden)}


_BYTES = _byte_level()


def _num_long(names: dict[_Name, int]) -> int:
    return sum(len(text) > 1 for is_control, text in names if not is_control)
