"""A reply with its token trees as one self-contained HTML file.

`static/trace.html` is the template: built from `page/`, with a place for one JSON document.  What
the document must hold is known to the page alone (`page/src/trace.tsx`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dyspec_edge.errors import DyspecError

_TEMPLATE = Path(__file__).parent / "static" / "trace.html"
_PLACE = "{{trace}}"


def _embeddable(document: Mapping[str, object]) -> str:
    # json writes everything beyond ASCII as an escape; a "<" could end the script that holds it.
    return json.dumps(document, allow_nan=False).replace("<", "\\u003c")


def write_trace(document: Mapping[str, object], path: Path) -> None:
    """Write a page that shows the document and needs nothing else: no server, no network.

    Args:
        document: `prompt`, `model`, `settings`, `steps` and `timings`.
        path: the file; one that exists is replaced.

    Raises:
        DyspecError: the file cannot be written.
        ValueError: a figure is infinite or not a number.
    """
    before, after = _TEMPLATE.read_text(encoding="utf-8").split(_PLACE)
    page = before + _embeddable(document) + after
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DyspecError(f"cannot write the trace '{path}': {reason}") from error
