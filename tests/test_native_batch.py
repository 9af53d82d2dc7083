"""Batch rows through pointers, the abort flag, and the library's own door."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

from dyspec_edge import native
from dyspec_edge.native import library


class Batch:
    """The arrays of a llama_batch."""

    def __init__(self, capacity: int) -> None:
        self.token = np.full(capacity, -7, np.int32)
        self.pos = np.full(capacity, -7, np.int32)
        self.n_seq_id = np.full(capacity, -7, np.int32)
        self.seq_id = np.zeros(capacity, np.uint64)
        self.logits = np.full(capacity, -7, np.int8)

    def fill(
        self, n0: int, sets: list[list[int]], output: bool, num_seq: int = 256
    ) -> tuple[int, object]:
        n = len(sets)
        offsets = np.cumsum([0, *map(len, sets)]).astype(np.int32)
        ids = np.array([i for members in sets for i in members], np.int32)
        tokens, positions = np.arange(n, dtype=np.int32) + 10, np.arange(n, dtype=np.int32) + 20
        filled = native.fill_batch(
            self.token,
            self.pos,
            self.n_seq_id,
            self.seq_id,
            self.logits,
            n0,
            tokens,
            positions,
            offsets,
            ids,
            output,
            num_seq,
        )
        return filled, ids

    def ids(self, row: int) -> list[int]:
        """What llama.cpp would read there."""
        pointer = ctypes.cast(int(self.seq_id[row]), ctypes.POINTER(ctypes.c_int32))
        return pointer[: int(self.n_seq_id[row])]


def test_rows_are_written_where_they_belong() -> None:
    batch = Batch(6)
    first, keep_first = batch.fill(0, [[0, 1, 2]], output=False)
    second, keep_second = batch.fill(first, [[0, 1], [2], [1]], output=True)
    assert (first, second) == (1, 4)
    assert batch.token.tolist() == [10, 10, 11, 12, -7, -7]
    assert batch.pos.tolist() == [20, 20, 21, 22, -7, -7]
    assert batch.n_seq_id.tolist() == [3, 2, 1, 1, -7, -7]
    assert batch.logits.tolist() == [0, 1, 1, 1, -7, -7]
    assert [batch.ids(row) for row in range(4)] == [[0, 1, 2], [0, 1], [2], [1]]
    assert batch.seq_id[4:].tolist() == [0, 0]
    del keep_first, keep_second


def test_no_rows() -> None:
    assert Batch(2).fill(2, [], output=True)[0] == 2


@pytest.mark.parametrize("n0", [-1, 2, 3])
def test_rows_that_do_not_fit(n0: int) -> None:
    with pytest.raises(ValueError, match="capacity 3"):
        Batch(3).fill(n0, [[0], [0]], output=True)


def test_a_row_without_ids() -> None:
    with pytest.raises(ValueError, match="no ids"):
        Batch(3).fill(0, [[0], []], output=True)


@pytest.mark.parametrize("seq", [-1, 4, 1000])
def test_an_id_that_does_not_exist(seq: int) -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.3"):
        Batch(3).fill(0, [[0, seq]], output=True, num_seq=4)


def test_abort_flag() -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(native.abort_callback_address)
    flag, other = native.AbortFlag(), native.AbortFlag()
    seen = []
    for change in (flag.clear, flag.set, flag.set, flag.clear):
        change()
        seen.append(callback(flag.address))
        assert flag.is_set == seen[-1]
        assert not callback(other.address)
    assert seen == [False, True, True, False]


def test_the_header_and_its_copy_for_ctypes_agree() -> None:
    header = (Path(__file__).parents[1] / "native/include/dyspec.h").read_text("utf-8")
    version = re.search(r"#define DYSPEC_ABI_VERSION (\d+)", header)
    assert version is not None
    assert int(version[1]) == library.ABI_VERSION
    functions = re.findall(r"DYSPEC_API\s+[\w* ]+?\*?(dyspec_\w+)\(([^)]*)\)", header)
    counts = {name: args.count(",") + (args != "void") for name, args in functions}
    assert counts == {name: len(args) for name, (_, args) in library.SIGNATURES.items()}
    for struct, copy in (
        ("expansion", library.ExpansionStruct),
        ("batch", library.BatchStruct),
    ):
        body = re.search(rf"typedef struct dyspec_{struct} {{(.*?)}}", header, re.DOTALL)
        assert body is not None
        plain = re.sub(r"//.*", "", body[1])
        assert re.findall(r"(\w+);", plain) == [field[0] for field in copy._fields_]
