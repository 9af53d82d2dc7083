"""Sequoia's acceptance rates of a pair, kept on disk as JSON.

Rates belong to the weights of both models, wherever the files lie, to the verifier and to a fixed
temperature of the draft; a file holds one fit per temperature of sampling.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dyspec_edge.decode.policy.sequoia import WIDTH, Acceptance
from dyspec_edge.files import stores
from dyspec_edge.load.disk_cache import DiskCache, Key

END_BYTES = 1 << 20
"""Of each end of a file, which its fingerprint reads: metadata, and the last of the weights."""


def rates_key(
    target: Path, draft: Path, verify: str, draft_temperature: float | None = None
) -> Key:
    """What acceptance rates depend on, but for the temperature.

    Args:
        target, draft: model files, of split ones the first shard.
        verify: "match" or "residual".
        draft_temperature: None for the verifier's own choice.
    """
    return {
        "target": fingerprint(target),
        "draft": fingerprint(draft),
        "verify": verify,
        "draft_temperature": draft_temperature,
    }


def fingerprint(path: Path) -> str:
    """A hash of a model file's size and of both its ends: whole files take minutes to read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(f"{size} ".encode())
        for start in (0, max(0, size - END_BYTES)):
            file.seek(start)
            digest.update(file.read(END_BYTES))
    return digest.hexdigest()


def recall(key: Key) -> tuple[Acceptance, ...]:
    """What was kept under `key`, by rising temperature; nothing if it is of no use."""
    try:
        return tuple(_as_fit(fit) for fit in _kept().load(key) or ())
    except (KeyError, TypeError, ValueError):
        return ()


def keep(key: Key, fits: Sequence[Acceptance]) -> None:
    """Add fits to those under `key`; one of the same temperature gives way."""
    by_temperature = {fit.temperature: fit for fit in (*recall(key), *fits)}
    ordered = [by_temperature[temperature] for temperature in sorted(by_temperature)]
    _kept().save(key, [asdict(fit) for fit in ordered])


def _kept() -> DiskCache:
    return DiskCache(stores.cache_dir() / "sequoia")


def _as_fit(saved: Any) -> Acceptance:
    rates = tuple(float(rate) for rate in saved["rates"])
    if len(rates) != WIDTH or min(rates) < 0 or not 0 < sum(rates) < 1 + 1e-6:
        raise ValueError("not acceptance rates")
    return Acceptance(rates, float(saved["temperature"]), int(saved["num_steps"]))
