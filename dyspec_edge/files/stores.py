"""Model files that are already on this machine: our cache, the hub's, Ollama's, LM Studio's.

Nothing here touches the network, and nothing is copied: a file is used where it lies.

    ours       models/USER/REPO/FILE
    hub        models--USER--REPO/snapshots/COMMIT/FILE -> ../../blobs/SHA256
    Ollama     manifests/hf.co/USER/REPO/TAG names blobs/sha256-SHA256
    LM Studio  USER/REPO/FILE
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dyspec_edge.errors import OptionError
from dyspec_edge.files.catalog import ModelSource
from dyspec_edge.files.transfer import files_below

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# Companions of a model that lie in the same repository.
_COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")


def cache_dir() -> Path:
    """Where fetched models go: $DYSPEC_EDGE_CACHE or the platform's cache directory.

    Raises:
        OptionError: the variable names the home of a user who does not exist, or a user without a
            home has no directory of their own among the temporary files.
    """
    chosen = _directory_in("DYSPEC_EDGE_CACHE")
    if chosen is not None:
        return chosen
    local = _directory_in("LOCALAPPDATA")
    if sys.platform == "win32" and local is not None:
        return local / "dyspec-edge"
    home = _home()
    if home is None:  # a service's user, say
        return _private_directory(Path(tempfile.gettempdir()) / f"dyspec-edge-{os.getuid()}")
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "dyspec-edge"
    return _user_caches(home) / "dyspec-edge"


def own_path(repo: str, file: str) -> Path:
    """Where our cache keeps a file of a hub repository."""
    return cache_dir().joinpath("models", *repo.split("/"), file)


def find(source: ModelSource, *, fallback: bool = False) -> Path | None:
    """The file of a source, if this machine has it; of a split model the first shard.

    Args:
        source: what is wanted.
        fallback: where the source leaves the choice open, take any model of the repository rather
            than none; it is for the hub to choose, which knows all files, if it can be asked.
    """
    for directory in _directories(source.repo):
        path = _pick_file(directory, source, fallback=fallback)
        if path is not None:
            return path
    if source.sha256 is not None:
        for blob in _blobs(source.sha256):
            if blob.is_file() and source.size in (None, blob.stat().st_size):
                return blob
    return _ollama_model(source)


def pick(names: Sequence[str], quant: str | None, *, fallback: bool = True) -> str | None:
    """The model file that llama.cpp would take for USER/REPO[:QUANT]; a first shard if split.

    Without `quant`: Q4_K_M, then Q8_0, then, if `fallback`, the first one.
    """
    models = [name for name in sorted(names) if _is_first_shard(name)]
    for wanted in DEFAULT_QUANTS if quant is None else (quant,):
        pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}[.-]", re.IGNORECASE)
        for name in models:
            if pattern.search(name):
                return name
        if not fallback:
            break
    return models[0] if models and quant is None and fallback else None


def shards(name: str) -> tuple[str, ...]:
    """The names of all parts of a split model, or only `name`."""
    match = _SHARD.search(name)
    if match is None:
        return (name,)
    count = int(match[2])
    stem = name[: match.start()]
    return tuple(f"{stem}-{index:05}-of-{count:05}.gguf" for index in range(1, count + 1))


def _is_first_shard(name: str) -> bool:
    base = name.rpartition("/")[2]
    if not base.endswith(".gguf") or any(word in base for word in _COMPANIONS):
        return False
    match = _SHARD.search(base)
    return match is None or int(match[1]) == 1


def _pick_file(directory: Path, source: ModelSource, *, fallback: bool) -> Path | None:
    if not os.access(directory, os.R_OK):
        return None
    # The hub's files are links, whose blob somebody may have removed.
    paths = [path for path in files_below(directory) if path.suffix == ".gguf" and path.is_file()]
    names = [path.relative_to(directory).as_posix() for path in paths]
    name = source.file if source.file in names else None
    if source.file is None:
        name = pick(names, source.quant, fallback=fallback)
    if name is None or not set(shards(name)) <= set(names):
        return None
    path = directory / name
    return path if source.size is None or path.stat().st_size == source.size else None


def _directories(repo: str) -> Iterator[Path]:
    """Directories that hold files of a repository under their own names."""
    yield cache_dir().joinpath("models", *repo.split("/"))
    hub = _hub_cache()
    if hub is not None:
        snapshots = hub / f"models--{repo.replace('/', '--')}" / "snapshots"
        if os.access(snapshots, os.R_OK):
            yield from sorted(snapshots.iterdir())
    if (home := _home()) is not None:
        for root in (".lmstudio", ".cache/lm-studio"):
            yield home.joinpath(root, "models", *repo.split("/"))


def _blobs(sha256: str) -> Iterator[Path]:
    """Files that their store names by this checksum."""
    hub = _hub_cache()
    if hub is not None and os.access(hub, os.R_OK):
        yield from hub.glob(f"models--*/blobs/{sha256}")
    for root in _ollama_roots():
        blob = root / "blobs" / f"sha256-{sha256}"
        if os.access(blob, os.R_OK):
            yield blob


def _ollama_model(source: ModelSource) -> Path | None:
    """What `ollama pull hf.co/USER/REPO:QUANT` has left."""
    if source.file is not None:
        return None
    wanted = (source.quant or DEFAULT_QUANTS[0]).lower()
    for root in _ollama_roots():
        manifests = root.joinpath("manifests", "hf.co", *source.repo.split("/"))
        if not os.access(manifests, os.R_OK):
            continue
        for manifest in manifests.iterdir():
            if manifest.name.lower() == wanted:
                blob = _model_layer(root, manifest)
                if blob is not None:
                    return blob
    return None


def _model_layer(root: Path, manifest: Path) -> Path | None:
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        models = [
            layer["digest"] for layer in layers if str(layer["mediaType"]).endswith("image.model")
        ]
    except (OSError, ValueError, KeyError, TypeError):
        # Another format than expected: as if the file were not there.
        return None
    # Several are the shards of a split model, which llama.cpp finds by their file names only.
    if len(models) != 1:
        return None
    blob = root / "blobs" / str(models[0]).replace(":", "-")
    return blob if os.access(blob, os.R_OK) else None


def _hub_cache() -> Path | None:
    # Read here, not from huggingface_hub: importing that takes half a second.
    chosen, root, home = _directory_in("HF_HUB_CACHE"), _directory_in("HF_HOME"), _home()
    if chosen is None and root is None and home is not None:
        root = _user_caches(home) / "huggingface"
    return chosen or (root / "hub" if root is not None else None)


def _ollama_roots() -> Iterator[Path]:
    chosen, home = _directory_in("OLLAMA_MODELS"), _home()
    if chosen is not None:
        yield chosen
    if home is not None:
        yield home / ".ollama" / "models"
    # Where the Linux installer's service keeps them.
    yield Path("/usr/share/ollama/.ollama/models")


def _user_caches(home: Path) -> Path:
    return _directory_in("XDG_CACHE_HOME") or home / ".cache"


def _directory_in(variable: str) -> Path | None:
    """The directory that an environment variable names; None if it is empty or not set."""
    value = os.environ.get(variable)
    if not value:
        return None
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise OptionError(
            f"{variable} is '{value}', the home of a user who does not exist; name a directory"
        ) from None


def _private_directory(path: Path) -> Path:
    """`path`, made if need be; everybody can write beside it, so it must be ours."""
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise OptionError(f"{path} belongs to another user; set DYSPEC_EDGE_CACHE to a directory")
    return path


def _home() -> Path | None:
    """The user's own directory; None for a user without one."""
    try:
        return Path.home()
    except RuntimeError:
        return None
