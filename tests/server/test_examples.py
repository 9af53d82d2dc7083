"""The programs of examples/ run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TinyPair
from tests.engines import opened
from tests.server.conftest import TinyServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_openai_client(server: TinyServer) -> None:
    address = {"OPENAI_BASE_URL": f"{server.address}/v1", "OPENAI_API_KEY": "none"}
    found = subprocess.run(
        [sys.executable, EXAMPLES / "openai_client.py"],
        env={**os.environ, **address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "passes of the big model" in found.stdout
    assert "'city': " in found.stdout.splitlines()[-1]


def test_the_desktop_window(tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    tkinter = pytest.importorskip("tkinter", reason="Python was built without tkinter")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        root = tkinter.Tk()
    except tkinter.TclError:
        pytest.skip("there is no display to open a window on")
    import desktop  # type: ignore[import-not-found]

    with opened(*tiny_pair) as engine:
        window = desktop.Window(root, engine)
        window.entry.insert(0, "the cat")
        window.ask()
        while "\n> the cat\n" not in window.answer.get("1.0", "end"):
            root.update()
        size = len(window.answer.get("1.0", "end"))
        while len(window.answer.get("1.0", "end")) < size + 20:
            root.update()
        root.destroy()
