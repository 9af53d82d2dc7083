"""Devices of other machines: those of llama.cpp's `rpc-server`, where the build has its client.

llama.cpp ends the process where a server is not there, is of another version or goes away, so the
first two are looked at before it is asked, and the third is at least said in a sentence.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

from dyspec_edge.errors import DeviceError
from dyspec_edge.llama.symbols import ggml

PROTOCOL = (7, 0)
"""Of the pinned llama.cpp (RPC_PROTO_MAJOR_VERSION and MINOR in ggml-rpc.h)."""

TIMEOUT = 5.0
"""Seconds until a server must have answered."""

_HELLO = bytes([14]) + (24).to_bytes(8, "little") + bytes(24)
"""Command, size and body of ggml-rpc's first message; it is answered by 8 bytes and 28."""


def is_available() -> bool:
    """Whether this build of llama.cpp has the client."""
    return _registry() is not None


def connect(endpoint: str) -> None:
    """Make the devices of a server known to llama.cpp, as long as the process lives.

    Args:
        endpoint: "HOST:PORT".

    Raises:
        DeviceError: there is no client, no such server, one of another version, or a busy one.
    """
    registry = _registry()
    if registry is None:
        raise DeviceError(
            "this llama.cpp is built without RPC; in a checkout: "
            'CMAKE_ARGS="-DGGML_RPC=on" make install'
        )
    _require_server(endpoint)
    ggml("set_abort_callback")(_abort_callback)
    find = ggml("backend_reg_get_proc_address")
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(
        find(registry, b"ggml_backend_rpc_add_server")
    )
    found = add(endpoint.encode())
    if not found:
        raise DeviceError(f"the rpc-server at {endpoint} has no devices")
    register = ggml("backend_register")  # again is no harm
    register.restype, register.argtypes = None, [ctypes.c_void_p]
    register(found)


def _registry() -> int | None:
    by_name = ggml("backend_reg_by_name")
    by_name.restype, by_name.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    found: int | None = by_name(b"RPC")
    return found


def _require_server(endpoint: str) -> None:
    host, colon, port = endpoint.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise DeviceError(f"--rpc {endpoint}: a server is HOST:PORT, as 192.168.1.7:50052")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT) as server:
            server.sendall(_HELLO)
            answer = b""
            while len(answer) < 36:
                piece = server.recv(36 - len(answer))
                if not piece:
                    break
                answer += piece
    except TimeoutError:
        raise DeviceError(
            f"the rpc-server at {endpoint} does not answer; it serves one program at a time: "
            "end the other one, or start another server"
        ) from None
    except OSError as error:
        raise DeviceError(
            f"no rpc-server at {endpoint} ({error.strerror or error}); start it there: "
            f"ggml-rpc-server -H 0.0.0.0 -p {port}"
        ) from None
    if len(answer) < 36 or answer[:8] != (28).to_bytes(8, "little"):
        raise DeviceError(f"what listens at {endpoint} is no rpc-server of this llama.cpp")
    major, minor = answer[8], answer[9]
    if major != PROTOCOL[0] or minor > PROTOCOL[1]:
        ours = ".".join(map(str, PROTOCOL))
        raise DeviceError(
            f"the rpc-server at {endpoint} speaks version {major}.{minor} of the protocol, this "
            f"llama.cpp {ours}; build both from the same sources"
        )


def _say_what_ended(message: bytes) -> None:
    """llama.cpp is about to end the process: say in one line why."""
    lost = "an rpc-server went away, and a part of the model with it; start both programs again"
    is_lost = b"RPC" in message
    text = f"Error: {lost}" if is_lost else message.decode("utf-8", "replace")
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    if is_lost:
        os._exit(1)  # abort() would leave a core


_abort_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_say_what_ended)
