"""What a GGUF file is: kind of model, sizes, vocabulary, chat template, shards.

All of it is read from the headers, within a second: no model is loaded.  A file that cannot be run
is refused here, before a load takes minutes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import LlamaFileType

from dyspec_edge.errors import ModelFileError
from dyspec_edge.files.architecture import (
    Kind,
    State,
    kind_of,
    obstacle_of,
    runs_head,
    state_of,
)
from dyspec_edge.files.flaws import parameter_flaw_of, vocabulary_flaw_of
from dyspec_edge.files.gguf_header import GgufHeader, TensorInfo, read_header
from dyspec_edge.files.recurrence import num_state_bytes
from dyspec_edge.files.trimmed import TrimmedVocabulary, map_flaw_of, trimmed_vocabulary

_SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf\Z")

# tokenizer.ggml.token_type
_NORMAL, _UNUSED = 1, 5
_CONTROL = (2, 3)  # the unknown token among them
_PADDING_NAME = re.compile(rb"[\[<(|_]*(pad|unused|reserved|dummy|extra)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileReport:
    """What one model is.  `path` is the first shard where there are several.

    Attributes:
        quantization: the name of the file type, "Q4_K_M"; of the commonest tensor type if unset.
        parameters: elements of all tensors, `weights_bytes` their size; over all shards.
        num_ctx_train: context length the model was trained with, None if the file does not say.
        num_heads: heads of attention, of the layer with most.
        num_kv_values: values that one token occupies in the attention cache, all layers together
            (2 bytes each as f16); an upper bound for models with sliding windows or shared caches.
        state: what can be done with the recurrent state of a text.
        state_bytes: size of that state; an upper bound, 0 without one.
        num_head_layers: of a multi-token-prediction head whose weights are here; 0 without one.
        has_head: whether that head can draft.
        sliding_window: the field as it stands; None means no such field.
        add_bos: None where the file leaves it to the kind of tokenizer.
        obstacle: why it cannot generate text here, as the end of "FILE: ..."; None if it can.
        tokens, token_types: the vocabulary, by token id; texts as stored, in UTF-8.
        trimmed: which part of a vocabulary that is; None if it is whole.
    """

    path: Path
    file_size: int
    kind: Kind
    architecture: str
    name: str | None
    quantization: str
    parameters: int
    weights_bytes: int
    num_ctx_train: int | None
    num_layers: int | None
    num_embd: int | None
    num_heads: int | None
    num_kv_values: int | None
    state: State
    state_bytes: int
    num_head_layers: int
    has_head: bool
    sliding_window: int | None
    num_vocab: int
    tokenizer: str
    pre_tokenizer: str | None
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    add_bos: bool | None
    num_shards: int
    obstacle: str | None
    chat_template: str | None = field(repr=False)
    tokens: Sequence[bytes] = field(repr=False)
    token_types: Sequence[int] = field(repr=False)
    trimmed: TrimmedVocabulary | None = field(repr=False)

    def token_text(self, token: int) -> str:
        """The text of a token as the file has it."""
        return self.tokens[token].decode("utf-8", "replace")

    def control_texts(self) -> list[str]:
        """The texts of all tokens that control the model and never stand for text."""
        kinds = zip(self.tokens, self.token_types, strict=True)
        return [text.decode("utf-8", "replace") for text, kind in kinds if kind in _CONTROL]

    def is_padding(self, token: int) -> bool:
        """Whether a token only fills the vocabulary up and never occurs in a text."""
        if self.token_types[token] == _UNUSED:
            return True
        return bool(self.token_types[token] != _NORMAL and _PADDING_NAME.match(self.tokens[token]))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all but the vocabulary; of the template only whether it is there."""
        skipped = ("tokens", "token_types", "chat_template", "trimmed")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        return {
            **values,
            "path": str(self.path),
            "has_chat_template": bool(self.chat_template),
            "trimmed_from": self.trimmed.size if self.trimmed is not None else None,
        }


def inspect_file(path: Path, *, any_kind: bool = False) -> FileReport:
    """What the file is.

    Args:
        path: a GGUF file; of a split model the first shard.
        any_kind: report also what cannot generate text (projectors, adapters, draft heads,
            encoders ...) instead of refusing it.

    Raises:
        ModelFileError: missing, no GGUF, damaged, truncated, a shard that is missing or not the
            first, or (without `any_kind`) a kind of file that cannot be run.
    """
    path = Path(path)
    header = read_header(path)
    shards = _shards(header)
    for shard in shards:
        if shard.missing_bytes:
            raise ModelFileError(
                f"{shard.path}: is truncated: {shard.missing_bytes:,} bytes are missing "
                f"({shard.file_size:,} of {shard.file_size + shard.missing_bytes:,}); "
                "fetch it again"
            )
    report = _report(header, shards)
    if report.obstacle and not any_kind:
        raise ModelFileError(f"{path}: {report.obstacle}")
    return report


def read_tensors(path: Path) -> list[tuple[Path, TensorInfo]]:
    """All tensors of a model and the files that hold them; `path` is that of its first shard.

    Raises:
        ModelFileError: as `inspect_file`, but for truncated weights.
    """
    shards = _shards(read_header(Path(path)))
    return [(shard.path, tensor) for shard in shards for tensor in shard.tensors]


