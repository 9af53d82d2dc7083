"""What happens before a command runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dyspec_edge.cli.main import cli

PROGRAM = "from dyspec_edge.cli.start import main; main()"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("ignored", "code"), [(False, -signal.SIGINT), (True, 0)])
def test_ctrl_c_while_python_imports(tmp_path: Path, ignored: bool, code: int) -> None:
    (tmp_path / "click.py").write_text(
        "import os, signal, sys\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "del sys.modules['click']\nsys.path.remove(os.path.dirname(__file__))\nimport click\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--version"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (found.returncode, found.stderr) == (code, b"")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no file without an end")
@pytest.mark.parametrize("option", ["-f", "--chat-template", "--grammar-file"])
def test_a_file_without_an_end(option: str, tiny_target: Path) -> None:
    typed = ["complete", "-m", str(tiny_target), option, "/dev/zero"]
    result = CliRunner().invoke(cli, typed, input="hi")
    assert result.exit_code == 1
    assert "/dev/zero' is longer than 64 MiB" in result.stderr


def test_no_memory_is_no_mistake_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_args: object, **_named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dyspec_edge.files.description.inspect_file", none)
    result = CliRunner().invoke(cli, ["inspect", "x.gguf"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: out of memory; ")
