"""The header of a GGUF file: its fields and its table of tensors, never the weights.

    "GGUF" | version | counts | fields: key, type, value | tensors: name, shape, type, offset
    | padding | weights

Own code because gguf.GGUFReader makes numpy objects for every token and merge: 3 to 18 seconds a
file with 49k to 262k tokens, where this reader takes a fraction of one.  It knows the format and
whether the file is whole; what the fields mean for a model is model_file.py's part.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from dyspec_edge.errors import ModelFileError

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING = 8
_ARRAY = 9
_U32 = _SCALARS[4]
_U64 = _SCALARS[10]

# Far more than any real file has: a damaged count is found before the reader loops over it.
_MAX_FIELDS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_ELEMENTS = 1 << 24

# Not used in this package, and half of all strings.
_SKIPPED = "tokenizer.ggml.merges"

_OTHER_FORMATS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the model; run `git lfs pull`"),
    (b"<!doctype", "is a web page, not a model; the download link was wrong or needed a login"),
    (b"<html", "is a web page, not a model; the download link was wrong or needed a login"),
    (b"tjgg", "is in GGML's old GGJT format; convert the original model to GGUF again"),
    (b"fmgg", "is in GGML's old GGMF format; convert the original model to GGUF again"),
    (b"lmgg", "is in the old GGML format; convert the original model to GGUF again"),
    (b"pk\x03\x04", "is a PyTorch or zip archive, not a GGUF file; fetch or convert to a GGUF"),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One line of the tensor table.

    `num_bytes` is 0 for a type that gguf does not know; `offset` counts from the file's start.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    num_elements: int
    num_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything before the weights of one file.

    Attributes:
        fields: key to value: int, float, bool, str, list of bytes, or a 1-d numpy array.
        missing_bytes: how much the file is shorter than its tensor table says.
    """

    path: Path
    version: int
    fields: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    file_size: int
    missing_bytes: int

    def text(self, key: str) -> str | None:
        """A text field; None if there is none or it is no text."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """A number field, of an array its largest; None if there is none or it is no number."""
        value = self.fields.get(key)
        if isinstance(value, np.ndarray) and value.size:
            value = value.max().item()
        return int(value) if isinstance(value, (int, float)) and abs(value) < 1 << 62 else None

    def flag(self, key: str) -> bool | None:
        """A true or false field; None if there is none or it is another kind."""
        value = self.fields.get(key)
        return value if isinstance(value, bool) else None


def read_header(path: Path) -> GgufHeader:
    """The header of one GGUF file of version 2 or 3.

    Raises:
        ModelFileError: missing, not a regular file, unreadable, another format, an unsupported
            version or byte order, or a header that is damaged or cut off.  A file whose weights
            are cut off is not refused here (see `GgufHeader.missing_bytes`).
    """
    _require_regular_file(path)
    try:
        with path.open("rb") as file:
            _require_gguf(path, file)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Reader(path, view).read()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _require_regular_file(path: Path) -> None:
    try:
        if path.is_file():
            return
        is_directory, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if is_directory:
        inside = sorted(entry.name for entry in path.glob("*.gguf"))
        remedy = f"for example {inside[0]}" if inside else "there is none in it"
        raise ModelFileError(f"{path}: is a directory; name the .gguf file in it ({remedy})")
    if exists:
        raise ModelFileError(f"{path}: is not a regular file; a model must be a .gguf file")
    raise ModelFileError(f"{path}: no such file; check the path")


def _require_gguf(path: Path, file: BinaryIO) -> None:
    start = file.read(64)
    if not start:
        raise ModelFileError(f"{path}: is empty; fetch it again")
    if start[:4] == b"GGUF":
        return
    for magic, reason in _OTHER_FORMATS:
        if start.lstrip().lower().startswith(magic):
            raise ModelFileError(f"{path}: {reason}")
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        raise ModelFileError(
            f"{path}: is a safetensors file, not a GGUF file; "
            "fetch a GGUF of this model, or convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    raise ModelFileError(
        f"{path}: is not a GGUF file: it begins with {start[:4]!r} where 'GGUF' should be"
    )


class _Reader:
    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self._path = path
        self._view = view
        self._size = len(view)
        self._at = 4

    def read(self) -> GgufHeader:
        try:
            version = self._version()
            num_tensors = self._count(_MAX_TENSORS, "tensors")
            num_fields = self._count(_MAX_FIELDS, "fields")
            fields = dict(self._field() for _ in range(num_fields))
            table = [self._tensor() for _ in range(num_tensors)]
        except (struct.error, OverflowError):
            raise ModelFileError(
                f"{self._path}: is truncated inside its header, at {self._size:,} bytes; "
                "fetch it again"
            ) from None
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"alignment {alignment!r}")
        start = -(-self._at // alignment) * alignment
        tensors = tuple(replace(tensor, offset=start + tensor.offset) for tensor in table)
        end = max((tensor.offset + tensor.num_bytes for tensor in tensors), default=0)
        return GgufHeader(
            path=self._path,
            version=version,
            fields=fields,
            tensors=tensors,
            file_size=self._size,
            missing_bytes=max(0, end - self._size),
        )

    def _version(self) -> int:
        version = int(self._scalar(_U32))
        if version and not version & 0xFFFF:
            raise ModelFileError(
                f"{self._path}: is a big-endian GGUF file; fetch a little-endian one"
            )
        if version not in (2, 3):
            raise ModelFileError(
                f"{self._path}: is GGUF version {version}, but versions 2 and 3 can be read; "
                "fetch a newer file of this model"
                if version < 2
                else f"{self._path}: is GGUF version {version}, newer than this program reads (3)"
            )
        return version

    def _damaged(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._path}: has a damaged header ({what} near byte {self._at:,}); fetch it again"
        )

    def _scalar(self, kind: struct.Struct) -> Any:
        (value,) = kind.unpack_from(self._view, self._at)
        self._at += kind.size
        return value

    def _count(self, most: int, what: str) -> int:
        count = int(self._scalar(_U64))
        if count > most:
            raise self._damaged(f"{count:,} {what}")
        return count

    def _bytes(self) -> bytes:
        size = self._scalar(_U64)
        end = self._at + size
        if end > self._size:
            raise struct.error
        data = self._view[self._at : end]
        self._at = end
        return data

    def _text(self) -> str:
        return self._bytes().decode("utf-8", "replace")

    def _field(self) -> tuple[str, Any]:
        key = self._text()
        kind = self._scalar(_U32)
        if kind == _STRING:
            return key, self._text()
        if kind == _ARRAY:
            return key, self._array(key)
        if kind not in _SCALARS:
            raise self._damaged(f"field {key[:60]!r} of type {kind}")
        return key, self._scalar(_SCALARS[kind])

    def _array(self, key: str) -> Any:
        kind = self._scalar(_U32)
        count = self._count(_MAX_ELEMENTS, f"elements in {key[:60]!r}")
        if kind == _STRING:
            return self._strings(count, keep=key != _SKIPPED)
        if kind not in _SCALARS:
            raise self._damaged(f"array {key[:60]!r} of type {kind}")
        scalar = _SCALARS[kind]
        data = self._view[self._at : self._at + count * scalar.size]
        if len(data) < count * scalar.size:
            raise struct.error
        self._at += len(data)
        return np.frombuffer(data, dtype=np.dtype(scalar.format))

    def _strings(self, count: int, *, keep: bool) -> list[bytes]:
        # The one hot loop of the module: local names make it three times as fast.
        view, at, read = self._view, self._at, _U64.unpack_from
        strings: list[bytes] = []
        add = strings.append
        for _ in range(count):
            start = at + 8
            at = start + read(view, at)[0]
            if keep:
                add(view[start:at])
        self._at = at
        if at > self._size:
            raise struct.error
        return strings

    def _tensor(self) -> TensorInfo:
        name = self._text()
        num_dims = self._scalar(_U32)
        if num_dims > 4:
            raise self._damaged(f"tensor {name[:60]!r} with {num_dims} dimensions")
        shape = tuple(int(self._scalar(_U64)) for _ in range(num_dims))
        kind, offset = self._scalar(_U32), self._scalar(_U64)
        num_elements = 1
        for size in shape:
            num_elements *= size
        try:
            known = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[known]
        except (ValueError, KeyError):
            return TensorInfo(name, shape, f"type {kind}", num_elements, 0, offset)
        num_bytes = num_elements // block * block_bytes
        return TensorInfo(name, shape, known.name, num_elements, num_bytes, offset)
