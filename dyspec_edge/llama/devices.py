"""Devices that llama.cpp can offload layers to."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import llama_cpp

import dyspec_edge.llama.log  # noqa: F401  (silences the backends before they speak)
from dyspec_edge.llama.symbols import ggml


def supports_gpu() -> bool:
    """Whether this build of llama.cpp has a device to offload layers to."""
    return bool(llama_cpp.llama_supports_gpu_offload())


def loaded_commit() -> str:
    """The commit of the llama.cpp that is loaded, without its mark for a changed tree."""
    commit = ggml("commit")
    commit.restype = ctypes.c_char_p
    return str(commit().decode()).partition("-")[0]


def build_flags() -> dict[str, dict[str, str]]:
    """What the loaded llama.cpp was built with, by part: {"CPU": {"AVX2": "1"}}."""
    flags: dict[str, dict[str, str]] = {}
    part = ""
    for word in llama_cpp.llama_print_system_info().decode().split("|"):
        head, colon, rest = word.rpartition(":")
        part = head.strip() if colon else part
        name, equals, value = rest.partition("=")
        if equals:
            flags.setdefault(part, {})[name.strip()] = value.strip()
    return flags


@dataclass(frozen=True, slots=True)
class Device:
    """A device that llama.cpp can offload to; memory in bytes."""

    name: str
    description: str
    free_memory: int
    total_memory: int


def gpu_devices() -> tuple[Device, ...]:
    """GPUs that llama.cpp sees, in its own order (ggml-backend.h: device type GPU or IGPU)."""
    count, get, kind = (ggml(f"backend_dev_{name}") for name in ("count", "get", "type"))
    name, description = (ggml(f"backend_dev_{name}") for name in ("name", "description"))
    memory = ggml("backend_dev_memory")
    count.restype = ctypes.c_size_t
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    kind.argtypes = [ctypes.c_void_p]
    for text in (name, description):
        text.restype, text.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    size_p = ctypes.POINTER(ctypes.c_size_t)
    memory.restype, memory.argtypes = None, [ctypes.c_void_p, size_p, size_p]
    devices = []
    for device in map(get, range(count())):
        if kind(device) not in (1, 2):
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            Device(name(device).decode(), description(device).decode(), free.value, total.value)
        )
    return tuple(devices)
