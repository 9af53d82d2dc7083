"""What dyspec-edge runs on, and what would make it faster here: what a bug report should carry.

Nothing is loaded but the libraries themselves, and where one cannot be, that is part of the answer.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import dyspec_edge
from dyspec_edge.errors import DyspecError
from dyspec_edge.files import stores
from dyspec_edge.load.machine import (
    available_memory,
    graphics_vendors,
    physical_cores,
    processor_name,
)

READY_WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
"""llama-cpp-python's own index; below it a folder for each kind of build."""

PACKAGES = ("llama-cpp-python", "numpy", "gguf", "huggingface_hub")
CACHES = ("models", "curves", "sequoia")

_BACKENDS = {"NVIDIA": ("CUDA", "cu124"), "Apple": ("METAL", "metal")}
_OTHER_BACKEND = ("VULKAN", "vulkan")


@dataclass(frozen=True, slots=True)
class Llama:
    """The build of llama.cpp that is loaded.

    Attributes:
        known: dyspec-edge has its structures; else candidates come from the host.
        flags: what it was built with, by part: {"CPU": {"AVX2": "1"}}.
        offloads: it has a part for GPUs.
        devices: GPUs that it sees; memory in bytes.
    """

    commit: str
    known: bool
    flags: dict[str, dict[str, str]]
    offloads: bool
    devices: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All of it.  `llama` and `rows` are None where `errors` says why.

    Attributes:
        versions: by package.
        machine: processor, cores that may be used and that there are, memory in bytes.
        graphics: makers of the graphics cards that the system shows.
        rows: the instruction set of the native part's row functions.
        library: the native part's file.
        caches: bytes by folder.
        advice: what would make it faster here, a line each.
    """

    versions: dict[str, str]
    machine: dict[str, Any]
    graphics: tuple[str, ...]
    llama: Llama | None
    rows: str | None
    library: str
    caches: dict[str, int]
    errors: tuple[str, ...]
    advice: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As one JSON document."""
        return asdict(self)


def diagnose() -> Diagnosis:
    """Look at everything; takes as long as loading llama.cpp's library."""
    errors = []
    llama = rows = None
    library = ""
    try:
        from dyspec_edge import native

        rows, library = native.simd, str(native.library_path)
    except DyspecError as error:
        errors.append(f"native part: {error}")
    else:
        try:
            llama = _llama()
        except Exception as error:  # whatever a broken build of another package raises
            errors.append(f"llama-cpp-python: {error}")
    machine = {
        "processor": processor_name(),
        "architecture": platform.machine(),
        "system": platform.platform(),
        "cores": physical_cores(),
        "cores_there": psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        "memory": int(psutil.virtual_memory().total),
        "memory_available": available_memory(),
    }
    graphics = graphics_vendors()
    return Diagnosis(
        versions=_versions(),
        machine=machine,
        graphics=graphics,
        llama=llama,
        rows=rows,
        library=library,
        caches={
            str(stores.cache_dir() / name): _size(stores.cache_dir() / name) for name in CACHES
        },
        errors=tuple(errors),
        advice=tuple(_advice(machine, graphics, llama, rows)),
    )


def _versions() -> dict[str, str]:
    found = {"dyspec-edge": dyspec_edge.__version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def _llama() -> Llama:
    from dyspec_edge import llama
    from dyspec_edge.llama import devices
    from dyspec_edge.llama.backend_sampler import KNOWN_COMMITS

    commit = devices.loaded_commit()
    return Llama(
        commit=commit,
        known=commit in KNOWN_COMMITS,
        flags=devices.build_flags(),
        offloads=devices.supports_gpu(),
        devices=tuple(asdict(device) for device in llama.gpu_devices()),
    )


def _size(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone since, or out of reach
                info = (Path(where) / name).lstat()
                total += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return total


def _advice(
    machine: dict[str, Any], graphics: tuple[str, ...], llama: Llama | None, rows: str | None
) -> Iterator[str]:
    if llama is not None and not llama.devices:
        for maker in graphics:
            backend, folder = _BACKENDS.get(maker, _OTHER_BACKEND)
            yield (
                f"a graphics card ({maker}) is here, but this build of llama.cpp cannot use it: "
                f'CMAKE_ARGS="-DGGML_{backend}=on" {_reinstall("--no-binary llama-cpp-python")}, '
                f"or a ready one: {_reinstall(f'--index-url {READY_WHEELS}/{folder}')}"
            )
    if llama is not None and rows is not None:
        built = llama.flags.get("CPU", {})
        for wanted, flag in (("avx2", "AVX2"), ("avx512", "AVX512")):
            if rows in ("avx512", wanted) and built and flag not in built:
                yield (
                    f"this processor has {flag}, but llama.cpp was built without it: "
                    f"{_reinstall('--no-binary llama-cpp-python')}"
                )
    if llama is not None and not llama.known:
        yield (
            f"llama.cpp {llama.commit} is not the one that dyspec-edge was written for: a draft's "
            "candidates are found on the host, also with a GPU; dyspec-edge's own version: "
            f"{_reinstall('--no-binary llama-cpp-python')}"
        )
    if machine["cores"] < machine["cores_there"]:
        yield (
            f"this process may use {machine['cores']} of {machine['cores_there']} cores (a "
            "container's quota, an affinity, or efficiency cores left alone)"
        )
    if "DYSPEC_SIMD" in os.environ:
        yield f"DYSPEC_SIMD={os.environ['DYSPEC_SIMD']} is set: rows of logits may take longer"


def _reinstall(options: str) -> str:
    requirement = next(
        (
            text.split(";")[0].strip()
            for text in importlib.metadata.requires("dyspec-edge") or ()
            if text.startswith("llama-cpp-python")
        ),
        "llama-cpp-python",
    )
    return f"pip install --force-reinstall --no-deps --no-cache-dir {options} {requirement}"
