"""What is found on this machine, and what is advised on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dyspec_edge.llama import devices
from dyspec_edge.load import diagnosis
from dyspec_edge.load.diagnosis import Llama, diagnose

ALL = {"AVX2": "1", "AVX512": "1"}
GPU = {"name": "CUDA0", "description": "RTX", "free_memory": 1, "total_memory": 2}


def llama(**others: Any) -> Llama:
    built: dict[str, Any] = {
        "commit": "0c1e570",
        "known": True,
        "flags": {"CPU": ALL},
        "offloads": False,
        "devices": (),
    }
    return Llama(**{**built, **others})


def advice(
    *,
    built: Llama | None = None,
    rows: str | None = "avx512",
    graphics: tuple[str, ...] = (),
    cores: int = 8,
) -> list[str]:
    machine = {"cores": cores, "cores_there": 8}
    return list(diagnosis._advice(machine, graphics, built or llama(), rows))


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYSPEC_SIMD", raising=False)


def test_where_all_is_in_use_nothing_is_advised() -> None:
    assert advice() == []
    assert advice(rows="avx2", built=llama(flags={"CPU": {"AVX2": "1"}})) == []
    assert advice(rows="neon", built=llama(flags={"CPU": {"NEON": "1"}})) == []
    assert advice(graphics=("NVIDIA",), built=llama(devices=(GPU,))) == []


@pytest.mark.parametrize(
    ("maker", "backend", "folder"),
    [
        ("NVIDIA", "CUDA", "cu124"),
        ("AMD", "VULKAN", "vulkan"),
        ("Intel", "VULKAN", "vulkan"),
        ("Apple", "METAL", "metal"),
    ],
)
def test_a_card_that_the_build_cannot_use(maker: str, backend: str, folder: str) -> None:
    (line,) = advice(graphics=(maker,))
    assert f"graphics card ({maker})" in line
    assert f'CMAKE_ARGS="-DGGML_{backend}=on" pip install' in line
    assert f"{diagnosis.READY_WHEELS}/{folder} llama-cpp-python==0." in line


@pytest.mark.parametrize(
    ("rows", "flags", "missing"),
    [
        ("avx2", {"SSE3": "1"}, ["AVX2"]),
        ("avx512", {"AVX2": "1"}, ["AVX512"]),
        ("avx512", {"SSE3": "1"}, ["AVX2", "AVX512"]),
        ("baseline", {"SSE3": "1"}, []),
        ("avx2", {}, []),
    ],
)
def test_a_build_without_what_the_processor_has(
    rows: str, flags: dict[str, str], missing: list[str]
) -> None:
    lines = advice(rows=rows, built=llama(flags={"CPU": flags} if flags else {}))
    assert [line.split()[3].rstrip(",") for line in lines] == missing


def test_another_commit_a_quota_and_a_forced_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = advice(built=llama(commit="1234567", known=False))
    assert line.startswith("llama.cpp 1234567 is not the one")
    (line,) = advice(cores=2)
    assert line.startswith("this process may use 2 of 8 cores")
    monkeypatch.setenv("DYSPEC_SIMD", "baseline")
    (line,) = advice(rows="baseline")
    assert line.startswith("DYSPEC_SIMD=baseline is set")


def test_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path))
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "one.json").write_text("12345")
    found = diagnose()
    assert found.errors == ()
    assert found.llama is not None
    assert found.llama.known
    assert found.rows in ("avx512", "avx2", "neon", "baseline")
    assert Path(found.library).exists()
    assert found.caches[str(tmp_path / "curves")] == 5
    assert found.caches[str(tmp_path / "models")] == 0
    assert found.versions["Python"]
    with monkeypatch.context() as patch:
        patch.setenv("DYSPEC_EDGE_CACHE", "a" * 5000)
        assert set(diagnose().caches.values()) == {0}
    jsonschema.validate(
        json.loads(json.dumps(found.as_dict())),
        {"type": "object", "required": ["versions", "machine", "llama", "rows", "advice"]},
    )


def test_a_part_that_cannot_be_loaded_is_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> Llama:
        raise RuntimeError("no such symbol")

    monkeypatch.setattr(diagnosis, "_llama", broken)
    found = diagnose()
    assert found.llama is None
    assert found.errors == ("llama-cpp-python: no such symbol",)


def test_build_flags_are_read_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"CUDA : ARCHS = 500,890 | USE_GRAPHS = 1 | CPU : SSE3 = 1 | AVX2 = 1 | "
    monkeypatch.setattr("llama_cpp.llama_print_system_info", lambda: text)
    assert devices.build_flags() == {
        "CUDA": {"ARCHS": "500,890", "USE_GRAPHS": "1"},
        "CPU": {"SSE3": "1", "AVX2": "1"},
    }
