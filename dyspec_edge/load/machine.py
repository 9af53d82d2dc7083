"""What this process may use of the machine: memory and processor cores.

A container's limits count like the machine's own: those of the control groups that the process is
in, of both versions, and of all groups above them.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil


def available_memory() -> int:
    """Bytes that new allocations can take: the machine's, or a control group's if smaller."""
    return min([int(psutil.virtual_memory().available), *_rooms_of_groups()])


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


def _performance_cores() -> int | None:
    """Apple's, whose processors have two kinds; None elsewhere."""
    if platform.system() != "Darwin":
        return None
    command = ("/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu")
    try:
        return int(subprocess.run(command, capture_output=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None  # an Intel Mac has one kind


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
