"""Cost curves of the models at hand: measured once, kept on disk, told in plain words.

A curve belongs to a file, a device, a number of threads, a cache type and a version of llama.cpp;
whatever differs, or cannot be read, is measured again.  Of a kept curve only one point is
measured, which says how fast the machine is today.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import DRAFT_SIZES, TARGET_SIZES, CostCurve, chain_rate, measure_curve
from dyspec_edge.decode.policy.priced import HEADROOM, HOPE, ROWS, PricedPolicy

log = logging.getLogger(__name__)

Key = Mapping[str, Any]
Report = Callable[[float], None]

ACCEPTANCES = (0.5, 0.7, 0.8, 0.9)
"""Acceptance rates for which a speedup is predicted."""

SAME_MACHINE = 2.0
"""A kept curve whose first point is off by more than this factor is measured again."""

TARGET_SHARE = 0.8
"""Of the time that measuring takes."""


def file_key(path: Path, **circumstances: Any) -> Key:
    """What a curve depends on.

    Args:
        path: the model's first file; it counts by name, size and time.
        circumstances: layers on which devices, threads, cache types and the like.
    """
    status = path.stat()
    return {
        "file": path.name,
        "size": status.st_size,
        "modified": status.st_mtime_ns,
        "machine": f"{platform.node()} {platform.machine()} {os.cpu_count()}",
        "llama-cpp-python": version("llama-cpp-python"),
        **circumstances,
    }


class Shelf:
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
            log.info("curves are not kept: %s", error)

    def _path(self, key: Key) -> Path:
        text = json.dumps(dict(key), sort_keys=True)
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What passes cost here, and what follows from it.

    Attributes:
        target, draft: curves; draft is None where there is none.
        measured: at this load, not at an earlier one.
    """

    target: CostCurve
    draft: CostCurve | None
    measured: bool

    def speedup(self, acceptance: float) -> float:
        """The best chain of drafted tokens against plain decoding, at that acceptance rate."""
        return self._chain(self.draft.at(1) if self.draft else None, acceptance)

    def copy_speedup(self, acceptance: float) -> float:
        """The same for tokens copied from the text, which cost no draft pass."""
        return self._chain(0.0, acceptance)

    @property
    def verdict(self) -> str:
        """One sentence: what kind of target this is here, and what will pay."""
        flat = self.target.at(8) / self.target.at(1)
        kind = "compute-bound"
        if flat < 1.5:
            kind = "bound by reading its weights, rows are nearly free"
        elif flat < 3:
            kind = "memory-bound"
        copies = self.copy_speedup(0.9) >= HEADROOM
        lookup = "prompt lookup will" if copies else "nor will prompt lookup"
        if self.draft is None:
            pays = "prompt lookup will pay" if copies else "prompt lookup will not pay"
        elif self.speedup(HOPE) < HEADROOM:
            pays = f"a draft model will not pay, {lookup}"
        elif self.speedup(0.8) < 1.1:
            pays = "a draft model will pay where the text is easy" + ", prompt lookup too" * copies
        else:
            pays = "a draft model will pay" + ", large trees too" * (flat < 1.5)
        return f"this target on this machine is {kind}: {pays}"

    @property
    def prices(self) -> str:
        """The curves in a few words."""
        plain = self.target.at(1)
        sizes = [n for n in self.target.sizes[1:] if n in (4, 8, 16, 32, 64)]
        rows = ", ".join(f"T({n}) {self.target.at(n) / plain:.1f}x" for n in sizes)
        draft = f", D(1) {milliseconds(self.draft.at(1))}" if self.draft else ""
        return f"T(1) {milliseconds(plain)}, {rows}{draft}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds by rows, whether passes are padded, predictions by acceptance rate."""

        def points(curve: CostCurve | None) -> dict[str, float] | None:
            if curve is None:
                return None
            return {str(n): s for n, s in zip(curve.sizes, curve.seconds, strict=True)}

        return {
            "target_seconds": points(self.target),
            "draft_seconds": points(self.draft),
            "padded": self.target.padded,
            "draft_speedup": {str(a): self.speedup(a) for a in ACCEPTANCES} if self.draft else None,
            "copy_speedup": {str(a): self.copy_speedup(a) for a in ACCEPTANCES},
            "verdict": self.verdict,
            "measured": self.measured,
        }

    def _chain(self, draft_seconds: float | None, acceptance: float) -> float:
        rate = chain_rate(self.target.table(ROWS), draft_seconds, acceptance)
        return rate * self.target.at(1)


class Calibrator:
    """Measures what is loaded, or finds what was measured before.

    Args:
        shelf: where curves and what was learned are kept.
        target_key, draft_key: see `file_key`.
        afresh: measure even what is kept.
    """

    def __init__(
        self, shelf: Shelf, target_key: Key, draft_key: Key | None, *, afresh: bool = False
    ) -> None:
        self._shelf = shelf
        self._keys = target_key, draft_key
        self._afresh = afresh

    def calibrate(
        self, target: Cache, draft: Cache | None, on_progress: Report | None = None
    ) -> Calibration:
        """The curves of what is loaded.

        Args:
            on_progress: called with the fraction done.
        """
        report = on_progress or (lambda _fraction: None)
        target_key, draft_key = self._keys
        share = TARGET_SHARE if draft is not None else 1.0
        target_curve, measured = self._curve(
            target, target_key, TARGET_SIZES, lambda x: report(share * x)
        )
        draft_curve = None
        if draft is not None and draft_key is not None:
            draft_curve, also = self._curve(
                draft, draft_key, DRAFT_SIZES, lambda x: report(share + (1 - share) * x)
            )
            measured = measured or also
        return Calibration(target_curve, draft_curve, measured)

    def recall(self, policy: PricedPolicy) -> None:
        """Give the policy what an earlier one learned with these models, if anything."""
        saved = None if self._afresh else self._shelf.load(self._learned_key)
        if saved is None:
            return
        try:
            policy.restore(saved)
        except (KeyError, TypeError, ValueError) as error:
            log.info("what was learned is of no use: %s", error)

    def remember(self, policy: PricedPolicy) -> None:
        """Keep what the policy has learned, if it was used at all."""
        if policy.seconds > 0:
            self._shelf.save(self._learned_key, policy.as_dict())

    @property
    def _learned_key(self) -> Key:
        return {"learned": "priced", "target": self._keys[0], "draft": self._keys[1]}

    def _curve(
        self, cache: Cache, key: Key, sizes: tuple[int, ...], report: Report
    ) -> tuple[CostCurve, bool]:
        kept = None if self._afresh else _as_curve(self._shelf.load(key))
        if kept is not None:
            now = measure_curve(cache, (1,)).at(1)
            factor = now / kept.at(1)
            if 1 / SAME_MACHINE < factor < SAME_MACHINE:
                report(1.0)
                return kept.scaled(factor), False
        curve = measure_curve(cache, sizes, report)
        self._shelf.save(key, asdict(curve))
        return curve, True


def milliseconds(seconds: float) -> str:
    """As text, with three digits at least."""
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _as_curve(document: Any) -> CostCurve | None:
    """A curve as `Calibrator` saves it; None for anything else."""
    try:
        sizes = tuple(int(n) for n in document["sizes"])
        seconds = tuple(float(s) for s in document["seconds"])
        padded = bool(document["padded"])
    except (KeyError, TypeError, ValueError):
        return None
    sound = len(sizes) == len(seconds) > 0 and sizes[0] == 1 and sorted(set(sizes)) == [*sizes]
    return (
        CostCurve(sizes, seconds, padded) if sound and all(0 < s < 1e6 for s in seconds) else None
    )
