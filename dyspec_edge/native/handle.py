"""Owners of objects that the native library has made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol


class Openable(Protocol):
    """What a native object may point to."""

    @property
    def is_open(self) -> bool:
        """Whether it is still there."""
        ...


class Handle:
    """Owns one native object and frees it once: by `close`, or when nobody holds the handle.

    Args:
        address: what the library's `_create` returned.
        free: its `_free`.
        uses: what the object points to: other handles, or owners of the same kind.  They are kept,
            and none of them may be closed while this one is still used.

    Raises:
        MemoryError: the library could not make the object.
    """

    def __init__(
        self, address: int | None, free: Callable[[int], object], *, uses: Sequence[Openable] = ()
    ) -> None:
        if not address:
            raise MemoryError("the native library could not make what was asked for")
        self._address = address
        self._uses = tuple(uses)
        self._free = weakref.finalize(self, free, address)

    @property
    def is_open(self) -> bool:
        """Whether this object and those that it uses are there."""
        for used in self._uses:
            if not used.is_open:
                return False
        return self._address != 0

    @property
    def address(self) -> int:
        """Of the object, for functions of the library.

        Raises:
            ValueError: it is closed, or something that it points to is.
        """
        if not self.is_open:
            raise ValueError("a native object is used after it, or what it uses, was closed")
        return self._address

    def close(self) -> None:
        """Free the object.  Idempotent."""
        self._address = 0
        self._free()
