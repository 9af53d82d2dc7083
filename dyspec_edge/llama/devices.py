"""Devices that llama.cpp can offload layers to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    """A device that llama.cpp can offload to; memory in bytes.

    Attributes:
        name, description: llama.cpp's; a remote device is described by its server, "HOST:PORT".
        is_remote: it is another machine's.
    """

    name: str
    description: str
    free_memory: int
    total_memory: int
    is_remote: bool = False


def gpu_devices(rpc: Sequence[str] = ()) -> tuple[Device, ...]:
    """GPUs that llama.cpp sees (ggml-backend.h: device type GPU or IGPU).

    Args:
        rpc: servers, "HOST:PORT" each, whose devices stand before those of this machine: between
            two layers on the same machine nothing goes over the network.
    """
    memory = ggml("backend_dev_memory")
    size_p = ctypes.POINTER(ctypes.c_size_t)
    memory.restype, memory.argtypes = None, [ctypes.c_void_p, size_p, size_p]
    devices = []
    for address, is_remote in _addresses(rpc):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(address, ctypes.byref(free), ctypes.byref(total))
        name, description = _text("name", address), _text("description", address)
        devices.append(Device(name, description, free.value, total.value, is_remote))
    return tuple(devices)


def chosen(rpc: Sequence[str]) -> Any:
    """The devices of `gpu_devices(rpc)` as llama_model_params.devices.

    None, llama.cpp's own choice, where it knows of no other machine's.
    """
    if not any(is_remote for _, is_remote in _addresses(None)):
        return None
    addresses = [address for address, _ in _addresses(rpc)]
    return (ctypes.c_void_p * (len(addresses) + 1))(*addresses, None)


def _addresses(rpc: Sequence[str] | None) -> list[tuple[int, bool]]:
    """Each with whether it is another machine's; of these only those of `rpc`, None being all."""
    count, get, kind = (ggml(f"backend_dev_{name}") for name in ("count", "get", "type"))
    count.restype = ctypes.c_size_t
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    kind.argtypes = [ctypes.c_void_p]
    here, remote = [], []
    for address in map(get, range(count())):
        if kind(address) not in (1, 2):
            continue
        if _registry_name(address) != "RPC":
            here.append((address, False))
        elif rpc is None or _text("description", address) in rpc:
            remote.append((address, True))
    return remote + here


def _registry_name(address: int) -> str:
    registry = ggml("backend_dev_backend_reg")
    registry.restype, registry.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    name = ggml("backend_reg_name")
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    return str(name(registry(address)).decode())


def _text(kind: str, address: int) -> str:
    function = ggml(f"backend_dev_{kind}")
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    return str(function(address).decode())
