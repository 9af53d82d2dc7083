"""What every download shares: progress, free space, checksums, the renaming of a finished file.

A download is written under a name that ends in .part and gets its real name only after it was
checked, so that a file with its real name is always whole.  Where the bytes come from is not known
here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dyspec_edge.errors import DownloadError

SPARE_BYTES = 64 << 20
"""Disk space that a download leaves free."""

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a download is.

    Attributes:
        label: what is being done, for people.
        done: bytes so far, those of an earlier, interrupted try included.
        total: bytes in all, where known.
    """

    label: str
    done: int
    total: int | None


OnProgress = Callable[[Progress], None]
OnNotice = Callable[[str], None]


class Unavailable(DownloadError):
    """This source cannot give the file, another one might."""


def check_space(directory: Path, num_bytes: int) -> None:
    """Raise DownloadError unless `directory`'s disk has room for `num_bytes` more."""
    free = shutil.disk_usage(directory).free
    if free < num_bytes + SPARE_BYTES:
        raise DownloadError(
            f"not enough space in {directory}: {format_bytes(num_bytes + SPARE_BYTES)} needed, "
            f"{format_bytes(free)} free; make room or set DYSPEC_EDGE_CACHE to another disk"
        )


def publish(
    part: Path, destination: Path, *, size: int | None, sha256: str | None, on_progress: OnProgress
) -> Path:
    """Check a finished part and give it its real name.

    Raises:
        Unavailable: another size or checksum than expected; the part is removed.
    """
    found = part.stat().st_size
    if size is not None and found != size:
        part.unlink()
        raise Unavailable(
            f"{destination.name}: got {found} bytes instead of {size}; removed, try again"
        )
    if sha256 is not None:
        digest = _sha256(part, f"checking {destination.name}", on_progress)
        if digest != sha256:
            part.unlink()
            raise Unavailable(
                f"{destination.name}: checksum {digest[:12]}... instead of {sha256[:12]}...; "
                "the file was removed, try again"
            )
    destination.parent.mkdir(parents=True, exist_ok=True)
    return part.replace(destination)


def format_bytes(num_bytes: int) -> str:
    """A size for people, in decimal units as disks are sold."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _sha256(path: Path, label: str, on_progress: OnProgress) -> str:
    digest = hashlib.sha256()
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            on_progress(Progress(label, done, total))
    return digest.hexdigest()


def files_below(directory: Path) -> Iterator[Path]:
    """Whatever is no folder in a folder and those in it, also while others remove some of them.

    `Path.rglob` raises where a folder goes away in the middle.
    """
    for folder, _, names in os.walk(directory):
        for name in names:
            yield Path(folder, name)
