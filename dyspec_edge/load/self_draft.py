"""`-md self`: a draft for any target, which is the target itself in fewer bits.

It is made once, by a process of its own (llama/quantization.py), and kept in the cache directory:

    self/NAME-TYPE-KEY.gguf     KEY: a hash of the target's content and of the recipe
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dyspec_edge.errors import DownloadError, ModelFileError
from dyspec_edge.files import stores
from dyspec_edge.files.model_file import inspect_file, read_tensors
from dyspec_edge.files.pair import require_target
from dyspec_edge.files.transfer import SPARE_BYTES, check_space
from dyspec_edge.load.config import SELF, EngineConfig
from dyspec_edge.load.machine import physical_cores

Progress = Callable[[str, float], None]

TICK = 0.2
"""Seconds between two looks at the file that grows."""

BLOCK, NUM_BLOCKS = 1 << 16, 64
"""Bytes of a target's file that are hashed at a place, and places: all of a large one would take
as long as the copy."""

STALE = 3600.0
"""Seconds after which a part to which nothing was added is nobody's any more."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a copy is made.

    Attributes:
        kind: a key of llama.quantization.TYPES.
        dropped: layers that are left out.
    """

    kind: str = "Q2_K"
    dropped: tuple[int, ...] = ()


RECIPE = Recipe()
"""What `-md self` loads."""


def place(model: Path) -> Path:
    """Where the copy of a target is, or will be.

    Raises:
        ModelFileError: `model` is missing or damaged.
    """
    digest = hashlib.sha256(repr(RECIPE).encode())
    for path in dict.fromkeys(path for path, _tensor in read_tensors(model)):
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for number in range(NUM_BLOCKS):
                file.seek(max(0, size - BLOCK) * number // (NUM_BLOCKS - 1))
                digest.update(file.read(BLOCK))
    name = f"{model.stem}-{RECIPE.kind.lower()}-{digest.hexdigest()[:16]}.gguf"
    return stores.cache_dir() / "self" / name


def is_made(model: Path) -> bool:
    """Whether the copy of a target is there."""
    return place(model).is_file()


def resolved(config: EngineConfig, on_progress: Progress | None = None) -> EngineConfig:
    """The same configuration with the file of the copy, where it asks for "self"."""
    if config.draft != SELF:
        return config
    config.check()
    return replace(config, draft=ensure(config.model, on_progress))


def ensure(model: Path, on_progress: Progress | None = None) -> Path:
    """The file of the target's copy, which is made if it is not there.

    Args:
        on_progress: called with what is being done and a fraction 0..1; what it raises ends the
            making.

    Raises:
        ModelFileError: not a target that llama.cpp can quantize, or the copy cannot be written.
        DownloadError: no space for it.
    """
    path = place(model)
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _sweep(path.parent)
        except OSError as error:
            raise ModelFileError(f"{path.parent}: {error.strerror or error}") from error
        make(model, path, RECIPE, on_progress)
    return path


def make(model: Path, out: Path, recipe: Recipe, on_progress: Progress | None = None) -> None:
    """Write a copy; `out` appears when it is complete, and else nothing does.

    Raises:
        As `ensure`.
    """
    require_target(inspect_file(model))
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    layers = ",".join(map(str, recipe.dropped))
    words = [
        str(model.absolute()),
        str(part.absolute()),
        recipe.kind,
        str(physical_cores()),
        layers,
    ]
    command = [sys.executable, "-m", "dyspec_edge.llama.quantization", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            said = _watch(process, part, on_progress or (lambda _label, _done: None))
            _require_whole(process, part, model, said)
            part.replace(out)
        except OSError as error:
            raise ModelFileError(f"{out}: cannot be written: {error.strerror or error}") from error
        finally:
            process.kill()
            process.wait()
            part.unlink(missing_ok=True)


def _watch(process: subprocess.Popen[str], part: Path, on_progress: Progress) -> str:
    """Wait until the process ends; what it said last."""
    assert process.stdout is not None
    first = process.stdout.readline().strip()
    if not first.isdigit():
        return first
    total = int(first)
    check_space(part.parent, total)
    label = f"making {part.name.rpartition('-')[0]}"
    while process.poll() is None:
        done = part.stat().st_size if part.exists() else 0
        on_progress(label, min(1.0, done / max(1, total)))
        time.sleep(TICK)
    return process.stdout.read().strip()


def _require_whole(process: subprocess.Popen[str], part: Path, model: Path, said: str) -> None:
    """llama.cpp notices neither a full disk nor a quota."""
    try:
        if process.wait() == 0:
            inspect_file(part)
            return
    except ModelFileError:
        said = f"{model}: its copy came out damaged"
    if shutil.disk_usage(part.parent).free < SPARE_BYTES:
        raise DownloadError(
            f"{part.parent}: the disk is full; make room or set DYSPEC_EDGE_CACHE to another disk"
        )
    raise ModelFileError(said or f"{model}: the process that made its copy was killed")


def _sweep(directory: Path) -> None:
    """Remove what was left where both processes were killed."""
    for part in directory.glob("*.part"):
        if time.time() - part.stat().st_mtime > STALE:
            part.unlink(missing_ok=True)
