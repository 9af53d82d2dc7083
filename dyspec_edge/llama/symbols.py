"""ggml's functions by name, whichever of its libraries exports them.

On Linux and macOS a library answers for those that it was linked to as well.  On Windows each has
only its own functions, and ggml's are spread over several files beside the one that
llama-cpp-python opens.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

from llama_cpp._ggml import libggml, libggml_base_path

SIBLINGS = ("ggml-base.dll", "ggml-cpu.dll", "libggml-base.dll", "libggml-cpu.dll")
"""Of ggml.dll, as Microsoft's and other compilers' builds name them."""


def ggml(name: str) -> Any:
    """The function `ggml_NAME` of the ggml that llama.cpp runs on.

    Raises:
        AttributeError: there is none.
    """
    for library in _libraries():
        function = getattr(library, f"ggml_{name}", None)
        if function is not None:
            return function
    raise AttributeError(f"this build of llama.cpp has no function ggml_{name}")


@functools.cache
def _libraries() -> tuple[Any, ...]:
    names = SIBLINGS if sys.platform == "win32" else ()
    beside = [Path(libggml_base_path) / name for name in names]
    return (libggml, *(ctypes.CDLL(str(path)) for path in beside if path.exists()))
