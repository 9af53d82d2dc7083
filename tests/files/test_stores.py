from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from dyspec_edge.errors import OptionError
from dyspec_edge.files import stores, wheels
from dyspec_edge.files.catalog import ModelSource

REPO = "user/model-GGUF"
DATA = b"weights" * 100
DIGEST = "ab" * 32
SOURCE = ModelSource(REPO, "model-Q4_K_M.gguf", size=len(DATA), sha256=DIGEST)


def put(path: Path, data: bytes = DATA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_manifest(root: Path, tag: str, num_layers: int = 1) -> None:
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{DIGEST}"}
    other = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:00"}
    manifest = {"layers": [other] + [layer] * num_layers}
    put(root / "manifests" / "hf.co" / REPO / tag, json.dumps(manifest).encode())


@pytest.mark.usefixtures("empty_home")
def test_nothing_is_found_on_an_empty_machine() -> None:
    assert stores.find(SOURCE) is None
    assert stores.find(ModelSource(REPO)) is None


@pytest.mark.parametrize("root", [".lmstudio/models", ".cache/lm-studio/models"])
def test_lm_studio(empty_home: Path, root: str) -> None:
    path = put(empty_home / root / REPO / "model-Q4_K_M.gguf")
    assert stores.find(SOURCE) == path
    assert stores.find(ModelSource(REPO)) == path
    assert stores.find(ModelSource(REPO, quant="q4_k_m")) == path
    assert stores.find(ModelSource(REPO, quant="Q8_0")) is None


def test_the_hubs_cache(empty_home: Path) -> None:
    root = empty_home / ".cache" / "huggingface" / "hub" / "models--user--model-GGUF"
    blob = put(root / "blobs" / DIGEST)
    assert stores.find(SOURCE) == blob
    named = root / "snapshots" / "c0ffee" / "model-Q4_K_M.gguf"
    named.parent.mkdir(parents=True)
    named.symlink_to(blob)
    assert stores.find(SOURCE) == named
    assert stores.find(ModelSource(REPO)) == named


def test_the_hubs_cache_elsewhere(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(empty_home / "hf"))
    blob = put(empty_home / "hf" / "hub" / "models--someone--else" / "blobs" / DIGEST)
    assert stores.find(SOURCE) == blob


def test_ollama_by_checksum(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = put(empty_home / ".ollama" / "models" / "blobs" / f"sha256-{DIGEST}")
    assert stores.find(SOURCE) == blob
    monkeypatch.setenv("OLLAMA_MODELS", str(empty_home / "big"))
    blob = put(empty_home / "big" / "blobs" / f"sha256-{DIGEST}")
    assert stores.find(SOURCE) == blob


def test_ollama_by_tag(empty_home: Path) -> None:
    root = empty_home / ".ollama" / "models"
    put_manifest(root, "Q4_K_M")
    assert stores.find(ModelSource(REPO, quant="q4_k_m")) is None, "a manifest without its blob"
    blob = put(root / "blobs" / f"sha256-{DIGEST}")
    assert stores.find(ModelSource(REPO, quant="q4_k_m")) == blob
    assert stores.find(ModelSource(REPO)) == blob
    assert stores.find(ModelSource(REPO, quant="Q8_0")) is None


@pytest.mark.parametrize("text", ["", "[]", '{"layers": 3}', '{"layers": [{}]}'])
def test_ollama_with_an_odd_manifest(empty_home: Path, text: str) -> None:
    root = empty_home / ".ollama" / "models"
    put(root / "manifests" / "hf.co" / REPO / "Q4_K_M", text.encode())
    assert stores.find(ModelSource(REPO)) is None


def test_ollama_with_a_split_model(empty_home: Path) -> None:
    root = empty_home / ".ollama" / "models"
    put(root / "blobs" / f"sha256-{DIGEST}")
    put_manifest(root, "Q4_K_M", num_layers=2)
    assert stores.find(ModelSource(REPO)) is None


def test_a_file_of_another_size_is_not_it(empty_home: Path) -> None:
    put(empty_home / ".lmstudio" / "models" / REPO / "model-Q4_K_M.gguf", DATA[:-1])
    assert stores.find(SOURCE) is None


def test_a_split_model_counts_only_when_whole(empty_home: Path) -> None:
    directory = empty_home / ".lmstudio" / "models" / REPO
    first = put(directory / "m-Q4_K_M-00001-of-00002.gguf")
    assert stores.find(ModelSource(REPO)) is None
    put(directory / "m-Q4_K_M-00002-of-00002.gguf")
    assert stores.find(ModelSource(REPO)) == first


NAMES = [
    "README.md",
    "m-IQ4_K_M.gguf",
    "m-Q2_K.gguf",
    "m-q8_0.gguf",
    "mmproj-m-Q4_K_M.gguf",
    "deep/m-Q6_K-00002-of-00002.gguf",
    "deep/m-Q6_K-00001-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("names", "quant", "chosen"),
    [
        ([*NAMES, "m-q4_k_m.gguf"], None, "m-q4_k_m.gguf"),
        (NAMES, None, "m-q8_0.gguf"),
        (NAMES, "Q8_0", "m-q8_0.gguf"),
        (NAMES, "q6_k", "deep/m-Q6_K-00001-of-00002.gguf"),
        (NAMES, "Q4_K_M", None),
        (["m.gguf", "a.txt"], None, "m.gguf"),
        (["a.txt"], None, None),
    ],
)
def test_choice_of_the_file(names: list[str], quant: str | None, chosen: str | None) -> None:
    assert stores.pick(names, quant) == chosen


def test_the_cache_directory(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYSPEC_EDGE_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    assert stores.cache_dir() == empty_home / ".cache" / "dyspec-edge"
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_home / "xdg"))
    assert stores.cache_dir() == empty_home / "xdg" / "dyspec-edge"
    monkeypatch.setattr("sys.platform", "darwin")
    assert stores.cache_dir() == empty_home / "Library" / "Caches" / "dyspec-edge"
    monkeypatch.setenv("LOCALAPPDATA", str(empty_home / "AppData" / "Local"))
    assert stores.cache_dir() == empty_home / "Library" / "Caches" / "dyspec-edge"
    monkeypatch.setattr("sys.platform", "win32")
    assert stores.cache_dir() == empty_home / "AppData" / "Local" / "dyspec-edge"


def test_a_link_whose_blob_is_gone_is_passed_over(empty_home: Path) -> None:
    root = empty_home / ".cache" / "huggingface" / "hub" / "models--user--model-GGUF"
    for place in (root / "snapshots" / "c0ffee" / "model-Q4_K_M.gguf", root / "blobs" / DIGEST):
        place.parent.mkdir(parents=True)
        place.symlink_to(empty_home / "gone")
    assert stores.find(SOURCE) is None
    assert stores.find(ModelSource(REPO)) is None
    path = put(empty_home / ".lmstudio/models" / REPO / "model-Q4_K_M.gguf")
    assert stores.find(SOURCE) == path


@pytest.mark.parametrize(
    "variable",
    ["DYSPEC_EDGE_CACHE", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"],
)
def test_a_directory_of_no_user_is_an_error_that_names_the_variable(
    variable: str, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "~nouser/models")
    with pytest.raises(OptionError, match=f"{variable} is '~nouser/models'.*name a directory"):
        stores.find(ModelSource(REPO))
    assert empty_home.exists()


def test_a_user_without_a_home_has_a_cache_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DYSPEC_EDGE_CACHE", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", classmethod(no_home))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert stores.find(SOURCE) is None
    directory = stores.cache_dir()
    assert directory.parent == tmp_path
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(OptionError, match="belongs to another user; set DYSPEC_EDGE_CACHE"):
        stores.find(SOURCE)


def test_an_empty_variable_counts_as_none(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", "")
    assert stores.cache_dir() == empty_home / ".cache" / "dyspec-edge"


def test_a_folder_that_goes_away_in_the_middle_is_passed_over(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scratch folders of pip, which removes them while another program looks for the file."""
    root = empty_home / ".lmstudio" / "models" / REPO
    path = put(root / "model-Q4_K_M.gguf")
    (root / "wheel-scratch" / "build").mkdir(parents=True)
    scandir = os.scandir

    def gone(directory: Path | str) -> object:
        if Path(directory).name == "build":
            raise FileNotFoundError(directory)
        return scandir(directory)

    monkeypatch.setattr(os, "scandir", gone)
    assert stores.find(SOURCE) == path
    assert wheels._size_of(root) == len(DATA)
