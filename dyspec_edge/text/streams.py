"""Three streams between token bytes and the reader: characters, stop strings, thoughts.

    bytes -> Utf8Stream -> str -> StopStrings -> str -> ThoughtSplitter -> ("thought", str), ...

Each is fed pieces of any size and releases what is certain; what it has released never depends on
how the text was cut into pieces, so a reply reads the same whether tokens come one by one or ten
at a time.  Nothing here knows of tokens, models or terminals.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal

from dyspec_edge.errors import OptionError

Kind = Literal["thought", "answer"]

OPENING_MARKER = "<think>"
CLOSING_MARKER = "</think>"


class Utf8Stream:
    """Bytes in, whole characters out.

    A character split over pieces is held until its last byte is there.  A byte that can no longer
    become part of a character turns into U+FFFD, as `bytes.decode("utf-8", "replace")` would do.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def num_pending(self) -> int:
        """Bytes held back: the beginning of a character."""
        return len(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        """The characters that `data` completes."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end of the text: U+FFFD for an incomplete character, else "".  Starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


class StopStrings:
    """Ends a text before the first stop string, and never releases a part of one.

    The stop string whose last character comes first wins, the longest among those that end
    together: what token-by-token decoding would have met first.

    Raises:
        OptionError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise OptionError("a stop string is empty; leave it out or give it some characters")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop string was met (now or earlier)."""
        if self._stopped:
            return "", True
        pending = self._held + text
        found = [(at + len(s), at) for s in self._stops if (at := pending.find(s)) >= 0]
        if found:
            self._stopped, self._held = True, ""
            return pending[: min(found)[1]], True
        size = _partial_match(pending, self._stops, self._longest)
        self._held = pending[len(pending) - size :]
        return pending[: len(pending) - size], False

    def flush(self) -> str:
        """The text held back, when the reply has ended without a stop string."""
        held, self._held = self._held, ""
        return held


class ThoughtSplitter:
    """Tells the thought before an answer from the answer itself.

    Only a reply that begins with the marker (white space apart) has a thought: one that quotes
    `<think>` later on is an answer throughout.  White space at both ends of the thought and
    before the answer that follows it belongs to neither.  An unclosed thought lasts to the end.

    Args:
        inside: the prompt has already opened the thought (see `opens_thought`).
    """

    def __init__(
        self,
        *,
        inside: bool = False,
        opening: str = OPENING_MARKER,
        closing: str = CLOSING_MARKER,
    ) -> None:
        self._opening = opening
        self._closing = closing
        self._state: Literal["start", "thought", "answer"] = "thought" if inside else "start"
        self._held = ""
        self._at_edge = inside  # white space that comes now is dropped

    @property
    def in_thought(self) -> bool:
        """Whether the text up to here ends inside a thought."""
        return self._state == "thought"

    def feed(self, delta: str) -> list[tuple[Kind, str]]:
        """The parts that are certain now, in order; none of them is empty."""
        self._held += delta
        parts: list[tuple[Kind, str]] = []
        if self._state == "start":
            self._begin()
        if self._state == "thought":
            self._think(parts)
        if self._state == "answer":
            self._release(parts, "answer", len(self._held))
        return parts

    def flush(self) -> list[tuple[Kind, str]]:
        """What is still held when the reply has ended, a partial marker included."""
        kind: Kind = "thought" if self._state == "thought" else "answer"
        parts: list[tuple[Kind, str]] = []
        if kind == "thought":
            self._held = self._held.rstrip()
        self._release(parts, kind, len(self._held))
        return parts

    def _begin(self) -> None:
        body = self._held.lstrip()
        if body.startswith(self._opening):
            self._held = body[len(self._opening) :]
            self._state, self._at_edge = "thought", True
        elif not self._opening.startswith(body):
            self._state = "answer"

    def _think(self, parts: list[tuple[Kind, str]]) -> None:
        end = self._held.find(self._closing)
        if end >= 0:
            rest = self._held[end + len(self._closing) :]
            self._held = self._held[:end].rstrip()
            self._release(parts, "thought", len(self._held))
            self._held, self._state, self._at_edge = rest, "answer", True
            return
        certain = len(self._held) - _partial_match(self._held, (self._closing,), len(self._closing))
        self._release(parts, "thought", len(self._held[:certain].rstrip()))

    def _release(self, parts: list[tuple[Kind, str]], kind: Kind, size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        if self._at_edge:
            text = text.lstrip()
            self._at_edge = not text
        if text:
            parts.append((kind, text))


def split_thoughts(text: str, *, inside: bool = False) -> tuple[str, str]:
    """(thought, answer) of a whole reply: what `ThoughtSplitter` gives, put together."""
    splitter = ThoughtSplitter(inside=inside)
    parts = splitter.feed(text) + splitter.flush()
    return (
        "".join(part for kind, part in parts if kind == "thought"),
        "".join(part for kind, part in parts if kind == "answer"),
    )


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt ends by opening a thought, as some chat templates do."""
    return prompt.rstrip().endswith(OPENING_MARKER)


def _partial_match(text: str, stops: Sequence[str], longest: int) -> int:
    # The longest end of the text that a stop string begins with; a whole one is the caller's.
    for size in range(min(longest - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0
