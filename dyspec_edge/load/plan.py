"""What fits where: context length, GPU layers and how weights are loaded.

Decided from file headers and free memory, before anything is loaded, so that a request that
cannot work fails at once and with a number that would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from dyspec_edge.decode.cost import DRAFT_SIZES, TARGET_SIZES
from dyspec_edge.errors import DeviceError, OptionError
from dyspec_edge.files.model_file import FileReport
from dyspec_edge.llama import UNQUANTIZED, Device
from dyspec_edge.load.buffers import buffer_bytes, scores_bytes
from dyspec_edge.load.states import StatePlan, plan_states

DEFAULT_CTX = 8192
"""Usable tokens at most without -c."""

SMALLEST_CTX = 512
RESERVE = 512 << 20
"""Bytes left for logits, compute buffers and everything else on the machine."""

REPACKED_SHARE = 0.6
"""The second copy of 4-bit tensors that a CPU backend makes at load, as a share of the file."""

SCORES_SHARE = 1 / 8
"""Of the weights' size, what attention scores may take besides `RESERVE`."""

STREAM_RESERVE = 96 << 20
"""Bytes beside a streamed target's weights, caches and buffers: for the program itself."""

ALL_LAYERS = -1


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load a pair.

    Attributes:
        num_ctx, num_ctx_draft: usable tokens of target and draft, for each conversation.
        layers, layers_draft: layers to offload, -1 for all.
        flash_attn, flash_attn_draft: "on", "off", or "auto" for llama.cpp's own choice.
        states: what is held of recurrent states.
        streamed: the target's weights are larger than memory and are read again in every pass.
        room: bytes that a streamed target's weights may take; negative: so many are missing.
        notices: lines that say what was decided and why.
    """

    num_ctx: int
    num_ctx_draft: int
    layers: int
    layers_draft: int
    flash_attn: str
    flash_attn_draft: str
    states: StatePlan
    streamed: bool
    room: int
    notices: tuple[str, ...]


def cache_bytes_per_token(report: FileReport, type_k: str, type_v: str) -> int:
    """Bytes that one token takes in the KV cache, over all layers (an upper bound)."""
    values = report.num_kv_values or 0
    return int(values / 2 * (_bytes_per_value(type_k) + _bytes_per_value(type_v)))


def plan_load(
    target: FileReport,
    draft: FileReport | None,
    devices: Sequence[Device],
    *,
    memory: int,
    cache_types: tuple[str, str],
    cache_types_draft: tuple[str, str],
    num_ctx: int | None,
    num_ctx_draft: int | None,
    num_conversations: int = 1,
    layers: int | None,
    layers_draft: int | None,
    flash_attn: str,
    gpu_build: bool,
    stream: str = "auto",
) -> LoadPlan:
    """Decide for a pair.

    Args:
        devices: GPUs, and other machines' devices, which are for the target alone.
        memory: bytes free on the host.
        cache_types, cache_types_draft: of keys and values.
        num_ctx: tokens asked for; None for the default, 0 for the training length.
        num_ctx_draft: the same for the draft, which never has more than the target.
        num_conversations: open at the same time, each of so many tokens.
        layers, layers_draft: layers asked for; None for what fits.
        flash_attn: -fa.
        gpu_build: whether this llama.cpp can offload at all.
        stream: "on" streams whatever the memory, without a GPU.

    Raises:
        DeviceError: the context that was asked for does not fit, or not even what is no weight.
        OptionError: a negative context.
    """
    per_token = num_conversations * cache_bytes_per_token(target, *cache_types)
    per_token_draft = 0
    if draft is not None:
        per_token_draft = num_conversations * cache_bytes_per_token(draft, *cache_types_draft)
    models = [target] if draft is None else [target, draft]
    streamed = not devices and (
        sum(report.weights_bytes for report in models) + RESERVE > memory or stream == "on"
    )
    resident = 0.0
    if not streamed and not devices:
        resident = target.weights_bytes * (1 + REPACKED_SHARE)
    if draft is not None:
        resident += draft.weights_bytes * (1 + REPACKED_SHARE)
    # The weights of a streamed target get the memory that is left; its cache gets a quarter.
    room = memory / 4 if streamed else memory - resident - RESERVE
    if devices:
        room = max(room, sum(d.free_memory for d in devices) - target.weights_bytes - RESERVE)
    notices: list[str] = []
    states = plan_states(target, draft, room=room, num_conversations=num_conversations)
    room -= states.num_bytes
    longest_draft = num_ctx_draft or (draft.num_ctx_train if draft else None)
    fits = _fitting(room, per_token, per_token_draft, longest_draft)
    tokens = _context(target, num_ctx, fits, notices)
    tokens_draft = min(tokens, longest_draft or tokens)
    layers, layers_draft = _layers(
        target,
        draft,
        devices,
        per_token * tokens,
        per_token_draft * tokens_draft,
        (layers, layers_draft),
        gpu_build,
        notices,
    )
    contexts = [(target, num_conversations * tokens)] if layers == 0 else []
    if draft is not None and layers_draft == 0:
        contexts.append((draft, num_conversations * tokens_draft))
    left = room + RESERVE - per_token * tokens - per_token_draft * tokens_draft
    types_v = {cache_types[1]} if draft is None else {cache_types[1], cache_types_draft[1]}
    if streamed:  # scores take memory from weights, and what they save hides behind the disk
        left, contexts = RESERVE / 4, contexts[1:]
    on_cpu = _attention_on_cpu(flash_attn, types_v, contexts, left)
    lengths = (num_conversations * tokens, num_conversations * tokens_draft)
    in_use = STREAM_RESERVE + per_token * tokens + per_token_draft * tokens_draft
    attention = flash_attn if layers else _streamed_attention(flash_attn, on_cpu, streamed)
    attention_draft = flash_attn if layers_draft else on_cpu
    of_each = ((TARGET_SIZES[-1], attention), (DRAFT_SIZES[-1], attention_draft))
    for report, cells, (outputs, kind) in zip(models, lengths, of_each, strict=False):
        in_use += buffer_bytes(report, cells, outputs, scores=kind == "off")
    if streamed and in_use > memory:
        raise DeviceError(
            f"{memory >> 20} MiB are free, and caches, buffers and the program take about "
            f"{int(in_use) >> 20} MiB beside the weights; a smaller -c or no draft needs less"
        )
    if draft is not None:
        in_use += draft.weights_bytes
    return LoadPlan(
        num_ctx=tokens,
        num_ctx_draft=tokens_draft,
        layers=layers,
        layers_draft=layers_draft,
        flash_attn=attention,
        flash_attn_draft=attention_draft,
        states=states,
        streamed=streamed,
        room=memory - in_use,
        notices=tuple(notices),
    )


def _fitting(room: float, per_token: int, per_token_draft: int, longest_draft: int | None) -> int:
    """Tokens of the target for which both caches fit into `room` bytes."""
    tokens = room // max(1, per_token + per_token_draft)
    if longest_draft is not None and tokens > longest_draft:
        tokens = (room - per_token_draft * longest_draft) // max(1, per_token)
    return max(0, int(tokens) // 256 * 256)


def _context(target: FileReport, asked: int | None, fits: int, notices: list[str]) -> int:
    trained = target.num_ctx_train or DEFAULT_CTX
    if asked is not None and asked < 0:
        raise OptionError(f"a context of {asked} tokens: -c must be 0 (training length) or more")
    if asked is None:
        tokens = min(trained, DEFAULT_CTX, max(fits, SMALLEST_CTX))
        reason = "" if tokens == trained else f" of {trained} trained"
        short = " (what fits in memory)" if tokens == fits else ""
        notices.append(f"context: {tokens} tokens{reason}{short}; -c changes it")
        return tokens
    tokens = asked or trained
    if tokens > max(fits, SMALLEST_CTX):
        raise DeviceError(
            f"a context of {tokens} tokens does not fit in the free memory beside "
            f"{target.path.name}; -c {max(fits, SMALLEST_CTX)} does"
        )
    if tokens > trained:
        notices.append(f"context: {tokens} tokens, but the model was trained with {trained}")
    return tokens


def _attention_on_cpu(
    asked: str, types_v: set[str], contexts: Sequence[tuple[FileReport, int]], left: float
) -> str:
    """Off where the scores of all cells fit into memory, which is faster; else on.

    llama.cpp's flash attention on CPUs goes through all cells anew for every row, so that the rows
    of a tree cost as much as they do one by one; without it they share what is read, at the price
    of a buffer of heads x rows x cells.
    """
    if asked != "auto":
        return asked
    if not types_v <= set(UNQUANTIZED) or any(not report.num_heads for report, _ in contexts):
        return "on"
    scores = sum(scores_bytes(report, cells) for report, cells in contexts)
    weights = sum(report.weights_bytes for report, _ in contexts)
    return "off" if scores <= min(left, RESERVE + SCORES_SHARE * weights) else "on"


def _streamed_attention(asked: str, on_cpu: str, streamed: bool) -> str:
    return "on" if streamed and asked == "auto" else on_cpu


def _layers(
    target: FileReport,
    draft: FileReport | None,
    devices: Sequence[Device],
    cache: int,
    cache_draft: int,
    asked: tuple[int | None, int | None],
    gpu_build: bool,
    notices: list[str],
) -> tuple[int, int]:
    """The draft goes to this machine's GPU first, whole; then as many target layers as fit."""
    layers, layers_draft = asked
    if not devices:
        if layers or layers_draft:
            cause = (
                "no GPU was found" if gpu_build else "this llama.cpp is built without GPU support"
            )
            notices.append(
                f"-ngl has no effect: {cause}; for a GPU build see the README, section GPU "
                '(CMAKE_ARGS="-DGGML_CUDA=on")'
            )
        return 0, 0
    free = sum(device.free_memory for device in devices) * 0.9 - RESERVE
    here = [device for device in devices if not device.is_remote]
    if not here:
        layers_draft = 0
    elif layers_draft is None:
        wanted = draft.weights_bytes + cache_draft if draft else 0
        room = sum(device.free_memory for device in here) * 0.9 - RESERVE
        layers_draft = ALL_LAYERS if draft and wanted <= room else 0
        if draft and not layers_draft:
            notices.append(f"{draft.path.name} does not fit on the GPU and stays on the CPU")
    if layers_draft and draft:
        share = 1.0 if layers_draft < 0 else min(1.0, layers_draft / (draft.num_layers or 1))
        free -= share * (draft.weights_bytes + cache_draft)
    if layers is None:
        count = target.num_layers or 1
        per_layer = (target.weights_bytes + cache) / (count + 1)  # + 1: the output layer
        fit = max(0, int(free // per_layer))
        layers = ALL_LAYERS if fit > count else fit
    names = ", ".join(device.description for device in devices)
    shown = "all" if layers < 0 else str(layers)
    shown_draft = "" if draft is None else f", draft {'all' if layers_draft < 0 else layers_draft}"
    notices.append(f"{names}: target layers {shown}{shown_draft}")
    return layers, layers_draft


def _bytes_per_value(cache_type: str) -> float:
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[cache_type.upper()]]
    return size / values
