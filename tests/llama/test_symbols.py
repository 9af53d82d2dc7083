"""Which library a function of ggml is taken from, on which system."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dyspec_edge.llama import symbols


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    symbols._libraries.cache_clear()
    yield
    symbols._libraries.cache_clear()


def test_linux_and_macos_ask_one_library_for_all() -> None:
    for name in ("commit", "nelements", "backend_dev_count", "top_k"):
        assert ctypes.cast(symbols.ggml(name), ctypes.c_void_p).value
    with pytest.raises(AttributeError, match="no function ggml_nothing"):
        symbols.ggml("nothing")


@pytest.mark.parametrize("prefix", ["", "lib"])
def test_windows_asks_the_libraries_beside_it_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str
) -> None:
    (tmp_path / f"{prefix}ggml-base.dll").touch()
    (tmp_path / f"{prefix}ggml-cpu.dll").touch()
    exports = {
        str(tmp_path / f"{prefix}ggml-base.dll"): SimpleNamespace(ggml_commit="base"),
        str(tmp_path / f"{prefix}ggml-cpu.dll"): SimpleNamespace(ggml_cpu_has_avx2="cpu"),
    }
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", exports.__getitem__)
    monkeypatch.setattr(symbols, "libggml", SimpleNamespace(ggml_backend_dev_count="registry"))
    monkeypatch.setattr(symbols, "libggml_base_path", tmp_path)
    found = [symbols.ggml(name) for name in ("commit", "cpu_has_avx2", "backend_dev_count")]
    assert found == ["base", "cpu", "registry"]
    with pytest.raises(AttributeError, match="no function ggml_nothing"):
        symbols.ggml("nothing")


def test_an_abort_of_llama_cpp_starts_no_debugger() -> None:
    program = "import os, dyspec_edge.llama; print(os.environ['GGML_NO_BACKTRACE'])"
    env = {name: value for name, value in os.environ.items() if name != "GGML_NO_BACKTRACE"}
    found = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, check=True, text=True
    )
    assert found.stdout == "1\n"
