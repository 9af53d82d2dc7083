"""llama.cpp's own programs: built by build.sh, for the same processor as llama-cpp-python."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import llama_cpp

from dyspec_edge.errors import DyspecError
from dyspec_edge.files.stores import cache_dir

SIMPLE, SPECULATIVE, SERVER = PROGRAMS = (
    "llama-speculative-simple",
    "llama-speculative",
    "llama-server",
)
PACKAGE = "llama-cpp-python"
VERSION = importlib.metadata.version(PACKAGE)
DEFAULT_BUILD = cache_dir() / "peers" / VERSION

_SCRIPT = Path(__file__).with_name("build.sh")
_SYSTEM_INFO = re.compile(r"system_info: n_threads = .*? / \d+ \| (.*)")


def programs(build: Path, source: Path | None) -> dict[str, Path]:
    """The programs by name; what is missing is built, which takes many minutes.

    Args:
        build: CMake's directory; the programs lie in its bin/.
        source: the unpacked source package, or None to have pip download it into `build`.

    Raises:
        DyspecError: the package cannot be had, is of another version or does not compile.
    """
    found = {name: build / "bin" / name for name in PROGRAMS}
    if not all(path.exists() for path in found.values()):
        words = [sys.executable, str(build), *([str(source)] if source is not None else [])]
        # All output goes where progress does.
        done = subprocess.run(["sh", str(_SCRIPT), *words], stdout=sys.stderr, check=False)
        if done.returncode:
            raise DyspecError("llama.cpp's programs could not be built; the lines above say why")
    return found


def kernels(server: Path) -> str:
    """The processor features that the programs were built for.

    Raises:
        DyspecError: the installed llama-cpp-python was built for others.
    """
    ours = llama_cpp.llama_print_system_info().decode().strip()
    # It tells before it looks for the model.
    command = [str(server), "-lv", "4", "-m", "no-such-model.gguf", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = _SYSTEM_INFO.search(done.stderr)
    theirs = match[1].strip() if match else "nothing"
    if theirs != ours:
        raise DyspecError(
            f"{server} was built for {theirs}, {PACKAGE} for {ours}; delete its directory and "
            "build again with the CMAKE_ARGS, CFLAGS and CXXFLAGS of the installation"
        )
    return theirs
