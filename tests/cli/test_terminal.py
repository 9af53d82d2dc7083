"""What the two streams of a command are set to, on each system."""

from __future__ import annotations

import io

import pytest

from dyspec_edge.cli.terminal import Terminal

TEXT = "naïve 日本"


def written(monkeypatch: pytest.MonkeyPatch, platform: str, *, seen: bool = False) -> bytes:
    """What arrives of `TEXT` on a stdout that Windows's old code page encodes."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", newline="\n")
    out.isatty = lambda: seen  # type: ignore[method-assign]
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("sys.stdout", out)
    Terminal().json(TEXT)
    print(TEXT, file=out, flush=True)
    return out.buffer.getvalue().splitlines()[-1]


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)


def test_a_pipe_on_windows_gets_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(monkeypatch, "win32") == TEXT.encode()


def test_a_chosen_encoding_and_that_of_other_systems_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    old = TEXT.encode("cp1252", "replace")
    assert written(monkeypatch, "linux") == old
    assert written(monkeypatch, "win32", seen=True) == old
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    assert written(monkeypatch, "win32") == old
