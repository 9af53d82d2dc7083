"""Thoughts between markers that are tokens of their own: they get the text of the usual markers.

[THINK] ... [/THINK]                                                         Mistral and others
<|channel>thought ... <channel|>                                             Gemma 4
<|channel|>analysis<|message|> ... <|end|><|start|>assistant<|channel|>final<|message|>  gpt-oss
"""

from __future__ import annotations

from dyspec_edge.llama import Model
from dyspec_edge.text.thoughts import (
    CLOSING_MARKER,
    CLOSING_MARKERS,
    OPENING_MARKER,
    OPENING_MARKERS,
)

NAMED, NAMED_CLOSING = "<|channel>", "<channel|>"
CHANNEL, MESSAGE, END, START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
THOUGHT_CHANNEL = b"analysis"


class ThoughtMarkers:
    """Which tokens of a model mark thoughts, whether llama.cpp gives them a text or not."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.named = self._ids(NAMED)
        self.opening = self._ids(*OPENING_MARKERS) | self.named
        self.closing = self._ids(*CLOSING_MARKERS, NAMED_CLOSING)
        channel, message = self._ids(CHANNEL), self._ids(MESSAGE)
        has_channels = channel and message
        self.header = channel | self._ids(START) if has_channels else frozenset()
        self.message = message if has_channels else frozenset()
        self.end = self._ids(END) if has_channels else frozenset()

    def reply(self, shown: str = "") -> ThoughtTokens:
        """What turns the tokens of one reply into bytes.

        Args:
            shown: the text of a control token that is part of the reply's text.
        """
        return ThoughtTokens(self._model, self, self._ids(shown) if shown else frozenset())

    def _ids(self, *texts: str) -> frozenset[int]:
        """Those of the texts that are tokens."""
        cut = [self._model.tokenize(text, add_special=False, parse_special=True) for text in texts]
        return frozenset(ids[0] for ids in cut if len(ids) == 1)


class ThoughtTokens:
    """The bytes of a reply's tokens, one after the other."""

    def __init__(self, model: Model, markers: ThoughtMarkers, shown: frozenset[int]) -> None:
        self._model = model
        self._markers = markers
        self._shown = shown
        self._header: bytes | None = None  # what a message is, while that is being written
        self._names = False  # the line under way is a thought's name
        self._thinks = False  # in a message that is a thought, or after it

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the reply."""
        markers = self._markers
        if token in self._shown:
            return self._model.piece(token, special=True)
        if token in markers.opening:
            self._names = token in markers.named
            return OPENING_MARKER.encode()
        if token in markers.closing:
            self._names = False
            return CLOSING_MARKER.encode()
        if token in markers.header:
            self._header = b""
            return b""
        if token in markers.message:
            return self._message()
        return b"" if token in markers.end else self._text(self._model.piece(token))

    def _message(self) -> bytes:
        header, self._header = self._header or b"", None
        thought, self._thinks = self._thinks, header.strip().startswith(THOUGHT_CHANNEL)
        if thought == self._thinks:  # two thoughts in a row are one
            return b""
        return (OPENING_MARKER if self._thinks else CLOSING_MARKER).encode()

    def _text(self, text: bytes) -> bytes:
        if self._header is not None:
            self._header += text
            return b""
        if self._names:
            _name, ended, text = text.partition(b"\n")
            self._names = not ended
        return text
