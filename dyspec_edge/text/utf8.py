"""UTF-8 to text: a whole file at once, or a stream of bytes piece by piece."""

from __future__ import annotations

import codecs
from typing import IO

from dyspec_edge.errors import DyspecError

MAX_BYTES = 64 << 20
"""Of a text that is read at once: what has no end must not fill the memory."""


def decode(data: bytes, what: str) -> str:
    """The text of a whole file or line; a byte order mark at its start is no part of it.

    Args:
        what: whose bytes they are, as the error names it.

    Raises:
        DyspecError: it is not UTF-8; names the first bad byte.
    """
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        bad = data[error.start]
        raise DyspecError(
            f"{what} is not UTF-8: byte 0x{bad:02x} at offset {error.start}; convert it first"
        ) from None


def read(file: IO[bytes], what: str) -> str:
    """The rest of a file or pipe, as `decode` gives it.

    Raises:
        DyspecError: it is not UTF-8, or has no end.
    """
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DyspecError(
            f"{what} is longer than {MAX_BYTES >> 20} MiB; no context holds that much"
        )
    return decode(data, what)


class Utf8Stream:
    """Bytes in, whole characters out.

    A character split over pieces is held until its last byte is there.  A byte that can no longer
    become part of a character turns into U+FFFD, as `bytes.decode("utf-8", "replace")` would do.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """The characters that `data` completes."""
        return self._decoder.decode(data)

    @property
    def is_holding(self) -> bool:
        """Whether bytes are held back that begin a character."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """The end of the text: U+FFFD for an incomplete character, else "".  Starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
