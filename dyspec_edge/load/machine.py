"""The machine: memory and processor cores that this process may use, and what it is built from.

A container's limits count like the machine's own: those of the control groups that the process is
in, of both versions, and of all groups above them.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

_GRAPHICS_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # PCI's numbers


def available_memory(limit: int | None = None) -> int:
    """Bytes that new allocations can take: the machine's, or a control group's if smaller.

    Args:
        limit: bytes that this process is to have at most; what it has already counts.
    """
    rooms = [int(psutil.virtual_memory().available), *_rooms_of_groups()]
    if limit is not None:
        used = psutil.Process().memory_info()
        rooms.append(max(0, limit - (used.rss - getattr(used, "shared", 0))))
    return min(rooms)


def physical_cores() -> int:
    """Cores that this process may use, at least one.

    Hyper-threads do not count, nor do Apple's efficiency cores, on which the others would wait at
    every layer.  A processor quota counts as so many whole cores: a thread more would be halted
    while the others wait for it.
    """
    cores = _performance_cores() or psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    return max(1, min([cores, *(int(quota) for quota in _quotas_of_groups())]))


def processor_name() -> str:
    """As its maker calls it; the architecture where the system does not tell."""
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # not Linux
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def graphics_vendors() -> tuple[str, ...]:
    """Makers of the graphics cards that the system shows: "NVIDIA", "AMD", "Intel", "Apple".

    Virtual machines' cards do not count, since nothing computes on them.
    """
    if platform.system() == "Darwin":
        return ("Apple",) if platform.machine() == "arm64" else ()
    found = {"NVIDIA"} if shutil.which("nvidia-smi") else set()
    for vendor in Path("/sys/class/drm").glob("card*/device/vendor"):
        try:
            number = vendor.read_text().strip()
        except OSError:
            continue  # taken away meanwhile
        found |= {_GRAPHICS_VENDORS[number]} if number in _GRAPHICS_VENDORS else set()
    return tuple(sorted(found))


def _performance_cores() -> int | None:
    """Apple's, whose processors have two kinds; None elsewhere."""
    if platform.system() != "Darwin":
        return None
    return int(_sysctl("hw.perflevel0.physicalcpu") or 0) or None  # an Intel Mac has one kind


def _sysctl(name: str) -> str | None:
    command = ("/usr/sbin/sysctl", "-n", name)
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def _rooms_of_groups() -> Iterator[int]:
    """What the memory limit of each group leaves.

    Cached files can be dropped, so that only anonymous memory counts as used.
    """
    for folder, is_second_version in _groups("memory"):
        limit, used = "memory.limit_in_bytes", "total_rss"
        if is_second_version:
            limit, used = "memory.max", "anon"
        try:
            allowed = int((folder / limit).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield max(0, allowed - next(int(value) for key, value in lines if key == used))
        except (OSError, ValueError, StopIteration):
            continue  # no such group, or no limit in it


def _quotas_of_groups() -> Iterator[float]:
    """The processor quota of each group, in processors."""
    for folder, is_second_version in _groups("cpu"):
        files = ("cpu.max",) if is_second_version else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            quota, period = " ".join((folder / name).read_text() for name in files).split()
            if float(quota) > 0:  # -1: none
                yield float(quota) / float(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue  # no such group, or "max"


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's groups and of those above, and whether of the second version.

    A container may see the path of its host and, mounted at the root, only its own group: so a
    folder need not exist.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root = Path("/sys/fs/cgroup")
        elif controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") / controller
        else:
            continue
        folder = root / group.lstrip("/")
        for above in (folder, *folder.parents):
            if above.is_relative_to(root):
                yield above, not controllers
