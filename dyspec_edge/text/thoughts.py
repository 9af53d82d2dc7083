"""Thoughts: what a model writes between <think> and </think> before its answer."""

from __future__ import annotations

from typing import Literal

from dyspec_edge.text.stop_strings import partial_match

Kind = Literal["thought", "answer"]

OPENING_MARKER = "<think>"
CLOSING_MARKER = "</think>"

# What other models have in their place.
OPENING_MARKERS = (OPENING_MARKER, "[THINK]", "<|START_THINKING|>", "<seed:think>", "<mm:think>")
CLOSING_MARKERS = (CLOSING_MARKER, "[/THINK]", "<|END_THINKING|>", "</seed:think>", "</mm:think>")


class ThoughtSplitter:
    """Tells the thought before an answer from the answer itself.

    Only a reply that begins with the marker (white space apart) has a thought: one that quotes
    `<think>` later on is an answer throughout.  White space at both ends of the thought and
    before the answer that follows it belongs to neither.  An unclosed thought lasts to the end.

    Args:
        inside: the prompt has already opened the thought (see `opens_thought`).
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._state: Literal["start", "thought", "answer"] = "thought" if inside else "start"
        self._held = ""
        self._at_edge = inside  # white space that comes now is dropped

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
        if body.startswith(OPENING_MARKER):
            self._held = body[len(OPENING_MARKER) :]
            self._state, self._at_edge = "thought", True
        elif not OPENING_MARKER.startswith(body):
            self._state = "answer"

    def _think(self, parts: list[tuple[Kind, str]]) -> None:
        end = self._held.find(CLOSING_MARKER)
        if end >= 0:
            rest = self._held[end + len(CLOSING_MARKER) :]
            self._held = self._held[:end].rstrip()
            self._release(parts, "thought", len(self._held))
            self._held, self._state, self._at_edge = rest, "answer", True
            return
        certain = len(self._held) - partial_match(self._held, (CLOSING_MARKER,))
        self._release(parts, "thought", len(self._held[:certain].rstrip()))

    def _release(self, parts: list[tuple[Kind, str]], kind: Kind, size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        if self._at_edge:
            text = text.lstrip()
            self._at_edge = not text
        if text:
            parts.append((kind, text))


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt ends by opening a thought, as some chat templates do."""
    return prompt.rstrip().endswith(OPENING_MARKERS)
