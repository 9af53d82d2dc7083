"""Addresses of arrays for native code: nothing that it would read wrongly gets through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dyspec_edge.native.library import pointer


def test_an_array_of_the_right_kind_is_pointed_to() -> None:
    array = np.arange(6, dtype=np.int32)
    assert pointer(array, np.int32, 6) == array.ctypes.data
    assert pointer(array[2:], np.int32, 4) == array.ctypes.data + 8
    assert pointer(array.reshape(2, 3), np.int32, 6) == array.ctypes.data


def test_read_only_and_empty_arrays_are_too() -> None:
    array = np.arange(6, dtype=np.int32)
    array.flags.writeable = False
    assert pointer(array, np.int32, 6) == array.ctypes.data
    empty = np.zeros(0, np.int32)
    assert pointer(empty, np.int32, 0) == 0


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(6, np.int64),
        np.zeros(6, np.float32),
        np.zeros(6, ">i4"),
        np.zeros(12, np.int32)[::2],
        np.zeros((3, 2), np.int32).T,
        np.zeros(5, np.int32),
    ],
    ids=["int64", "float32", "big-endian", "every other", "turned", "short"],
)
def test_anything_else_is_refused(array: Any) -> None:
    with pytest.raises(TypeError, match=r"int32\[6\] in one piece is wanted"):
        pointer(array, np.int32, 6)
