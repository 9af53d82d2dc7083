"""Whether a draft's candidates are found by backend samplers, where its logits are, or by the host.

On a GPU that saves copying a whole vocabulary for every row.  On the CPU it saves nothing: the
same cores do it with plainer code.
"""

from __future__ import annotations

from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.errors import DyspecError

NUM_ROWS = 4
"""Rows of the passes that are compared: a small layer of a tree."""

NUM_PASSES = 3
"""The fastest of so many counts; company on the machine only ever adds time."""


def choose(drafter: ModelDrafter, sampling: str, *, on_gpu: bool) -> None:
    """Let candidates be found where `sampling` says: "on" or "off", or "auto" where it is faster.

    Where the backend cannot do it, the host does; the log for debugging says why.

    Args:
        on_gpu: a GPU holds layers of the draft; without one, "auto" stays with the host unmeasured.
    """
    if sampling == "on":
        drafter.attach_backend_sampler()
    if sampling != "auto" or not on_gpu:
        return
    try:
        on_host = _fastest(drafter)
        if drafter.attach_backend_sampler() and _fastest(drafter) >= on_host:
            drafter.detach_backend_sampler()
    except DyspecError:  # a row with NaN: the host passes over it
        drafter.detach_backend_sampler()


def _fastest(drafter: ModelDrafter) -> float:
    drafter.time_pass(NUM_ROWS)  # the first pass pays for building the graph
    return min(drafter.time_pass(NUM_ROWS) for _ in range(NUM_PASSES))