def _shards(first: GgufHeader) -> list[GgufHeader]:
    count, number = first.integer("split.count") or 1, first.integer("split.no") or 0
    if count <= 1:
        return [first]
    name = _SHARD_NAME.match(first.path.name)
    if number:
        start = f"{name['prefix']}-00001-of-{count:05}.gguf" if name else "-00001-of-....gguf"
        raise ModelFileError(
            f"{first.path}: is shard {number + 1} of {count}; name the first one, {start}"
        )
    if not name or int(name["no"]) != 1 or int(name["count"]) != count:
        raise ModelFileError(
            f"{first.path}: is the first of {count} shards but its name does not end in "
            f"-00001-of-{count:05}.gguf; give all shards their original names"
        )
    others = [
        first.path.with_name(f"{name['prefix']}-{i:05}-of-{count:05}.gguf")
        for i in range(2, count + 1)
    ]
    missing = [other.name for other in others if not other.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFileError(
            f"{first.path}: {len(missing)} of {count} shards are missing: {missing[0]}{more}; "
            "all shards must be in one directory"
        )
    return [first, *(_other_shard(path, i, count) for i, path in enumerate(others, start=1))]


def _other_shard(path: Path, number: int, count: int) -> GgufHeader:
    header = read_header(path)
    found = header.integer("split.no"), header.integer("split.count")
    if found != (number, count):
        raise ModelFileError(
            f"{path}: should be shard {number + 1} of {count} but is another file; fetch it again"
        )
    return header


def _report(header: GgufHeader, shards: Sequence[GgufHeader]) -> FileReport:
    architecture = header.text("general.architecture") or ""
    tensors = [tensor for shard in shards for tensor in shard.tensors]
    tokens, types = _vocabulary(header)
    layers = header.integer(f"{architecture}.block_count")
    nextn = header.integer(f"{architecture}.nextn_predict_layers")
    kind = kind_of(
        architecture,
        general_type=header.text("general.type") or "model",
        causal=header.flag(f"{architecture}.attention.causal") is not False,
        has_trunk=not (nextn and layers is not None and nextn >= layers),
    )
    if kind in ("causal", "recurrent", "hybrid") and not tensors:
        kind = "vocabulary"
    state = state_of(kind, architecture)
    # The field stays where a file was made without the weights.
    first = f"blk.{(layers or 0) - (nextn or 0)}.nextn.eh_proj.weight"
    head_layers = nextn if nextn and any(tensor.name == first for tensor in tensors) else 0
    obstacle = obstacle_of(kind, architecture)
    if obstacle is None and not architecture:
        obstacle = "does not name its architecture; fetch a GGUF made by llama.cpp's converter"
    tokenizer = header.text("tokenizer.ggml.model") or "none"
    if obstacle is None:
        obstacle = vocabulary_flaw_of(tokens, tokenizer) or parameter_flaw_of(header, architecture)
        obstacle = obstacle or map_flaw_of(header)
    return FileReport(
        path=header.path,
        file_size=sum(shard.file_size for shard in shards),
        kind=kind,
        architecture=architecture,
        name=header.text("general.name"),
        quantization=_quantization(header.integer("general.file_type"), tensors),
        parameters=sum(tensor.num_elements for tensor in tensors),
        weights_bytes=sum(tensor.num_bytes for tensor in tensors),
        num_ctx_train=header.integer(f"{architecture}.context_length"),
        num_layers=layers,
        num_embd=header.integer(f"{architecture}.embedding_length"),
        num_heads=header.integer(f"{architecture}.attention.head_count"),
        num_kv_values=_num_kv_values(header, architecture, layers),
        state=state,
        state_bytes=num_state_bytes(header, architecture) if state != "none" else 0,
        num_head_layers=head_layers,
        has_head=runs_head(architecture, head_layers),
        sliding_window=header.integer(f"{architecture}.attention.sliding_window"),
        num_vocab=len(tokens),
        tokenizer=tokenizer,
        pre_tokenizer=header.text("tokenizer.ggml.pre"),
        bos_id=_special_id(header, "bos", len(tokens)),
        eos_id=_special_id(header, "eos", len(tokens)),
        eot_id=_special_id(header, "eot", len(tokens)),
        add_bos=header.flag("tokenizer.ggml.add_bos_token"),
        num_shards=len(shards),
        obstacle=obstacle,
        chat_template=header.text("tokenizer.chat_template"),
        tokens=tokens,
        token_types=types,
        trimmed=trimmed_vocabulary(header),
    )


def _vocabulary(header: GgufHeader) -> tuple[list[bytes], Sequence[int]]:
    tokens = header.fields.get("tokenizer.ggml.tokens")
    types = header.fields.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list):
        return [], []
    if not isinstance(types, np.ndarray) or len(types) != len(tokens):
        return tokens, [_NORMAL] * len(tokens)
    return tokens, types.tolist()


def _special_id(header: GgufHeader, name: str, num_vocab: int) -> int | None:
    # Some files write -1, as an unsigned number, for "none".
    token = header.integer(f"tokenizer.ggml.{name}_token_id")
    return token if token is not None and 0 <= token < num_vocab else None


def _num_kv_values(header: GgufHeader, architecture: str, layers: int | None) -> int | None:
    heads = header.integer(f"{architecture}.attention.head_count")
    embd = header.integer(f"{architecture}.embedding_length")
    if not layers or not heads or not embd:
        return None
    key = header.integer(f"{architecture}.attention.key_length") or embd // heads
    value = header.integer(f"{architecture}.attention.value_length") or embd // heads
    name = f"{architecture}.attention.head_count_kv"
    per_layer = header.fields.get(name)
    if isinstance(per_layer, np.ndarray):
        return int(per_layer.sum()) * (key + value)
    return layers * (header.integer(name) or heads) * (key + value)


def _quantization(file_type: int | None, tensors: Sequence[TensorInfo]) -> str:
    try:
        return (
            LlamaFileType(-1 if file_type is None else file_type)
            .name.removeprefix("MOSTLY_")
            .removeprefix("ALL_")
        )
    except ValueError:
        counts = Counter(tensor.type for tensor in tensors)
        return counts.most_common(1)[0][0] if counts else "none"
