"""The programs of examples/ run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import TinyPair
from tests.engines import opened
from tests.server.conftest import TinyServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def output(server: TinyServer, *command: str | Path, **variables: str) -> str:
    """What a program prints that finds the server in its environment."""
    address = {"OPENAI_BASE_URL": f"{server.address}/v1", "OPENAI_API_KEY": "none"}
    found = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **address, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_openai_client(server: TinyServer) -> None:
    found = output(server, EXAMPLES / "openai_client.py")
    assert "passes of the big model" in found
    assert "'city': " in found.splitlines()[-1]


def test_langchain(server: TinyServer) -> None:
    if find_spec("langchain_openai") is None:
        pytest.skip("langchain-openai is not installed")
    found = output(server, EXAMPLES / "langchain_client.py").splitlines()
    assert len(found) > 1
    assert found[-1].startswith("{'city': ")


def test_llm_with_the_settings_of_the_readme(server: TinyServer, tmp_path: Path) -> None:
    if find_spec("llm") is None:
        pytest.skip("llm is not installed")
    readme = (EXAMPLES.parent / "README.md").read_text("utf-8")
    line = next(line for line in readme.splitlines() if line.startswith("| llm |"))
    setting = line.split("`")[3].replace("NAME", "tiny")
    setting = setting.replace("http://127.0.0.1:8080", server.address)
    (tmp_path / "extra-openai-models.yaml").write_text(setting, "utf-8")
    options = ["-o", "max_tokens", "12", "-o", "seed", "1", "--no-log"]
    found = output(
        server, "-m", "llm", "-m", "dyspec", *options, "the cat", LLM_USER_PATH=str(tmp_path)
    )
    assert found.strip() == server.text("the cat", max_tokens=12).strip()


def test_the_notebook(server: TinyServer, tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "drafts.ipynb").read_text("utf-8"))
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "drafts.py").write_text("\n".join(cells), "utf-8")
    found = output(server, tmp_path / "drafts.py")
    assert "the same text: True" in found
    with_drafts, without = (int(word) for word in found.split() if word.isdigit())
    assert with_drafts < without


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
