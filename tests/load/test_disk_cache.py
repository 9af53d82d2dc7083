"""Documents that are kept between runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dyspec_edge.load.disk_cache import DiskCache

KEY = {"file": "a.gguf", "threads": 2}


@pytest.fixture
def kept(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "deep" / "curves")


def files(kept: DiskCache) -> list[Path]:
    return sorted(kept._directory.iterdir())


def test_documents_are_kept_by_key(kept: DiskCache) -> None:
    assert kept.load(KEY) is None
    kept.save(KEY, [1, 2])
    kept.save({**KEY, "threads": 4}, [3])
    assert kept.load(KEY) == [1, 2]
    kept.save(KEY, [5])
    assert kept.load(KEY) == [5]
    assert len(files(kept)) == 2, "no scraps"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"value": 1}', '{"key": {}, "value": 1}'])
def test_what_cannot_be_read_is_not_there(kept: DiskCache, text: str) -> None:
    kept.save(KEY, 1)
    files(kept)[0].write_text(text)
    assert kept.load(KEY) is None
    files(kept)[0].write_bytes(b"\xff\xfe\x00")
    assert kept.load(KEY) is None


def test_a_disk_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = DiskCache(tmp_path / "file" / "curves")
    kept.save(KEY, 1)
    assert kept.load(KEY) is None
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir()
        (tmp_path / "closed").chmod(stat.S_IRUSR | stat.S_IXUSR)
        DiskCache(tmp_path / "closed").save(KEY, 1)
