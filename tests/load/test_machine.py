"""Memory and cores of made-up machines, in and out of control groups."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dyspec_edge.load import machine
from dyspec_edge.load.machine import (
    available_memory,
    graphics_vendors,
    physical_cores,
    processor_name,
)

GB = 10**9


class ControlGroups:
    """The files of control groups under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def join(self, *lines: str) -> None:
        """What /proc/self/cgroup says."""
        self.show("proc/self/cgroup", "".join(f"{line}\n" for line in lines))

    def limit(self, limit: str, statistics: str, group: str = "") -> None:
        self.show(f"sys/fs/cgroup{group}/memory.max", limit)
        self.show(f"sys/fs/cgroup{group}/memory.stat", statistics)

    def limit_v1(self, limit: str, statistics: str, group: str = "") -> None:
        self.show(f"sys/fs/cgroup/memory{group}/memory.limit_in_bytes", limit)
        self.show(f"sys/fs/cgroup/memory{group}/memory.stat", statistics)

    def quota(self, quota: str, group: str = "") -> None:
        self.show(f"sys/fs/cgroup{group}/cpu.max", quota)

    def quota_v1(self, quota: str, period: str, group: str = "") -> None:
        self.show(f"sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us", quota)
        self.show(f"sys/fs/cgroup/cpu{group}/cpu.cfs_period_us", period)

    def show(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ControlGroups:
    """On a machine with Linux, 10 GB free and 8 cores."""
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    monkeypatch.setattr(
        "psutil.virtual_memory", lambda: SimpleNamespace(available=10 * GB, total=16 * GB)
    )
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("psutil.cpu_count", lambda *, logical=True: 16 if logical else 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    return ControlGroups(tmp_path)


# Memory

STATISTICS = "anon 1000000000\nfile 3000000000\nkernel 5\n"
STATISTICS_V1 = "rss 4096\ncache 3000000000\ntotal_rss 1000000000\n"


@pytest.mark.parametrize(
    ("limit", "statistics", "expected"),
    [
        ("max\n", STATISTICS, 10 * GB),
        ("4000000000\n", STATISTICS, 3 * GB),  # cached files can be dropped, they do not count
        ("64000000000\n", STATISTICS, 10 * GB),
        ("500000000\n", STATISTICS, 0),
        ("4000000000\n", "", 10 * GB),
        ("", STATISTICS, 10 * GB),
    ],
)
def test_a_control_groups_limit_is_kept(
    groups: ControlGroups, limit: str, statistics: str, expected: int
) -> None:
    assert available_memory() == 10 * GB  # no such files at all
    groups.join("0::/")
    assert available_memory() == 10 * GB
    groups.limit(limit, statistics)
    assert available_memory() == expected


def test_the_smallest_limit_of_the_groups_above_counts(groups: ControlGroups) -> None:
    groups.join("0::/user.slice/run-1.scope")
    groups.limit("9000000000\n", STATISTICS, "/user.slice/run-1.scope")
    assert available_memory() == 8 * GB
    groups.limit("5000000000\n", STATISTICS, "/user.slice")
    assert available_memory() == 4 * GB
    groups.limit("2000000000\n", STATISTICS, "/other.slice")
    assert available_memory() == 4 * GB


def test_the_first_versions_groups_count_too(groups: ControlGroups) -> None:
    groups.join("5:cpu,cpuacct:/", "4:memory:/docker/12ab", "1:name=systemd:/", "0::/")
    groups.limit_v1("9223372036854771712\n", STATISTICS_V1, "/docker/12ab")
    assert available_memory() == 10 * GB
    groups.limit_v1("5000000000\n", STATISTICS_V1)  # what a container sees at the root
    assert available_memory() == 4 * GB


def test_this_machines_memory_is_a_number() -> None:
    assert available_memory() > 0


# Cores


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000\n", 8),
        ("400000 100000\n", 4),
        ("250000 100000\n", 2),  # half a core more is a thread that is halted half of the time
        ("50000 100000\n", 1),
        ("1600000 100000\n", 8),
        ("", 8),
        ("100000 0\n", 8),
    ],
)
def test_a_processor_quota_counts_as_so_many_cores(
    groups: ControlGroups, quota: str, expected: int
) -> None:
    assert physical_cores() == 8  # no such files at all
    groups.join("0::/")
    groups.quota(quota)
    assert physical_cores() == expected


def test_the_smallest_quota_of_the_groups_above_counts(groups: ControlGroups) -> None:
    groups.join("0::/kubepods/pod1/main")
    groups.quota("600000 100000\n", "/kubepods/pod1/main")
    assert physical_cores() == 6
    groups.quota("150000 50000\n", "/kubepods/pod1")
    assert physical_cores() == 3
    groups.quota("100000 100000\n", "/kubepods/pod2")
    assert physical_cores() == 3


def test_the_first_versions_quotas_count_too(groups: ControlGroups) -> None:
    groups.join("5:cpu,cpuacct:/docker/12ab", "4:memory:/docker/12ab", "0::/")
    groups.quota_v1("-1\n", "100000\n", "/docker/12ab")
    assert physical_cores() == 8
    groups.quota_v1("300000\n", "100000\n")  # what a container sees at the root
    assert physical_cores() == 3


@pytest.mark.usefixtures("groups")
def test_processors_that_the_process_may_not_use_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 5}, raising=False)
    assert physical_cores() == 2


@pytest.mark.usefixtures("groups")
def test_windows_has_neither_affinity_nor_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Windows")
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert physical_cores() == 8
    monkeypatch.setattr("psutil.cpu_count", lambda *, logical=True: 16 if logical else None)
    assert physical_cores() == os.cpu_count()


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [("6\n", 6), (subprocess.CalledProcessError(1, "sysctl"), 8), (OSError("none"), 8)],
)
def test_apples_efficiency_cores_do_not_count(
    monkeypatch: pytest.MonkeyPatch, answer: Any, expected: int
) -> None:
    def run(command: tuple[str, ...], **_: Any) -> SimpleNamespace:
        assert command[-1] == "hw.perflevel0.physicalcpu"
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("subprocess.run", run)
    assert physical_cores() == expected


def test_this_machines_cores_are_a_number() -> None:
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


# Processor and graphics cards


def test_the_processor_has_a_name(groups: ControlGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert processor_name() == "aarch64"
    groups.show("proc/cpuinfo", "processor\t: 0\nmodel name\t: Ryzen 7: a name\nflags: avx2\n")
    assert processor_name() == "Ryzen 7: a name"


def test_graphics_cards_are_seen_by_their_makers_number(
    groups: ControlGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert graphics_vendors() == ()
    groups.show("sys/class/drm/card0/device/vendor", "0x1af4\n")  # a virtual machine's
    assert graphics_vendors() == ()
    groups.show("sys/class/drm/card1/device/vendor", "0x8086\n")
    groups.show("sys/class/drm/card2/device/vendor", "0x1002\n")
    assert graphics_vendors() == ("AMD", "Intel")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")  # also on Windows
    assert graphics_vendors() == ("AMD", "Intel", "NVIDIA")


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(("machine", "expected"), [("arm64", ("Apple",)), ("x86_64", ())])
def test_apples_own_processors_have_a_gpu(
    monkeypatch: pytest.MonkeyPatch, machine: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert graphics_vendors() == expected
