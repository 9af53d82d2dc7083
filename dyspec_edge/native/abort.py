"""The flag that interrupts a pass."""

from __future__ import annotations

import ctypes
from ctypes import c_int32

from dyspec_edge.native.library import address_of, lib

abort_callback_address: int = address_of(lib.dyspec_abort)
"""Address of a ggml_abort_callback whose data is `AbortFlag.address`."""


class AbortFlag:
    """A flag that `abort_callback_address` reads; may be set from any thread or signal handler."""

    def __init__(self) -> None:
        self._flag = c_int32(0)

    @property
    def address(self) -> int:
        """Address of the int32; valid as long as this object lives."""
        return ctypes.addressof(self._flag)

    @property
    def is_set(self) -> bool:
        """Whether evaluation is to stop."""
        return self._flag.value != 0

    def set(self) -> None:
        """Stop the evaluation that runs now, and every later one until `clear`."""
        self._flag.value = 1

    def clear(self) -> None:
        """Let evaluations run again."""
        self._flag.value = 0
