"""The library's file on each system; addresses of arrays, none of which it would read wrongly."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dyspec_edge.native.library import file_name, pointer


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        ("linux", "libdyspec.so"),
        ("freebsd14", "libdyspec.so"),
        ("darwin", "libdyspec.dylib"),
        ("win32", "dyspec.dll"),
    ],
)
def test_each_system_has_its_own_name_for_the_library(platform: str, name: str) -> None:
    assert file_name(platform) == name


@pytest.mark.parametrize(
    ("library", "words"), [("nothing.so", "is missing"), ("py.typed", "cannot be used")]
)
def test_a_library_that_cannot_be_had_is_one_line(library: str, words: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import dyspec_edge.native"],
        env={**os.environ, "DYSPEC_LIBRARY": library},
        capture_output=True,
        text=True,
    )
    last = run.stderr.strip().splitlines()[-1]
    assert words in last
    assert "in a checkout: `make install`" in last


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
