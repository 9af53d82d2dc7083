"""What the tiny models of each architecture consist of: the keys and the layers of their files.

    llama       attention
    gemma3      attention, a sliding window in five of six layers
    glm4moe     attention, experts, and perhaps a head that predicts one token more (MTP)
    hy_v3       attention, and perhaps a head of several layers
    mamba       a recurrent state
    jamba       a recurrent state in every other layer, attention in the others
    lfm2        short convolutions in two layers of three, attention in the others
    qwen35      gated delta nets in two layers of three, attention, and perhaps a head
    nemotron_h  recurrent states, attention and feed-forward blocks, each a layer of its own

Layers add to the residual stream through the matrices that `OUTPUTS` names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Draw = Callable[..., Array]
"""(rows, columns, gain): random numbers of the deviation gain / sqrt(columns)."""

Architecture = Literal[
    "llama", "gemma3", "glm4moe", "hy_v3", "mamba", "jamba", "lfm2", "qwen35", "nemotron_h"
]

NUM_EMBD = 64
NUM_FF = 128
NUM_HEAD = 4
HEAD_SIZE = NUM_EMBD // NUM_HEAD
KV_SIZE = NUM_EMBD // 2

NUM_LAYERS: dict[Architecture, int] = {
    "llama": 2,
    "gemma3": 6,
    "glm4moe": 2,
    "hy_v3": 2,
    "mamba": 2,
    "jamba": 4,
    "lfm2": 3,
    "qwen35": 3,
    "nemotron_h": 6,
}

HYBRIDS: tuple[Architecture, ...] = ("lfm2", "qwen35", "nemotron_h")
"""Those whose states llama.cpp can take back by some tokens."""

OUTPUTS = (
    "attn_output.weight",
    "ffn_down.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
    "ssm_out.weight",
    "shortconv.out_proj.weight",
)

OUTPUT_NORM: dict[Architecture, str] = {"lfm2": "token_embd_norm.weight"}

_STATE, _GROUPS, _RANK, _KERNEL = 16, 2, 4, 4
_EXPERTS, _EXPERT_FF = 4, 32


def add_keys(writer: gguf.GGUFWriter, architecture: Architecture, *, num_heads: int) -> None:
    """Write what the architecture needs to know besides its tensors.

    Args:
        num_heads: layers of a multi-token-prediction head, which follow the others.
    """
    num_layer = NUM_LAYERS[architecture]
    writer.add_block_count(num_layer + num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    if num_heads:
        writer.add_uint32(f"{architecture}.nextn_predict_layers", num_heads)
    if architecture == "mamba":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
    else:
        _add_attention_keys(writer)
        kinds = [_kind(architecture, i) for i in range(num_layer)]
        if architecture in ("jamba", "lfm2", "nemotron_h"):  # where there is no attention
            writer.add_head_count_kv([NUM_HEAD // 2 * (kind == "attention") for kind in kinds])
        else:
            writer.add_head_count_kv(NUM_HEAD // 2)
        if architecture == "nemotron_h":
            writer.add_feed_forward_length([NUM_FF * (kind == "ff") for kind in kinds])
        else:
            writer.add_feed_forward_length(NUM_FF)
    if architecture in ("mamba", "jamba"):
        _add_state_keys(writer, 2 * NUM_EMBD)
    if architecture == "qwen35":
        _add_state_keys(writer, NUM_EMBD)
        writer.add_ssm_group_count(_GROUPS)
        writer.add_rope_dimension_sections([3, 3, 2, 0])
        writer.add_uint32("qwen35.full_attention_interval", 3)
    if architecture == "nemotron_h":
        _add_state_keys(writer, NUM_EMBD)
        writer.add_ssm_group_count(_GROUPS)
        writer.add_layer_norm_eps(1e-5)
    if architecture == "lfm2":
        writer.add_uint32("lfm2.shortconv.l_cache", _KERNEL)
    if architecture == "hy_v3":
        writer.add_expert_feed_forward_length(_EXPERT_FF)
    if architecture == "glm4moe":
        writer.add_expert_count(_EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_shared_count(1)
        writer.add_expert_feed_forward_length(_EXPERT_FF)
        writer.add_leading_dense_block_count(1)
        writer.add_expert_weights_norm(True)


def layer(draw: Draw, architecture: Architecture, index: int, *, is_head: bool) -> dict[str, Array]:
    """The tensors of a layer, without their prefix."""
    match architecture:
        case "mamba":
            return _mamba(draw)
        case "jamba":
            mixer = (
                _jamba_mamba(draw) if _kind(architecture, index) == "state" else _attention(draw)
            )
            return _norms("attn_norm", "ffn_norm") | mixer | _feed_forward(draw)
        case "lfm2":
            is_state = _kind(architecture, index) == "state"
            mixer = _short_convolution(draw) if is_state else _attention(draw) | _head_norms()
            return _norms("attn_norm", "ffn_norm") | mixer | _feed_forward(draw)
        case "nemotron_h":
            kind = _kind(architecture, index)
            own = {"state": _mamba2, "attention": _attention, "ff": _plain_feed_forward}[kind]
            return _norms("attn_norm") | own(draw)
        case "qwen35":
            is_state = _kind(architecture, index) == "state" and not is_head
            mixer = _delta_net(draw) if is_state else _gated_attention(draw)
            parts = _norms("attn_norm", "post_attention_norm") | mixer | _feed_forward(draw)
            return parts | (_head(draw) if is_head else {})
        case "glm4moe":
            feed_forward = _experts(draw) if index else _feed_forward(draw)
            parts = _norms("attn_norm", "post_attention_norm") | _attention(draw) | feed_forward
            return parts | (_head(draw) if is_head else {})
        case "hy_v3":
            parts = _norms("attn_norm", "ffn_norm") | _attention(draw) | _head_norms()
            parts |= _feed_forward(draw)
            return parts | (_head(draw) if is_head else {})
    parts = _norms("attn_norm") | _attention(draw) | _norms("ffn_norm") | _feed_forward(draw)
    if architecture == "gemma3":
        parts |= _head_norms() | _norms("post_attention_norm", "post_ffw_norm")
    return parts


def _kind(architecture: Architecture, index: int) -> str:
    """What mixes tokens in a layer: "attention", a "state", or nothing ("ff")."""
    if index >= NUM_LAYERS[architecture]:
        return "attention"
    if architecture == "jamba":
        return "attention" if index % 2 else "state"
    if architecture in ("lfm2", "qwen35"):
        return "attention" if index % 3 == 2 else "state"
    if architecture == "nemotron_h":
        return ("state", "attention", "ff")[index % 3]
    return "attention"


def _add_attention_keys(writer: gguf.GGUFWriter) -> None:
    writer.add_head_count(NUM_HEAD)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(10000.0)


def _add_state_keys(writer: gguf.GGUFWriter, inner: int) -> None:
    writer.add_ssm_conv_kernel(_KERNEL)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)


def _norms(*names: str) -> dict[str, Array]:
    return {f"{name}.weight": np.ones(NUM_EMBD, np.float32) for name in names}


def _head_norms() -> dict[str, Array]:
    return {
        "attn_q_norm.weight": np.full(HEAD_SIZE, 1.5, np.float32),
        "attn_k_norm.weight": np.full(HEAD_SIZE, 1.5, np.float32),
    }


def _attention(draw: Draw) -> dict[str, Array]:
    return {
        # Peaked attention: the text then depends on the whole past and does not loop.
        "attn_q.weight": draw(NUM_EMBD, NUM_EMBD, 1.6),
        "attn_k.weight": draw(KV_SIZE, NUM_EMBD, 1.6),
        "attn_v.weight": draw(KV_SIZE, NUM_EMBD, 1.5),
        "attn_output.weight": draw(NUM_EMBD, NUM_EMBD, 1.5),
    }


def _gated_attention(draw: Draw) -> dict[str, Array]:
    parts = _attention(draw) | _head_norms()
    return parts | {"attn_q.weight": draw(2 * NUM_EMBD, NUM_EMBD, 1.6)}


def _feed_forward(draw: Draw) -> dict[str, Array]:
    return {"ffn_gate.weight": draw(NUM_FF, NUM_EMBD, 1.5)} | _plain_feed_forward(draw)


def _plain_feed_forward(draw: Draw) -> dict[str, Array]:
    return {
        "ffn_up.weight": draw(NUM_FF, NUM_EMBD, 1.5),
        "ffn_down.weight": draw(NUM_EMBD, NUM_FF, 1.0),
    }


def _experts(draw: Draw) -> dict[str, Array]:
    def each(rows: int, columns: int, gain: float) -> Array:
        return np.stack([draw(rows, columns, gain) for _ in range(_EXPERTS)])

    return {
        "ffn_gate_inp.weight": draw(_EXPERTS, NUM_EMBD, 1.0),
        "exp_probs_b.bias": np.zeros(_EXPERTS, np.float32),
        "ffn_gate_exps.weight": each(_EXPERT_FF, NUM_EMBD, 1.5),
        "ffn_up_exps.weight": each(_EXPERT_FF, NUM_EMBD, 1.5),
        "ffn_down_exps.weight": each(NUM_EMBD, _EXPERT_FF, 1.0),
        "ffn_gate_shexp.weight": draw(_EXPERT_FF, NUM_EMBD, 1.5),
        "ffn_up_shexp.weight": draw(_EXPERT_FF, NUM_EMBD, 1.5),
        "ffn_down_shexp.weight": draw(NUM_EMBD, _EXPERT_FF, 1.0),
    }


def _short_convolution(draw: Draw) -> dict[str, Array]:
    return {
        "shortconv.conv.weight": draw(NUM_EMBD, _KERNEL, 1.5),
        "shortconv.in_proj.weight": draw(3 * NUM_EMBD, NUM_EMBD, 1.0),
        "shortconv.out_proj.weight": draw(NUM_EMBD, NUM_EMBD, 0.9),
    }


def _delta_net(draw: Draw) -> dict[str, Array]:
    channels = NUM_EMBD + 2 * _GROUPS * _STATE
    return {
        "attn_qkv.weight": draw(channels, NUM_EMBD, 1.5),
        "attn_gate.weight": draw(NUM_EMBD, NUM_EMBD, 1.5),
        "ssm_conv1d.weight": draw(channels, _KERNEL, 1.5),
        "ssm_dt.bias": np.zeros(_RANK, np.float32),
        # States that forget slowly, each at its own pace.
        "ssm_a": -np.linspace(0.02, 0.4, _RANK).astype(np.float32),
        "ssm_beta.weight": draw(_RANK, NUM_EMBD, 1.0),
        "ssm_alpha.weight": draw(_RANK, NUM_EMBD, 1.0),
        "ssm_norm.weight": np.ones(_STATE, np.float32),
        "ssm_out.weight": draw(NUM_EMBD, NUM_EMBD, 1.5),
    }


def _mamba(draw: Draw) -> dict[str, Array]:
    inner = 2 * NUM_EMBD
    decay = -np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (inner, 1))
    return {
        "attn_norm.weight": np.ones(NUM_EMBD, np.float32),
        "ssm_in.weight": draw(2 * inner, NUM_EMBD, 1.0),
        "ssm_conv1d.weight": draw(inner, _KERNEL, 1.0),
        "ssm_conv1d.bias": np.zeros(inner, np.float32),
        "ssm_x.weight": draw(_RANK + 2 * _STATE, inner, 1.0),
        "ssm_dt.weight": draw(inner, _RANK, 1.0),
        "ssm_dt.bias": np.full(inner, -2.0, np.float32),
        "ssm_a": decay,
        "ssm_d": np.ones(inner, np.float32),
        "ssm_out.weight": draw(NUM_EMBD, inner, 1.5),
    }


def _jamba_mamba(draw: Draw) -> dict[str, Array]:
    return _mamba(draw) | {
        "ssm_dt_norm.weight": np.ones(_RANK, np.float32),
        "ssm_b_norm.weight": np.ones(_STATE, np.float32),
        "ssm_c_norm.weight": np.ones(_STATE, np.float32),
    }


def _mamba2(draw: Draw) -> dict[str, Array]:
    inner, channels = NUM_EMBD, NUM_EMBD + 2 * _GROUPS * _STATE
    return {
        "ssm_in.weight": draw(inner + channels + _RANK, NUM_EMBD, 1.5),
        "ssm_conv1d.weight": draw(channels, _KERNEL, 1.5),
        "ssm_conv1d.bias": np.zeros(channels, np.float32),
        "ssm_dt.bias": np.full(_RANK, -2.0, np.float32),
        "ssm_a": -np.linspace(0.2, 4.0, _RANK).astype(np.float32)[:, None],
        "ssm_d": np.ones((_RANK, 1), np.float32),
        "ssm_norm.weight": np.ones((_GROUPS, inner // _GROUPS), np.float32),
        "ssm_out.weight": draw(NUM_EMBD, inner, 1.5),
    }


def _head(draw: Draw) -> dict[str, Array]:
    """Where layers add little, it says what the model itself would say after the token."""
    projection = draw(NUM_EMBD, 2 * NUM_EMBD, 0.05)
    projection[0] = 0
    projection[:, :NUM_EMBD] += np.eye(NUM_EMBD, dtype=np.float32)
    return _norms("nextn.enorm", "nextn.hnorm") | {"nextn.eh_proj.weight": projection}
