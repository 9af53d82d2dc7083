"""The model hub: the files of a repository, and downloads that go on where they were interrupted.

huggingface_hub speaks to it (endpoint, login and proxies are its settings); this module adds a
limit on the wait for an answer, and downloads that survive the process: huggingface_hub itself
throws an unfinished file away.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, TypeVar, cast

from dyspec_edge.errors import DownloadError, OptionError
from dyspec_edge.files.transfer import CHUNK_BYTES, Unavailable

ANSWER_SECONDS = 5.0
"""Wait for an answer, unless huggingface_hub's own HF_HUB_ETAG_TIMEOUT says another time."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository.

    Attributes:
        repo: USER/REPO.
        name: its path in the repository.
        revision: the commit that was listed.
        size: bytes.
        sha256: the hub's own hash, for files that it keeps by one.
    """

    repo: str
    name: str
    revision: str
    size: int
    sha256: str | None


def is_off() -> bool:
    """Whether HF_HUB_OFFLINE, huggingface_hub's own switch, forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def list_files(repo: str) -> dict[str, HubFile]:
    """The files of a repository by name.

    Raises:
        Unavailable: no answer in time, no such repository, no right to see it, or switched off.
        OptionError: HF_HUB_ETAG_TIMEOUT is no number of seconds.
    """
    seconds = _answer_seconds()
    if is_off():
        raise Unavailable("the hub is switched off (--offline or HF_HUB_OFFLINE)")
    from huggingface_hub import HfApi

    def ask() -> dict[str, HubFile]:
        info = HfApi().model_info(repo, files_metadata=True, timeout=seconds)
        revision = info.sha or "main"
        return {
            file.rfilename: HubFile(
                repo,
                file.rfilename,
                revision,
                file.size or 0,
                None if file.lfs is None else file.lfs.sha256,
            )
            for file in info.siblings or ()
        }

    return _within(seconds, ask, repo)


def download(file: HubFile, part: Path, on_bytes: Callable[[int], None]) -> None:
    """Fetch `file` into `part`, going on where `part` ends; `on_bytes` gets the bytes so far.

    Raises:
        Unavailable: the transfer broke off; `part` keeps what has come.
        DownloadError: the disk refused the bytes.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars

    disable_progress_bars("huggingface_hub.http_get")
    # Its default of 10 MB would move a progress bar on a slow line only every ten seconds.
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    # Its warnings about retries take several lines each; our error says in one line what failed.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    url = hf_hub_url(file.repo, file.name, revision=file.revision)
    with part.open("ab") as raw:
        done = raw.tell()
        on_bytes(done)
        if done >= file.size:
            return
        try:
            http_get(
                url,
                cast(BinaryIO, _Counted(raw, on_bytes)),
                resume_size=done,
                headers=build_hf_headers(),
            )
        except DownloadError:
            raise
        except Exception as error:
            raise Unavailable(f"{file.name}: {_reason(error, file.repo)}") from error


class _Counted:
    """A file that reports the bytes written; a full disk raises DownloadError, not OSError."""

    def __init__(self, raw: IO[bytes], on_bytes: Callable[[int], None]) -> None:
        self._raw = raw
        self._on_bytes = on_bytes

    def write(self, data: bytes) -> int:
        try:
            count = self._raw.write(data)
        except OSError as error:
            raise DownloadError(f"cannot write {self._raw.name}: {error.strerror}") from error
        self._on_bytes(self._raw.tell())
        return count

    def tell(self) -> int:
        return self._raw.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._raw.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._raw.truncate(size)


def _answer_seconds() -> float:
    value = os.environ.get("HF_HUB_ETAG_TIMEOUT", str(ANSWER_SECONDS))
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise OptionError(f"HF_HUB_ETAG_TIMEOUT is '{value}'; it must be a number of seconds")
    return seconds


def _within(seconds: float, ask: Callable[[], _T], repo: str) -> _T:
    """What `ask` returns, or Unavailable after `seconds`: DNS look-ups have no timeout."""
    answers: queue.Queue[_T | Exception] = queue.Queue()

    def run() -> None:
        try:
            answers.put(ask())
        except Exception as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    answer: _T | Exception | None = None
    with suppress(queue.Empty):
        answer = answers.get(timeout=seconds)
    if answer is None:
        raise Unavailable(f"the hub did not answer within {seconds:.0f} s")
    if isinstance(answer, Exception):
        raise Unavailable(_reason(answer, repo)) from answer
    return answer


def _reason(error: Exception, repo: str) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"{repo} asks for a login and its licence's acceptance: run 'hf auth login'"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub has no {repo}, or it is private: run 'hf auth login'"
    if isinstance(error, errors.HFValidationError):
        return f"'{repo}' is no name of a hub repository; USER/REPO is"
    if isinstance(error, errors.HfHubHTTPError):
        return f"the hub answered: {str(error).strip().splitlines()[0]}"
    return (
        f"the hub cannot be reached ({str(error).strip().splitlines()[0] or type(error).__name__})"
    )
