"""Bytes of files and pipes to text, with an error that names what is wrong and where."""

from __future__ import annotations

from dyspec_edge.errors import DyspecError


def decode(data: bytes, what: str) -> str:
    """UTF-8 to text.

    Raises:
        DyspecError: it is not UTF-8; names the first bad byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = data[error.start]
        raise DyspecError(
            f"{what} is not UTF-8: byte 0x{bad:02x} at offset {error.start}; convert it first"
        ) from None
