"""Plots are an optional extra: is it there, and can the file be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dyspec_edge.errors import DyspecError, OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_matplotlib(option: str) -> None:
    """Raise OptionError where matplotlib is missing, before minutes are spent on measuring."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise OptionError(
            f"{option} needs matplotlib: pip install 'dyspec-edge[plots]', or leave it out"
        ) from None


def save(figure: Figure, path: Path) -> None:
    """Write a figure, in the format that the name ends in.

    Raises:
        DyspecError: the file cannot be written.
    """
    try:
        figure.savefig(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DyspecError(f"cannot write the plot '{path}': {reason}") from error
