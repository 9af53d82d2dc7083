"""What llama-cpp-python's `Llama` returns: completions and chats, whole and in chunks.

Source: llama_cpp/llama_types.py and llama_chat_format.py of version 0.3.36.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.engine import Chunk, Prompt
from dyspec_edge.text.thoughts import ThoughtSplitter
from dyspec_edge.text.tool_calls import CallPart, Parts

Answer = dict[str, Any]
TextOf = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the answer to one request.

    Args:
        model: its name in the answer.
        prompt: what is answered.
        text_of: the text of tokens.
        offset: where the reply's text begins, as log-probabilities count it.
        before: text that is shown in front of the reply (`echo`).
    """

    model: str
    prompt: Prompt
    text_of: TextOf
    offset: int = 0
    before: str = ""
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, chunks: Iterable[Chunk]) -> Answer:
        """A whole text."""
        found = _Whole(chunks)
        choice = {
            "text": self.before + found.text,
            "index": 0,
            "logprobs": self._logprobs(found.likely, 0, found.tokens),
            "finish_reason": found.reason,
        }
        return {**self._head("text_completion"), "choices": [choice], "usage": self._usage(found)}

    def completion_chunks(self, chunks: Iterable[Chunk]) -> Iterator[Answer]:
        """A text piece by piece; the last one has the reason of the end and no text."""
        tokens: list[int] = []
        for chunk in chunks:
            likely = self._logprobs(chunk.logprobs, len(tokens), [*tokens, *chunk.tokens])
            tokens += chunk.tokens
            if chunk.text or chunk.tokens:
                yield self._text_chunk(chunk.text, likely, None)
            if chunk.finish_reason is not None:
                yield self._text_chunk("", None, _reason(chunk.finish_reason))

    def chat(self, chunks: Iterable[Chunk]) -> Answer:
        """A whole message."""
        found = _Whole(chunks)
        message: Answer = {"role": "assistant", "content": found.text}
        reason = found.reason
        if self.prompt.tools is not None:
            reader = self.prompt.tools.reader()
            split = ThoughtSplitter(inside=self.prompt.opens_thought)
            pieces = [*split.feed(found.text), *split.flush()]
            answer = "".join(text for kind, text in pieces if kind == "answer")
            parts = [*reader.feed(answer), *reader.flush()]
            thought = "".join(text for kind, text in pieces if kind == "thought")
            content = "".join(part for part in parts if isinstance(part, str))
            message["content"] = content or (None if reader.calls else "")
            if thought:
                message["reasoning_content"] = thought
            if reader.calls:
                message["tool_calls"] = [call.as_call() for call in reader.calls]
                reason = "tool_calls" if reason == "stop" else reason
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _as_chat(self._logprobs(found.likely, 0, found.tokens)),
            "finish_reason": reason,
        }
        head = self._head("chat.completion")
        return {**head, "choices": [choice], "usage": self._usage(found)}

    def chat_chunks(self, chunks: Iterable[Chunk]) -> Iterator[Answer]:
        """A message piece by piece: its role, its text and calls, the reason of the end."""
        yield self._delta({"role": "assistant"}, None, None)
        use = self.prompt.tools
        reader = use.reader() if use is not None else None
        split = ThoughtSplitter(inside=self.prompt.opens_thought)
        tokens: list[int] = []
        for chunk in chunks:
            likely = self._logprobs(chunk.logprobs, len(tokens), [*tokens, *chunk.tokens])
            tokens += chunk.tokens
            reason = chunk.finish_reason
            if reader is None:
                if chunk.text or chunk.tokens:
                    yield self._delta({"content": chunk.text}, _as_chat(likely), None)
            else:
                pieces = [*split.feed(chunk.text), *(split.flush() if reason is not None else [])]
                for kind, text in pieces:
                    if kind == "thought":
                        yield self._delta({"reasoning_content": text}, None, None)
                    else:
                        yield from self._parts(reader.feed(text))
                yield from self._parts(reader.flush() if reason is not None else [])
            if reason is not None:
                has_calls = reader is not None and reader.calls and reason == "stop"
                yield self._delta({}, None, "tool_calls" if has_calls else _reason(reason))

    def _parts(self, parts: Parts) -> Iterator[Answer]:
        for part in parts:
            if isinstance(part, CallPart):
                yield self._delta({"tool_calls": [part.as_delta()]}, None, None)
            else:
                yield self._delta({"content": part}, None, None)

    def _head(self, kind: str) -> Answer:
        name = f"chat{self.id}" if kind.startswith("chat") else self.id
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def _text_chunk(self, text: str, likely: Answer | None, reason: str | None) -> Answer:
        choice = {"text": text, "index": 0, "logprobs": likely, "finish_reason": reason}
        return {**self._head("text_completion"), "choices": [choice]}

    def _delta(self, delta: Answer, likely: Answer | None, reason: str | None) -> Answer:
        choice = {"index": 0, "delta": delta, "logprobs": likely, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _usage(self, found: _Whole) -> Answer:
        read, written = len(self.prompt.tokens), len(found.tokens)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }

    def _logprobs(
        self, likely: Sequence[TokenLogprobs] | None, first: int, tokens: Sequence[int]
    ) -> Answer | None:
        """Those of tokens from the index `first` on."""
        if likely is None:
            return None
        offsets = [
            self.offset + len(self.text_of(tokens[: first + i])) for i, _ in enumerate(likely)
        ]
        texts = [self.text_of([one.token]) for one in likely]
        top = [
            {**{self.text_of([token]): value for token, value in one.top}, text: one.logprob}
            for one, text in zip(likely, texts, strict=True)
        ]
        return {
            "tokens": texts,
            "text_offset": offsets,
            "token_logprobs": [one.logprob for one in likely],
            "top_logprobs": top,
        }


class _Whole:
    """All chunks of a reply."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self.text, self.reason = "", "stop"
        self.tokens: list[int] = []
        self.likely: list[TokenLogprobs] | None = None
        for chunk in chunks:
            self.text += chunk.text
            self.tokens += chunk.tokens
            if chunk.logprobs is not None:
                self.likely = [*(self.likely or []), *chunk.logprobs]
            if chunk.finish_reason is not None:
                self.reason = _reason(chunk.finish_reason)


def _reason(reason: str) -> str:
    """Why it ended, in the two words that there are for it."""
    return "length" if reason == "length" else "stop"


def _as_chat(likely: Answer | None) -> Answer | None:
    """The log-probabilities of a text as a chat has them."""
    if likely is None:
        return None
    columns = (likely["tokens"], likely["token_logprobs"], likely["top_logprobs"])
    content = [
        {
            "token": token,
            "bytes": None,
            "logprob": value,
            "top_logprobs": [
                {"token": other, "logprob": its, "bytes": None} for other, its in top.items()
            ],
        }
        for token, value, top in zip(*columns, strict=True)
    ]
    return {"content": content, "refusal": None}
