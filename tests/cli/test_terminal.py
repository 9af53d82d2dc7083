"""What the two streams of a command are set to, on each system."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
from rich.table import Table

from dyspec_edge.cli import stats_view
from dyspec_edge.cli.terminal import Bar, Terminal
from tests.fake_engine import make_stats

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


def test_a_prompt_that_was_only_read_has_no_speed_of_generation() -> None:
    stats = replace(make_stats(generated=0), steps=0, draft_tokens=0)
    assert stats_view.summary(stats) == (
        "prompt 100.0 tok/s · prompt 5 new + 5 cached · context 10/64 · seed 1"
    )


@pytest.mark.parametrize("stderr", [False, True])
def test_no_text_from_a_file_steers_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stderr: bool
) -> None:
    name = "e\x1b[32mvil\x9b3m\x1b]0;title\x07.gguf"
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr" if stderr else "stdout", stream)
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    grid = Table(name, title=name, box=None)
    grid.add_row(name)
    (terminal.err if stderr else terminal.out).print(grid)
    if stderr:
        terminal.notice(name)
        terminal.error(name)
        with Bar(terminal, delay=0.0) as bar:
            bar.update(name, 1, 2)
    else:
        terminal.text(name)
    shown = stream.getvalue()
    assert shown.count("e\u241b[32mvil\ufffd3m\u241b]0;title\u2407.gguf") >= 4 - (not stderr)
    assert not set("\x07\x9b") & set(shown)
    assert "\x1b[32m" not in shown
    assert "\x1b]" not in shown


def test_a_pipe_gets_tables_and_text_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Table(box=None, show_header=False)
    grid.add_row("a\x1b[32mb")
    Terminal().out.print(grid)
    Terminal().text("a\x1b[32mb")
    assert capsys.readouterr().out.count("a\x1b[32mb") == 2
