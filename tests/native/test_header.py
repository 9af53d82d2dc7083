"""The header against its copy for ctypes and against llama.cpp; the abort flag."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from dyspec_edge import native
from dyspec_edge.native import lib, library


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lib.dyspec_batch_layout, llama_cpp.llama_batch),
        (lib.dyspec_candidates_layout, llama_cpp.llama_token_data_array),
        (lib.dyspec_candidate_layout, llama_cpp.llama_token_data),
    ],
)
def test_structs_lie_as_llama_cpps_do(ours: Any, theirs: Any) -> None:
    found = np.zeros(1 + len(theirs._fields_), np.int32)
    assert ours(found.ctypes.data, 99) == len(found)
    offsets = [getattr(theirs, name).offset for name, *_ in theirs._fields_]
    assert found.tolist() == [ctypes.sizeof(theirs), *offsets]


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
    functions = re.findall(r"DYSPEC_API\s+[\w*\s]+?\*?(dyspec_\w+)\(([^)]*)\)", header)
    counts = {name: args.count(",") + (args != "void") for name, args in functions}
    assert counts == {name: len(args) for name, (_, args) in library.SIGNATURES.items()}
    for struct, names in (
        ("tree", [field[0] for field in library.TreeStruct._fields_]),
        ("backend_functions", [*library.BACKEND_FUNCTIONS]),
        ("llama", [name.removeprefix("memory_") for name in library.LLAMA_FUNCTIONS]),
        (
            "grammar_functions",
            [re.sub("^(sampler|vocab)_", "", name) for name in library.GRAMMAR_FUNCTIONS],
        ),
    ):
        body = re.search(rf"typedef struct dyspec_{struct} {{(.*?)}} dyspec_", header, re.DOTALL)
        assert body is not None
        plain = re.sub(r"//.*", "", body[1])
        assert re.findall(r"(\w+)(?:\[\d+\]|\)\([^;]*\))?;", plain) == names


def test_a_warning_of_a_newer_compiler_stops_nobodys_installation() -> None:
    root = Path(__file__).parents[2]
    options = (root / "CMakeLists.txt").read_text(encoding="utf-8")
    assert re.search(r"option\(DYSPEC_WERROR [^)]* OFF\)", options)
    flags = (root / "native" / "CMakeLists.txt").read_text(encoding="utf-8")
    assert flags.count("-Werror") == flags.count("$<$<BOOL:${DYSPEC_WERROR}>:-Werror>")
    assert "DYSPEC_WERROR" not in (root / "pyproject.toml").read_text(encoding="utf-8")
