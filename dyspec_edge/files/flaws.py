"""What llama.cpp takes for granted about a model file.

Where one of these things does not hold, llama.cpp ends the whole process, so they are looked at
before it gets the file.  Token texts are bytes as the file has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dyspec_edge.files.gguf_header import GgufHeader

MAX_LAYERS, MAX_EXPERTS = 512, 1024
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
WHOLE_ROTATION = ("llama", "qwen2", "qwen3")
"""Architectures whose heads are rotated as a whole, with keys as long as values."""

NO_TOKENIZERS = ("none", "no_vocab")
"""Names that stand for "this file cannot turn text into tokens"."""

WITH_BYTES = ("llama",)
"""Tokenizers that spell a character which is no token by the tokens of its bytes."""


def vocabulary_flaw_of(tokens: Sequence[bytes], tokenizer: str) -> str | None:
    """Why llama.cpp would end the process over this vocabulary, as the end of "FILE: ...".

    Args:
        tokens: token texts by id.
        tokenizer: the file's tokenizer.ggml.model.
    """
    if not tokens or tokenizer in NO_TOKENIZERS:
        return "has no vocabulary in it"
    twice = _repeated(tokens)
    if twice is not None:
        return f"is damaged: its vocabulary has the token {_shown(twice)} twice; fetch it again"
    if tokenizer in WITH_BYTES:
        known = set(tokens)
        for byte in range(256):
            if b"<0x%02X>" % byte not in known and bytes([byte]) not in known:
                return (
                    f"is damaged: its vocabulary has no token for the byte 0x{byte:02X}; "
                    "fetch it again"
                )
    return None


def parameter_flaw_of(header: GgufHeader, architecture: str) -> str | None:
    """The same for sizes and counts."""

    def number(key: str) -> int:
        return header.integer(f"{architecture}.{key}") or 0

    layers, experts, used = map(number, ("block_count", "expert_count", "expert_used_count"))
    heads, embd = number("attention.head_count"), number("embedding_length")
    head = embd // heads if heads else 0
    key = number("attention.key_length") or head
    value = number("attention.value_length") or head
    rotated = number("rope.dimension_count") or key
    scaling = header.text(f"{architecture}.rope.scaling.type")
    if not 0 < layers <= MAX_LAYERS:
        found = f"{layers:,} layers; 1 to {MAX_LAYERS} are possible"
    elif not 0 <= experts <= MAX_EXPERTS:
        found = f"{experts:,} experts; {MAX_EXPERTS} at most are possible"
    elif not min(experts, 1) <= used <= experts:
        found = f"{used:,} experts in use out of {experts:,}"
    elif architecture in WHOLE_ROTATION and not key == value == rotated:
        found = f"keys of {key:,} values, of which {rotated:,} rotate, beside {value:,}"
    elif scaling is not None and scaling not in ROPE_SCALINGS:
        found = f"positions scaled in the unknown way {scaling[:40]!r}"
    else:
        return None
    return f"is damaged: its header says {found}; fetch it again"


def _repeated(tokens: Sequence[bytes]) -> bytes | None:
    """A text that two tokens share, as llama.cpp reads it: up to a zero byte, empty ones apart."""
    texts = [token.partition(b"\0")[0] for token in tokens]
    if len(set(texts)) == len(texts):
        return None
    return next((text for text, n in Counter(texts).items() if text and n > 1), None)


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))
