"""Weights that do not fit into memory: which stay, and which are read again in every pass.

A pass uses weights in a fixed order, so that a cache of the system, which keeps what was used last,
would miss all of them.  Here a fixed part stays, spread evenly over the pass so that reading never
waits for computing, and only the rest is read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dyspec_edge import llama
from dyspec_edge.errors import DeviceError
from dyspec_edge.files.model_file import FileReport, read_tensors
from dyspec_edge.llama.weights import StoredWeight, open_stream, uses_in_a_pass
from dyspec_edge.load.plan import LoadPlan
from dyspec_edge.native import Place, Use

SMALL = 1 << 16
"""Bytes up to which a weight always stays in memory."""

WINDOW = 16 << 20
"""Bytes at least that streamed weights share."""

WINDOW_WEIGHTS = (3, 2, 1)
"""How many of the largest streamed weight fit into the window, if there is room: one is used,
and two are read."""

LARGE = 8
"""A weight so many times larger than the usual one stays in memory if it can."""

ROWS_ROOM = 16 << 20
"""Bytes that rows of an embedding may take."""

SLOW = "the system reads it when it is used, which is slow: -c or a smaller draft gives room"

STEP = 64 << 20
"""Bytes between two reports of progress."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Where each weight is to be.

    Attributes:
        places: of each weight.
        order: positions of the streamed ones, as a pass uses them.
        window: bytes that these share.
        rows_room: bytes that rows may take.
        num_resident, num_streamed: bytes that stay and that are read in every pass.
    """

    places: tuple[Place, ...]
    order: tuple[int, ...]
    window: int
    rows_room: int
    num_resident: int
    num_streamed: int


def plan_stream(
    sizes: Sequence[int], uses: Sequence[tuple[int, Use]], room: int
) -> StreamPlan | None:
    """What is to stay within `room` bytes; None if streaming takes more.

    Args:
        sizes: bytes of each weight.
        uses: positions of weights and how they are used, in the order of a pass.
    """
    places = _forced_places(sizes, uses)
    order = [w for w, _ in uses if places[w] is Place.STREAMED]
    rows = sum(size for size, place in zip(sizes, places, strict=True) if place is Place.ROWS)
    rows_room = min(rows, ROWS_ROOM)
    room -= rows_room
    room -= sum(size for size, p in zip(sizes, places, strict=True) if p is Place.RESIDENT)
    window = 0
    if sum(sizes[w] for w in order) <= room:
        kept = set(order)
    else:
        kept = _large_ones(sizes, order, room)
        rest = [w for w in order if w not in kept]
        left = room - sum(sizes[w] for w in kept)
        largest = max(sizes[w] for w in rest)
        windows = (max(WINDOW, n * largest) for n in WINDOW_WEIGHTS)
        window = next((size for size in windows if size <= left), 0)
        if not window:
            return None
        kept |= _spread(sizes, rest, left - window)
    for w in kept:
        places[w] = Place.RESIDENT
    streamed = tuple(w for w in order if w not in kept)
    resident = sum(size for size, p in zip(sizes, places, strict=True) if p is Place.RESIDENT)
    return StreamPlan(
        tuple(places), streamed, window, rows_room, resident, sum(sizes[w] for w in streamed)
    )


@dataclass(frozen=True, slots=True)
class Streaming:
    """A target whose weights are read in every pass.

    Attributes:
        plan: which of them.
        speed: of the disk when the others were read, in bytes a second.
        said: what that means, as a line to show.
        maps_draft: there is no memory for the draft beside it.
    """

    plan: StreamPlan
    speed: float
    said: str
    maps_draft: bool

    @property
    def share(self) -> float:
        """Of the weights that is read in every pass, to a tenth: it changes what passes cost."""
        whole = self.plan.num_resident + self.plan.num_streamed
        return round(self.plan.num_streamed / max(1, whole), 1)


def stream_as_planned(
    target: llama.Model,
    plan: LoadPlan,
    draft: FileReport | None,
    notices: list[str],
    on_progress: Callable[[str, float], None] | None,
    *,
    wanted: bool,
) -> Streaming | None:
    """Stream where that is planned, wanted and possible, with the draft in memory if there is room.

    Args:
        notices: takes lines that say what was done.
    """
    if not plan.streamed:
        return None
    name = target.path.name
    weights = f"the weights of {name} do not fit into memory"
    if not wanted:
        notices.append(f"{weights}; --stream off leaves to the system what is read when")
        return None
    progress = (lambda done: on_progress(f"keeping {name}", done)) if on_progress else None
    try:
        found = start_stream(target, plan.room, progress)
        if found is None and draft is not None:
            room = plan.room + draft.weights_bytes
            found = start_stream(target, room, progress, maps_draft=True)
    except DeviceError as error:
        notices.append(f"{weights}, and are left to the system: {error}")
        return None
    if found is None:
        notices.append(f"{weights}, nor do the few that a pass needs at a time; {SLOW}")
        return None
    notices.append(found.said)
    if found.maps_draft and draft is not None:
        notices.append(f"{draft.path.name} does not fit beside it and is mapped; {SLOW}")
    return found


def start_stream(
    model: llama.Model,
    room: int,
    on_progress: Callable[[float], None] | None = None,
    *,
    maps_draft: bool = False,
) -> Streaming | None:
    """Stream the weights of a model that was mapped, within `room` bytes.

    Returns:
        None if more room is needed, and then all is as before.

    Raises:
        DeviceError: this system cannot do it, and all is as before; or it has no memory.
        ModelFileError: the file cannot be read.
    """
    stored = [
        StoredWeight(path, t.offset, t.num_bytes, t.num_bytes * t.shape[0] // t.num_elements)
        for path, t in read_tensors(model.path)
        if t.num_bytes
    ]
    stream, ordered = open_stream(model, stored)
    plan = plan_stream([w.size for w in ordered], uses_in_a_pass(model), room)
    if plan is None:
        model.leave_stream()
        return None
    began = time.perf_counter()
    places, order = np.array(plan.places, np.int32), np.array(plan.order, np.int32)
    stream.start(places, order, window=plan.window, rows_room=plan.rows_room)
    while left := stream.fill(STEP):
        if on_progress is not None:
            on_progress(max(0.0, 1 - left / max(1, plan.num_resident)))
    speed = stream.totals().num_bytes / max(1e-3, time.perf_counter() - began)
    return Streaming(plan, speed, said(model.path, plan, speed), maps_draft)


def said(path: Path, plan: StreamPlan, speed: float) -> str:
    """What streaming means, as a line; `speed` in bytes a second."""
    kept, read = plan.num_resident / 1e9, plan.num_streamed / 1e9
    if not plan.num_streamed:
        return f"{path.name}: {kept:.2f} GB of weights are kept in memory"
    return (
        f"{path.name} streams: {kept:.2f} GB of its weights stay in memory, {read:.2f} GB are read "
        f"in every pass at {speed / 1e6:.0f} MB/s, about {plan.num_streamed / speed:.1f} s a pass"
    )


def _forced_places(sizes: Sequence[int], uses: Sequence[tuple[int, Use]]) -> list[Place]:
    """Streamed are weights that one node multiplies; what no node uses stays as it is."""
    found: list[Place] = [Place.MAPPED] * len(sizes)
    times = Counter(w for w, _ in uses)
    of_use = {
        Use.MULTIPLIED: Place.STREAMED,
        Use.ROWS_TAKEN: Place.ROWS,
        Use.MULTIPLIED_BY_CHOICE: Place.MAPPED,
    }
    for w, use in uses:
        place = of_use.get(use, Place.RESIDENT)
        fits = times[w] == 1 or place is Place.MAPPED
        found[w] = place if fits and sizes[w] > SMALL else Place.RESIDENT
    return found


def _large_ones(sizes: Sequence[int], order: Sequence[int], room: int) -> set[int]:
    """Weights that would take too large a window, if there is room for them."""
    usual = float(np.median([sizes[w] for w in order]))
    found: set[int] = set()
    for w in sorted(order, key=lambda w: -sizes[w]):
        if sizes[w] > LARGE * usual and sizes[w] + WINDOW <= room:
            found.add(w)
            room -= sizes[w]
    return found


def _spread(sizes: Sequence[int], order: Sequence[int], room: int) -> set[int]:
    """Weights of `room` bytes, at even distances in the order of use."""
    share = room / max(1, sum(sizes[w] for w in order))
    found: set[int] = set()
    owed = 0.0
    for w in order:
        owed += share * sizes[w]
        if owed >= sizes[w]:
            found.add(w)
            owed -= sizes[w]
    return found
