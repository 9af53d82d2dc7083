"""Where and with what something was measured: no figure stands without it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import dyspec_edge
from dyspec_edge import llama, native
from dyspec_edge.llama.devices import loaded_commit
from dyspec_edge.load.machine import processor_name

BLOCK = 1 << 22


def conditions(models: Mapping[Path, str], num_threads: int, program: str) -> dict[str, Any]:
    """Machine, versions, models, commit and command.

    Args:
        models: what `hashes` gave.
        program: what the command line begins with.
    """
    gpus = [device.description for device in llama.gpu_devices()]
    return {
        "machine": f"{processor_name()}, {psutil.cpu_count(logical=False)} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()}"
        + "".join(f", {name}" for name in gpus),
        "threads": num_threads,
        "versions": f"dyspec-edge {dyspec_edge.__version__}, llama-cpp-python "
        f"{importlib.metadata.version('llama-cpp-python')}, llama.cpp {loaded_commit()}, "
        f"rows {native.simd}, Python {platform.python_version()}",
        "models": {path.name: digest for path, digest in models.items()},
        "commit": _git_commit(),
        "command": _command(program),
    }


def hashes(
    models: Sequence[Path], on_progress: Callable[[float], None] | None = None
) -> dict[Path, str]:
    """The sha256 of each file; of a split model that of the first file.

    Args:
        on_progress: called with the fraction done.
    """
    paths = list(dict.fromkeys(models))
    total, done = sum(path.stat().st_size for path in paths), 0
    found = {}
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                done += len(block)
                if on_progress is not None:
                    on_progress(done / total)
        found[path] = digest.hexdigest()
    return found


def _git_commit() -> str | None:
    """Of the checkout that this runs from; None for an installed package."""
    root = Path(dyspec_edge.__file__).parent.parent
    program = shutil.which("git")
    if program is None or not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(
            [program, *words], cwd=root, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "dyspec_edge", "native", "benchmarks")
    commit = git("rev-parse", "--short", "HEAD")
    return commit + (", changed" if changed else "") if commit else None


def _command(program: str) -> str:
    """The command line; files by name only, since their place means nothing elsewhere."""
    words = [Path(word).name if "/" in word or "\\" in word else word for word in sys.argv[1:]]
    return shlex.join([*program.split(), *words])
