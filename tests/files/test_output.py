"""Results never take the place of a directory, a device, or a model; that is said first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from dyspec_edge.cli.main import cli
from dyspec_edge.errors import OptionError
from dyspec_edge.files.output import require_no_model, require_place
from tests.conftest import TinyPair


def test_a_new_or_an_older_file_is_a_place(tmp_path: Path) -> None:
    path = tmp_path / "new.html"
    require_place("-o", path)
    require_no_model("-o", path)
    path.write_text("older")
    require_place("-o", path)
    require_no_model("-o", path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "is a directory"),
        ("/", "is a directory"),
        ("pipe", "is no regular file"),
        ("file/below", "there is no directory file"),
        ("nowhere/out.gguf", "there is no directory nowhere"),
        ("a" * 5000, "File name too long"),
    ],
)
@pytest.mark.parametrize("command", ["draft trim", "trace"])
def test_places_that_are_none(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: str, path: str, words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("file").touch()
    typed = {
        "draft trim": ["draft", "trim", str(tiny_pair.draft), "--keep", "300", "-o", path],
        "trace": ["trace", "-m", str(tiny_pair.target), "-o", path, "hi"],
    }[command]
    result = CliRunner().invoke(cli, typed)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert Path("pipe").is_fifo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "pipe"]


def test_a_directory_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_args: False)  # root may write everywhere
    with pytest.raises(OptionError, match="may not be written"):
        require_place("-o", tmp_path / "out.gguf")


def test_a_trace_is_not_written_over_a_model(tiny_pair: TinyPair) -> None:
    before = tiny_pair.target.read_bytes()
    typed = ["trace", "-m", str(tiny_pair.target), "-o", str(tiny_pair.target), "hi"]
    result = CliRunner().invoke(cli, typed)
    assert (result.exit_code, tiny_pair.target.read_bytes()) == (2, before)
    assert "is a model; name another file" in result.stderr
