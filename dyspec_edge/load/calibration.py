"""Cost curves of the models at hand: measured once, kept on disk.

A curve belongs to a file, a device, a number of threads, a cache type and a version of llama.cpp;
whatever differs, or cannot be read, is measured again.  Of a kept curve a few points are measured
at each load, and what use has taught is kept with it.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import DRAFT_SIZES, FLAT_SIZES, TARGET_SIZES, CostCurve
from dyspec_edge.decode.measuring import DISTURBED, look_again, measure_curve
from dyspec_edge.decode.policy import Policy
from dyspec_edge.decode.prices import Prices
from dyspec_edge.load.disk_cache import DiskCache, Key

log = logging.getLogger(__name__)

Report = Callable[[float], None]

TARGET_SHARE = 0.8
"""Of the time that measuring takes."""


def file_key(path: Path, **conditions: Any) -> Key:
    """What a curve depends on.

    Args:
        path: the model's first file; it counts by name, size and time.
        conditions: layers on which devices, threads, cache types and the like.
    """
    status = path.stat()
    return {
        "file": path.name,
        "size": status.st_size,
        "modified": status.st_mtime_ns,
        "machine": f"{platform.node()} {platform.machine()} {os.cpu_count()}",
        "llama-cpp-python": version("llama-cpp-python"),
        **conditions,
    }


class Calibrator:
    """Measures what is loaded, or finds what was measured before.

    Args:
        kept: where curves and what was learned are kept.
        target_key, draft_key: see `file_key`.
        afresh: measure even what is kept.
        is_streamed: the target's weights are read in every pass.
    """

    def __init__(
        self,
        kept: DiskCache,
        target_key: Key,
        draft_key: Key | None,
        *,
        afresh: bool = False,
        is_streamed: bool = False,
    ) -> None:
        self._kept = kept
        self._keys = target_key, draft_key
        self._afresh = afresh
        self._sizes = FLAT_SIZES if is_streamed else TARGET_SIZES

    def calibrate(
        self, target: Cache, draft: Cache | None, on_progress: Report | None = None
    ) -> Prices:
        """The curves of what is loaded.

        Args:
            on_progress: called with the fraction done.
        """
        report = on_progress or (lambda _fraction: None)
        target_key, draft_key = self._keys
        share = TARGET_SHARE if draft is not None else 1.0
        target_curve, measured = self._curve(
            target, target_key, self._sizes, lambda x: report(share * x)
        )
        draft_curve = None
        if draft is not None and draft_key is not None:
            draft_curve, also = self._curve(
                draft, draft_key, DRAFT_SIZES, lambda x: report(share + (1 - share) * x)
            )
            measured = measured or also
            # Both are compared: what began or ended in between made one of them look dear.
            if not 1 / DISTURBED < target.time_pass(1) / target_curve.at(1) < DISTURBED:
                target_curve = replace(target_curve, sure=frozenset({1}), disturbed=True)
        return Prices(target_curve, draft_curve, measured)

    def recall(self, policy: Policy) -> Mapping[str, Any] | None:
        """Give a policy what an earlier one of its kind has learned with these models.

        Returns:
            What it was; None if nothing of use is kept.
        """
        saved = None if self._afresh else self._kept.load(self._learned_key(policy))
        if not isinstance(saved, Mapping):
            return None
        try:
            policy.restore(saved)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            log.info("what was learned is of no use: %s", error)
            return None
        return saved

    def remember(self, policy: Policy) -> None:
        """Keep what the policy has learned, and what its passes have taught about prices."""
        self._kept.save(self._learned_key(policy), policy.as_dict())
        if policy.prices is not None:
            prices = policy.prices.as_prices()
            for key, curve in zip(self._keys, (prices.target, prices.draft), strict=True):
                if key is not None and curve is not None:
                    self._keep(key, curve)

    def _learned_key(self, policy: Policy) -> Key:
        target_key, draft_key = self._keys
        used = draft_key if policy.uses_draft else None
        return {"learned": policy.name, "target": target_key, "draft": used}

    def _curve(
        self, cache: Cache, key: Key, sizes: tuple[int, ...], report: Report
    ) -> tuple[CostCurve, bool]:
        kept = None if self._afresh else _as_curve(self._kept.load(key))
        if kept is None:
            curve = measure_curve(cache, sizes, report, is_flat=sizes is FLAT_SIZES)
        else:
            curve = look_again(cache, kept, sizes)
            report(1.0)
        self._keep(key, curve)
        return curve, kept is None

    def _keep(self, key: Key, curve: CostCurve) -> None:
        document = {
            "sizes": curve.sizes,
            "seconds": curve.seconds,
            "padded": curve.padded,
            "looks": curve.looks,
        }
        self._kept.save(key, document)


def _as_curve(document: Any) -> CostCurve | None:
    """A curve as `Calibrator` saves it; None for anything else."""
    try:
        sizes = tuple(int(n) for n in document["sizes"])
        seconds = tuple(float(s) for s in document["seconds"])
        padded, looks = bool(document["padded"]), int(document.get("looks", 0))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    sound = len(sizes) == len(seconds) > 0 and sizes[0] == 1 and sorted(set(sizes)) == [*sizes]
    if not sound or not all(1e-9 < s < 1e6 for s in seconds):
        return None
    return CostCurve(sizes, seconds, padded, looks=looks)
