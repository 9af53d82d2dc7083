"""The callback that fills in nodes' candidates while native code grows a tree."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from dyspec_edge.native.library import CALLER_FAILED, Int32s, address_of

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)


class Proposer:
    """Fills in the candidates of nodes while native code grows a tree.

    Args:
        function: address of a dyspec_proposer.
        data: its first argument.
        check: called with the code that growing ended with; raises what a negative one means.
    """

    def __init__(self, function: int, data: int, check: Callable[[int], None]) -> None:
        self.function, self.data, self.check = function, data, check
        self._callback: object = None  # lives as long as this object

    @classmethod
    def calling(cls, propose: Callable[[Int32s], None]) -> Proposer:
        """One that calls back into Python: `propose` gets int32[n] of nodes."""
        failures: list[BaseException] = []

        def function(_data: object, nodes: int, n: int) -> int:
            try:
                propose(np.ctypeslib.as_array((ctypes.c_int32 * n).from_address(nodes)).copy())
            except BaseException as failure:  # goes on where native code has returned
                failures.append(failure)
                return CALLER_FAILED
            return 0

        def check(code: int) -> None:
            if failures:
                raise failures.pop()
            if code < 0:
                raise ValueError("the tree cannot grow as it is")

        callback = _FUNCTION(function)
        made = cls(address_of(callback), 0, check)
        made._callback = callback
        return made
