"""Devices that llama.cpp can offload layers to."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import llama_cpp
from llama_cpp._ggml import libggml

import dyspec_edge.llama.log  # noqa: F401  (silences the backends before they speak)


def supports_gpu() -> bool:
    """Whether this build of llama.cpp has a device to offload layers to."""
    return bool(llama_cpp.llama_supports_gpu_offload())


def loaded_commit() -> str:
    """The commit of the llama.cpp that is loaded, without its mark for a changed tree."""
    libggml.ggml_commit.restype = ctypes.c_char_p
    return str(libggml.ggml_commit().decode()).partition("-")[0]


@dataclass(frozen=True, slots=True)
class Device:
    """A device that llama.cpp can offload to; memory in bytes."""

    name: str
    description: str
    free_memory: int
    total_memory: int


def gpu_devices() -> tuple[Device, ...]:
    """GPUs that llama.cpp sees, in its own order (ggml-backend.h: device type GPU or IGPU)."""
    libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for name in ("name", "description"):
        getter = getattr(libggml, f"ggml_backend_dev_{name}")
        getter.restype, getter.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    libggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    size_p = ctypes.POINTER(ctypes.c_size_t)
    libggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_p, size_p]
    devices = []
    for i in range(libggml.ggml_backend_dev_count()):
        device = libggml.ggml_backend_dev_get(i)
        if libggml.ggml_backend_dev_type(device) not in (1, 2):
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        libggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            Device(
                libggml.ggml_backend_dev_name(device).decode(),
                libggml.ggml_backend_dev_description(device).decode(),
                free.value,
                total.value,
            )
        )
    return tuple(devices)
