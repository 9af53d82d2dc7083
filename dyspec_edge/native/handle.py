"""Owners of objects that the native library has made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol


class Closable(Protocol):
    """What can be closed any number of times."""

    def close(self) -> None:
        """Free what it owns."""


class Used:
    """What native objects may point to: closing it closes them first."""

    def __init__(self) -> None:
        self._users = weakref.WeakSet[Closable]()

    def keep_for(self, user: Closable) -> None:
        """Note that `user`, which holds this object, points to it."""
        self._users.add(user)

    def close_users(self) -> None:
        """Close whatever still points to this object."""
        for user in list(self._users):
            user.close()


class Handle(Used):
    """Owns one native object and frees it once: by `close`, or when nobody holds the handle.

    Args:
        address: what the library's `_create` returned.
        free: its `_free`.
        uses: what the object points to.  They are kept, and closing one of them closes this first.

    Raises:
        MemoryError: the library could not make the object.
    """

    def __init__(
        self, address: int | None, free: Callable[[int], object], *, uses: Sequence[Used] = ()
    ) -> None:
        if not address:
            raise MemoryError("the native library could not make what was asked for")
        super().__init__()
        self._address = address
        self._uses = list[Used]()
        self._free = weakref.finalize(self, free, address)
        for used in uses:
            self.use(used)

    def use(self, used: Used) -> None:
        """Note that the object points to `used` from now on."""
        self._uses.append(used)
        used.keep_for(self)

    @property
    def is_open(self) -> bool:
        """Whether the object is there."""
        return self._address != 0

    @property
    def address(self) -> int:
        """Of the object, for functions of the library.

        Raises:
            ValueError: it is closed, or something that it points to is.
        """
        if not self._address:
            raise ValueError("a native object is used after it, or what it uses, was closed")
        return self._address

    def close(self) -> None:
        """Free the object, after those that point to it.  Idempotent."""
        if self._address:
            self.close_users()
            self._address = 0
            self._free()
