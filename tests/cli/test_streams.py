"""Streams that are closed, full or not ours, as services, cron jobs and scripts have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} -m tests.fake_engine"


def shell(script: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"export DYSPEC_EDGE_CACHE='{cache}'; {script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("models >&-", 0),
        ("models 2>&-", 0),
        ("models <&- >&- 2>&-", 0),
        ("complete -m x.gguf hello >&-", 0),
        ("complete -m x.gguf <&-", 2),
        ("chat -m x.gguf <&-", 0),
        ("nocommand 2>&-", 2),
    ],
)
def test_closed_streams_are_no_mistake(command: str, code: int, tmp_path: Path) -> None:
    ran = shell(f"{PROGRAM} {command}", tmp_path)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "internal error" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "command", ["models", "complete -m x.gguf hello", "complete -m x.gguf --json hello"]
)
def test_a_full_disk_is_one_line(command: str, tmp_path: Path) -> None:
    ran = shell(f"{PROGRAM} {command} > /dev/full", tmp_path)
    assert ran.returncode == 1
    assert "error: cannot write the output: no space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_what_is_piped_in_joins_a_prompt(tmp_path: Path) -> None:
    ran = shell(f"echo 'x = 1' | {PROGRAM} complete -m x.gguf 'say explain this'", tmp_path)
    assert ran.stdout == "explain this\n\nx = 1"


def test_a_file_joins_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    for source in (f"-f {tmp_path}/a.py", f"-f - < {tmp_path}/a.py", f"< {tmp_path}/a.py"):
        ran = shell(f"{PROGRAM} complete -m x.gguf 'say explain' {source}", tmp_path)
        assert ran.stdout == "explain\n\nx = 1", source


@pytest.mark.parametrize("loop", ["{body} < {list}", "cat {list} | {body}"])
def test_a_loop_that_owns_stdin_is_not_swallowed(loop: str, tmp_path: Path) -> None:
    names = tmp_path / "list"
    names.write_text("one\ntwo\nthree\n")
    body = f'while read -r name; do {PROGRAM} complete -m x.gguf "say $name"; echo; done'
    ran = shell(loop.format(body=body, list=names), tmp_path)
    assert ran.stdout.split() == ["one", "two", "three"]
    assert ran.stderr.count("stdin is the calling script's and was left alone") == 3
