"""What is kept between runs: small JSON documents in the cache directory."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

log = logging.getLogger(__name__)

Key = Mapping[str, Any]
"""What a document depends on, for JSON; it is kept beside the document and compared."""


class DiskCache:
    """JSON documents by key, one file each; nothing here fails for want of a disk.

    Args:
        directory: need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: Key) -> Any:
        """What was saved under `key`; None if there is nothing of use."""
        try:
            document = json.loads(self._path(key).read_text(encoding="utf-8"))
            return document["value"] if document["key"] == dict(key) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, key: Key, value: Any) -> None:
        """Keep `value`, all of it or nothing."""
        text = json.dumps({"key": dict(key), "value": value}, indent=1)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(
                "w", dir=self._directory, suffix=".new", encoding="utf-8", delete=False
            ) as file:
                file.write(text)
            Path(file.name).replace(self._path(key))
        except OSError as error:
            log.info("not kept for the next run: %s", error)

    def _path(self, key: Key) -> Path:
        text = json.dumps(dict(key), sort_keys=True)
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
