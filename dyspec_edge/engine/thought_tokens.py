"""Thoughts whose markers are control tokens, which have no text: they get the usual markers' text.

[THINK] ... [/THINK]                                                         Mistral and others
<|channel|>analysis<|message|> ... <|end|><|start|>assistant<|channel|>final<|message|>  gpt-oss
"""

from __future__ import annotations

from dyspec_edge.llama import Model
from dyspec_edge.text.thoughts import CLOSING_MARKER, OPENING_MARKER

OPENING = ("[THINK]", "<think>", "<|START_THINKING|>", "<seed:think>")
CLOSING = ("[/THINK]", "</think>", "<|END_THINKING|>", "</seed:think>")
CHANNEL, MESSAGE, END, START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
THOUGHT_CHANNEL = b"analysis"


class ThoughtMarkers:
    """Which control tokens of a model mark thoughts."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.opening, self.closing = self._ids(*OPENING), self._ids(*CLOSING)
        self.channel, self.message = self._ids(CHANNEL), self._ids(MESSAGE)
        self.end, self.start = self._ids(END), self._ids(START)

    def reply(self, shown: str = "") -> ThoughtTokens:
        """What turns the tokens of one reply into bytes.

        Args:
            shown: the text of a control token that is part of the reply's text.
        """
        return ThoughtTokens(self._model, self, self._ids(shown) if shown else frozenset())

    def _ids(self, *texts: str) -> frozenset[int]:
        """Those of the texts that are control tokens."""
        model = self._model
        cut = [model.tokenize(text, add_special=False, parse_special=True) for text in texts]
        return frozenset(ids[0] for ids in cut if len(ids) == 1 and not model.piece(ids[0]))


class ThoughtTokens:
    """The bytes of a reply's tokens, one after the other."""

    def __init__(self, model: Model, markers: ThoughtMarkers, shown: frozenset[int]) -> None:
        self._model = model
        self._markers = markers
        self._shown = shown
        self._header: bytes | None = None  # what a message is, while that is being written
        self._thinks = False

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the reply."""
        text = self._model.piece(token)
        if not text:
            return self._control(token)
        if self._header is None:
            return text
        self._header += text
        return b""

    def _control(self, token: int) -> bytes:
        markers = self._markers
        if token in self._shown:
            return self._model.piece(token, special=True)
        if token in markers.opening:
            return OPENING_MARKER.encode()
        if token in markers.closing:
            return CLOSING_MARKER.encode()
        if markers.channel and token in markers.channel | markers.start:
            self._header = b""
        elif self._header is not None and token in markers.message:
            self._thinks = self._header.strip().startswith(THOUGHT_CHANNEL)
            self._header = None
            return OPENING_MARKER.encode() if self._thinks else b""
        elif self._thinks and token in markers.end:
            self._thinks = False
            return CLOSING_MARKER.encode()
        return b""
