"""Which kind of model an architecture name stands for, and why some kinds cannot be run here.

The lists state what llama.cpp (the version pinned in pyproject.toml) does with each name; a name
that is in none of them is taken for an ordinary causal model, and llama.cpp has the last word.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "causal",
    "recurrent",
    "hybrid",
    "encoder",
    "encoder-decoder",
    "diffusion",
    "draft-head",
    "projector",
    "adapter",
    "importance-matrix",
    "control-vector",
    "audio",
    "vocabulary",
]

_BY_NAME: dict[Kind, frozenset[str]] = {
    "recurrent": frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}),
    "hybrid": frozenset(
        {
            "bailingmoe3",
            "deepseek4",
            "falcon-h1",
            "glm5-next",
            "granitehybrid",
            "jamba",
            "kimi-k3",
            "kimi-linear",
            "lfm2",
            "lfm2moe",
            "minimax-01",
            "nemotron_h",
            "nemotron_h_moe",
            "plamo2",
            "qwen35",
            "qwen35moe",
            "qwen3next",
            "qwen4exp",
        }
    ),
    "diffusion": frozenset({"dream", "llada", "llada-moe", "rnd1"}),
    "encoder": frozenset(
        {
            "bert",
            "eurobert",
            "gemma-embedding",
            "jina-bert-v2",
            "jina-bert-v3",
            "llama-embed",
            "modern-bert",
            "neo-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "t5encoder",
        }
    ),
    "encoder-decoder": frozenset({"t5"}),
    "draft-head": frozenset({"dflash", "eagle", "eagle3", "gemma4-assistant", "medusa"}),
    "projector": frozenset({"clip", "mmproj"}),
    "control-vector": frozenset({"controlvector"}),
    "audio": frozenset({"pockettts", "qwen3tts", "wavtokenizer-dec"}),
}

State = Literal["none", "whole", "saved", "snapshots"]
"""What can be done with the recurrent state of a text: nothing where there is none; all of it is
dropped or kept; copies can be saved and brought back; besides, the last tokens can be taken back by
snapshots that llama.cpp keeps."""

_WHOLE = frozenset({"deepseek4", "glm5-next", "qwen4exp"})
"""Their memories have further parts, with which copies have not been tried."""

_SNAPSHOTS = frozenset(
    {
        "bailingmoe3",
        "kimi-k3",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
    }
)

_HEADS = frozenset({"glm4moe", "nemotron_h_moe", "qwen35", "qwen35moe"})
"""Those for whose heads llama.cpp has a graph of one layer, with an ordinary cache, that leaves a
hidden state at every row; with other files several of its calls abort the process."""

_LAYERED_HEADS = frozenset({"hy_v3"})
"""The same with a graph for each of several layers."""

_BY_TYPE: dict[str, Kind] = {
    "adapter": "adapter",
    "imatrix": "importance-matrix",
    "mmproj": "projector",
}

_OBSTACLES: dict[Kind, str] = {
    "encoder": "is an encoder, which makes embeddings and cannot write text",
    "encoder-decoder": "is an encoder-decoder model, which this program cannot run",
    "diffusion": "is a diffusion model, which this program cannot run",
    "draft-head": "is a draft head, not a stand-alone language model; "
    "use a small model of the target's family as the draft",
    "projector": "is a multimodal projector (mmproj), not a language model; "
    "name the model file that it belongs to",
    "adapter": "is a LoRA adapter, not a model; give it with --lora beside its base model",
    "importance-matrix": "is an importance matrix for quantisation, not a model",
    "control-vector": "is a control vector, not a model",
    "audio": "is a part of a speech model and does not write text",
    "vocabulary": "holds a vocabulary but no weights; fetch the whole model",
}


def kind_of(
    architecture: str,
    *,
    general_type: str = "model",
    causal: bool = True,
    has_trunk: bool = True,
) -> Kind:
    """The kind of model in a file.

    Args:
        architecture: the field general.architecture.
        general_type: the field general.type.
        causal: the field ARCHITECTURE.attention.causal.
        has_trunk: whether there are layers besides those of a multi-token-prediction head.
    """
    if general_type in _BY_TYPE:
        return _BY_TYPE[general_type]
    for kind, names in _BY_NAME.items():
        if architecture in names:
            return kind
    if not has_trunk:
        return "draft-head"
    return "causal" if causal else "encoder"


def obstacle_of(kind: Kind, architecture: str) -> str | None:
    """Why a kind of model cannot generate text here, as the end of "FILE: ..."; else None."""
    if kind not in _OBSTACLES:
        return None
    return f"{_OBSTACLES[kind]} (architecture {architecture!r})"


def state_of(kind: Kind, architecture: str) -> State:
    """What can be done with the recurrent state of such a model."""
    if kind not in ("recurrent", "hybrid"):
        return "none"
    if architecture in _WHOLE:
        return "whole"
    return "snapshots" if architecture in _SNAPSHOTS else "saved"


def runs_head(architecture: str, num_layers: int) -> bool:
    """Whether a multi-token-prediction head of so many layers can draft here."""
    if architecture in _LAYERED_HEADS:
        return num_layers > 0
    return architecture in _HEADS and num_layers == 1
