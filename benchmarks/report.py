"""What a benchmark prints: a Markdown table with its circumstances, then one JSON document."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from llama_cpp import _ggml

import dyspec_edge
from dyspec_edge import native


def circumstances(models: Sequence[Path], num_threads: int) -> dict[str, Any]:
    """Machine, versions, model hashes, commit and command."""
    return {
        "machine": f"{_cpu_name()}, {psutil.cpu_count(logical=False)} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()}",
        "threads": num_threads,
        "versions": f"dyspec-edge {dyspec_edge.__version__}, llama-cpp-python "
        f"{importlib.metadata.version('llama-cpp-python')}, llama.cpp {_llama_commit()}, "
        f"rows {native.simd}, Python {platform.python_version()}",
        "models": {path.name: sha256(path) for path in dict.fromkeys(models)},
        "commit": _git_commit(),
        "command": _command(),
    }


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table."""
    print(f"\n**{title}**\n")
    print("| " + " | ".join(header) + " |")
    print("| " + " | ".join("---" for _ in header) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def finish(where: dict[str, Any], document: dict[str, Any]) -> None:
    """The circumstances, then everything as JSON in the last line."""
    print()
    for name, value in where.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{file} `{digest[:12]}`" for file, digest in value.items())
        else:
            shown = f"`{value}`" if name == "command" else str(value)
        print(f"- {name}: {shown}")
    print()
    print(json.dumps({**where, **document}))


def sha256(path: Path) -> str:
    """In hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _llama_commit() -> str:
    function = _ggml.libggml.ggml_commit
    function.restype = ctypes.c_char_p
    commit: bytes = function()
    return commit.decode()


def _git_commit() -> str:
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "../dyspec_edge", "../native", ".")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (", changed" if changed else "")


def _command() -> str:
    """The command line; files by name only, since their place means nothing elsewhere."""
    words = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "benchmarks", *words])
