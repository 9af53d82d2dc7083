"""Drafts with fewer tokens: the rows of the others are cut out of the file.

output.weight      151,936 rows  ->  32,768 rows, each as it was, whatever its type
token_embd.weight  the same
tokenizer.ggml.*   the tokens that are left, renumbered; merges that lead to them
dyspec_edge.*      the ids that they had (files/trimmed.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, GGUFWriter, ReaderField

from dyspec_edge.errors import ModelFileError
from dyspec_edge.files.model_file import FileReport
from dyspec_edge.files.trimmed import TARGET_IDS, TARGET_SIZE

ROWS = ("token_embd.weight", "output.weight", "output.bias", "per_layer_token_embd.weight")
"""Tensors that have a row, or a number, for each token."""

_MERGES = "tokenizer.ggml.merges"
_DROPPED = ("tokenizer.huggingface.json", "general.architecture")
"""It would contradict the rest; the writer writes it itself."""

Ids = npt.NDArray[np.int32]


def require_whole(report: FileReport) -> None:
    """Refuse files that cannot be trimmed.

    Raises:
        ModelFileError: trimmed already, or split into shards.
    """
    if report.trimmed is not None:
        raise ModelFileError(
            f"{report.path}: is trimmed already, to {report.num_vocab:,} of "
            f"{report.trimmed.size:,} tokens; trim the original"
        )
    if report.num_shards > 1:
        raise ModelFileError(
            f"{report.path}: is split into {report.num_shards} shards; join them with "
            "llama-gguf-split --merge first"
        )


def trim(report: FileReport, kept: Ids, out: Path, on_progress: Callable[[float], None]) -> None:
    """Write the draft with the tokens `kept` alone.

    Args:
        report: of the draft, as `require_whole` asks for.
        kept: int32[n], ascending.
        out: appears when it is complete; may not be the draft itself.
        on_progress: called with the fraction that is written.

    Raises:
        ModelFileError: `out` cannot be written.
    """
    if out.exists() and out.samefile(report.path):
        raise ModelFileError(f"{out}: is the draft itself; name another file with -o")
    reader = GGUFReader(report.path)
    part = out.with_name(out.name + ".part")
    try:
        writer = GGUFWriter(part, report.architecture)
        try:
            _add_fields(writer, reader, report, kept)
            _write_tensors(writer, reader, kept, on_progress)
        finally:
            writer.close()
        part.replace(out)
    except OSError as error:
        raise ModelFileError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _add_fields(writer: GGUFWriter, reader: GGUFReader, report: FileReport, kept: Ids) -> None:
    own = {int(token): place for place, token in enumerate(kept)}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in _DROPPED:
            continue
        value = _cut_field(field, report, kept, own)
        is_array = field.types[0] == GGUFValueType.ARRAY
        sub_type = field.types[-1] if is_array else None
        if value is not None and not (is_array and not value):
            writer.add_key_value(field.name, value, field.types[0], sub_type=sub_type)
    writer.add_array(TARGET_IDS, kept.tolist())
    writer.add_uint32(TARGET_SIZE, report.num_vocab)


def _cut_field(field: ReaderField, report: FileReport, kept: Ids, own: dict[int, int]) -> Any:
    name, value = field.name, field.contents()
    if name == f"{report.architecture}.vocab_size":
        return len(kept)
    if not name.startswith("tokenizer.ggml."):
        return value
    if name == _MERGES:
        return _cut_merges(value, {report.tokens[token] for token in kept})
    if name.endswith("_token_id"):
        return own.get(value, value)  # or one that stands for none
    if name == "tokenizer.ggml.suppress_tokens":
        return [own[token] for token in value if token in own]
    if isinstance(value, list) and len(value) == report.num_vocab:
        return [value[token] for token in kept]
    return value


def _cut_merges(merges: Sequence[str], texts: set[bytes]) -> list[str]:
    """Those that lead to a token: llama.cpp would drop what another one makes of a text."""
    return [merge for merge in merges if merge.replace(" ", "", 1).encode() in texts]


def _write_tensors(
    writer: GGUFWriter, reader: GGUFReader, kept: Ids, on_progress: Callable[[float], None]
) -> None:
    def data(tensor: Any) -> npt.NDArray[Any]:
        rows: npt.NDArray[Any] = tensor.data
        return rows[kept] if tensor.name in ROWS else rows

    for tensor in reader.tensors:
        rows = data(tensor)
        writer.add_tensor_info(tensor.name, rows.shape, rows.dtype, rows.nbytes, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, tensor in enumerate(reader.tensors):
        writer.write_tensor_data(data(tensor))
        on_progress((number + 1) / len(reader.tensors))
