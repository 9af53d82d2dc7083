"""Batch rows through pointers, the abort flag, and the library's own door."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from dyspec_edge import native
from dyspec_edge.native import library


def ids(batch: native.Batch, row: int) -> list[int]:
    """What llama.cpp would read there."""
    pointer = ctypes.cast(int(batch.seq_id[row]), ctypes.POINTER(ctypes.c_int32))
    return pointer[: int(batch.num_seq_id[row])]


def test_rows_are_written_where_they_belong() -> None:
    batch = native.Batch(6)
    batch.add([10, 11], 20, (0, 1, 2), output=False)
    batch.add([12], 22, output=True)
    assert batch.size == 3
    assert batch.token.tolist() == [10, 11, 12, 0, 0, 0]
    assert batch.pos.tolist() == [20, 21, 22, 0, 0, 0]
    assert batch.output.tolist() == [0, 0, 1, 0, 0, 0]
    assert [ids(batch, row) for row in range(3)] == [[0, 1, 2], [0, 1, 2], [0]]
    batch.clear()
    batch.add([], 0, output=True)
    assert batch.size == 0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (library.BatchStruct, llama_cpp.llama_batch),
        (library.CandidatesStruct, llama_cpp.llama_token_data_array),
    ],
)
def test_structs_lie_as_llama_cpps_do(ours: Any, theirs: Any) -> None:
    def layout(struct: Any) -> list[tuple[int, int]]:
        fields = [getattr(struct, name) for name, *_ in struct._fields_]
        return [(field.offset, field.size) for field in fields]

    assert layout(ours) == layout(theirs)
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)


def test_rows_that_do_not_fit() -> None:
    batch = native.Batch(3)
    batch.add([1, 2], 0, output=True)
    with pytest.raises(ValueError, match="2 and 2 rows do not fit into 3"):
        batch.add([3, 4], 2, output=True)
    assert batch.size == 2


@pytest.mark.parametrize("sequences", [[], [-1], [0, 256]])
def test_ids_that_do_not_exist(sequences: list[int]) -> None:
    with pytest.raises(ValueError, match=r"at least one from 0\.\.255"):
        native.Batch(3).add([1], 0, sequences, output=True)


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
    header = (Path(__file__).parents[2] / "native/include/dyspec.h").read_text("utf-8")
    version = re.search(r"#define DYSPEC_ABI_VERSION (\d+)", header)
    assert version is not None
    assert int(version[1]) == library.ABI_VERSION
    functions = re.findall(r"DYSPEC_API\s+[\w* ]+?\*?(dyspec_\w+)\(([^)]*)\)", header)
    counts = {name: args.count(",") + (args != "void") for name, args in functions}
    assert counts == {name: len(args) for name, (_, args) in library.SIGNATURES.items()}
    for struct, copy in (
        ("tree", library.TreeStruct),
        ("candidates", library.CandidatesStruct),
        ("sampler", library.SamplerStruct),
        ("batch", library.BatchStruct),
        ("llama", library.LlamaStruct),
        ("cache", library.CacheStruct),
    ):
        body = re.search(rf"typedef struct dyspec_{struct} {{(.*?)}}", header, re.DOTALL)
        assert body is not None
        plain = re.sub(r"//.*", "", body[1])
        names = re.findall(r"(\w+)(?:\[\d+\]|\)\([^;]*\))?;", plain)
        assert names == [field[0] for field in copy._fields_]
