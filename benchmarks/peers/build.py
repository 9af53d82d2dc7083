"""llama.cpp's own programs, built from the package that llama-cpp-python itself is built from.

The build is the one that pip does, with the programs added: the same sources, CMAKE_ARGS, compiler
and flags.  That the processor's instructions are used alike is checked in the end.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Sequence
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

_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAVA_BUILD=OFF",  # llama-server brings that library along
    "-DLLAMA_BUILD_EXAMPLES=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # would be downloaded
)
_AMX_FLAGS = Path(__file__).parents[2] / "native" / "amx_flags.sh"
_SYSTEM_INFO = re.compile(r"system_info: n_threads = .*? / \d+ \| (.*)")


def programs(build: Path, source: Path | None, num_jobs: int) -> dict[str, Path]:
    """The programs by name; what is missing is built, which takes many minutes.

    Args:
        build: CMake's directory; the programs lie in its bin/.
        source: the unpacked source package, or None to have pip download it into `build`.
        num_jobs: compilers at a time.

    Raises:
        DyspecError: the package cannot be had or is of another version, the build fails, or its
            kernels are not those of the installed llama-cpp-python.
    """
    found = {name: build / "bin" / name for name in PROGRAMS}
    if not all(path.exists() for path in found.values()):
        build.mkdir(parents=True, exist_ok=True)
        _build(build, source or _download(build), num_jobs)
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


def _download(build: Path) -> Path:
    """The source package, unpacked."""
    directory = build / "source"
    # Its own requirements are not wanted, but pip asks the package for them.
    command = [sys.executable, "-m", "pip", "download", f"{PACKAGE}=={VERSION}", "--no-deps"]
    _run([*command, "--no-binary", PACKAGE, "--dest", str(directory)], "pip cannot fetch it")
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


def _build(build: Path, source: Path, num_jobs: int) -> None:
    info = source / "PKG-INFO"
    if not info.exists() or f"Version: {VERSION}\n" not in info.read_text(encoding="utf-8"):
        raise DyspecError(f"{source} is not the unpacked source package of {PACKAGE} {VERSION}")
    added = subprocess.run(["sh", _AMX_FLAGS], capture_output=True, text=True, check=True).stdout
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        **{name: f"{os.environ.get(name, '')} {added}".strip() for name in ("CFLAGS", "CXXFLAGS")},
    }
    arguments = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    configure = ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *_OPTIONS]
    _run([*configure, *arguments], "cmake cannot configure it", environment)
    compile_all = ["cmake", "--build", str(build), "-j", str(num_jobs), "--target", *PROGRAMS]
    _run(compile_all, "it does not compile", environment)


def _run(command: Sequence[str], failure: str, environment: dict[str, str] | None = None) -> None:
    """Run with all output on stderr, where progress goes."""
    try:
        subprocess.run(command, stdout=sys.stderr, env=environment, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DyspecError(f"llama.cpp's programs: {failure}: {error}") from error
