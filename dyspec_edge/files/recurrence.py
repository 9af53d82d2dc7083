"""How large the recurrent state of a text is, by the keys of a file's header."""

from __future__ import annotations

import numpy as np

from dyspec_edge.files.gguf_header import GgufHeader

_INTERVAL = 4
"""Qwen's hybrids: every so many layers one is attention, where the file does not say."""


def num_state_bytes(header: GgufHeader, architecture: str) -> int:
    """Of one state, all recurrent layers together, in F32; an upper bound.

    The sizes are those of llama_hparams::n_embd_r and n_embd_s.
    """
    layers = header.integer(f"{architecture}.block_count") or 0
    layers -= header.integer(f"{architecture}.nextn_predict_layers") or 0
    recurrent = _num_recurrent(header, architecture, layers)
    return 4 * recurrent * _values_per_layer(header, architecture)


def _num_recurrent(header: GgufHeader, architecture: str, layers: int) -> int:
    kv_heads = header.fields.get(f"{architecture}.attention.head_count_kv")
    if isinstance(kv_heads, np.ndarray):
        without = kv_heads[:layers] == 0
        ff = header.fields.get(f"{architecture}.feed_forward_length")
        if architecture.startswith("nemotron_h") and isinstance(ff, np.ndarray):
            without &= ff[:layers] == 0
        return int(np.count_nonzero(without))
    if architecture.startswith("qwen"):
        return layers - layers // (
            header.integer(f"{architecture}.full_attention_interval") or _INTERVAL
        )
    return layers


def _values_per_layer(header: GgufHeader, architecture: str) -> int:
    def number(key: str) -> int:
        return header.integer(f"{architecture}.{key}") or 0

    embd, heads = number("embedding_length"), number("attention.head_count")
    if wkv := number("wkv.head_size"):
        return embd * (wkv + 2)
    if cached := number("shortconv.l_cache"):
        return embd * (cached - 1)
    conv = max(0, number("ssm.conv_kernel") - 1)
    if kda := number("kda.head_dim"):
        return heads * kda * (3 * (conv or 3) + kda)
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    return conv * (inner + 2 * number("ssm.group_count") * state) + state * inner
