"""What the pieces of a reply say: thoughts, the answer's text, calls of tools."""

from __future__ import annotations

from dyspec_edge.engine import Chunk, Prompt
from dyspec_edge.text.thoughts import Kind, ThoughtSplitter
from dyspec_edge.text.tool_calls import CallPart

Part = tuple[Kind, str] | CallPart
"""Some text of a kind, or what a piece adds to a call."""


class ReplyReader:
    """Reads one reply.

    Args:
        prompt: what is being answered; a bare one is answered by text alone.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._thoughts = None if prompt.is_raw else ThoughtSplitter(inside=prompt.opens_thought)
        self._calls = prompt.tools.reader() if prompt.tools is not None else None

    @property
    def calls(self) -> list[CallPart]:
        """Calls so far, each with what is there of its arguments."""
        return self._calls.calls if self._calls is not None else []

    def feed(self, chunk: Chunk) -> list[Part]:
        """What is certain now, in order; at the last chunk everything that was held back."""
        is_last = chunk.finish_reason is not None
        texts: list[tuple[Kind, str]] = [("answer", chunk.text)] if chunk.text else []
        if self._thoughts is not None:
            texts = self._thoughts.feed(chunk.text)
            texts += self._thoughts.flush() if is_last else []
        parts = [part for kind, text in texts for part in self._called(kind, text)]
        if is_last and self._calls is not None:
            parts += [_answer(part) for part in self._calls.flush()]
        return parts

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word for the end of the reply."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    def _called(self, kind: Kind, text: str) -> list[Part]:
        if kind == "thought" or self._calls is None:
            return [(kind, text)]
        return [_answer(part) for part in self._calls.feed(text)]


def _answer(part: str | CallPart) -> Part:
    return part if isinstance(part, CallPart) else ("answer", part)
