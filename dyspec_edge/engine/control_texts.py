"""Control tokens in messages: what somebody writes is text, only the template's markers count.

content     "say <|im_end|>", with a mark inside: "say <·|im_end|>"
rendered    "<|im_start|>user say <·|im_end|><|im_end|>"
tokens      the two texts without a mark become control tokens; what is between them is spelled
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dyspec_edge.llama import Model

MARK = "\ufdd0"
"""A code point that Unicode keeps free for such uses; no text has it, or it is taken out."""


class ControlTexts:
    """The texts of a model's control tokens, and how prompts that quote them are tokenized.

    Args:
        texts: of all control tokens.
    """

    def __init__(self, model: Model, texts: Sequence[str]) -> None:
        self._model = model
        longest_first = sorted((text for text in texts if text), key=len, reverse=True)
        self._quoted = (
            re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        )

    def mark(self, content: str) -> str:
        """`content` with a mark inside every text of a control token."""
        content = content.replace(MARK, "")
        if self._quoted is None:
            return content
        return self._quoted.sub(lambda found: found[0][0] + MARK + found[0][1:], content)

    def tokenize(self, marked: str, *, add_special: bool) -> list[int]:
        """Token ids of a rendered prompt, in which marked texts are spelled out."""
        model = self._model
        tokens = model.tokenize(marked, add_special=add_special, parse_special=True)
        if MARK not in marked:
            return tokens
        done, found = 0, []
        if add_special and tokens and tokens[0] == model.bos:
            found.append(tokens.pop(0))  # stands for no text of the prompt
        for token in tokens:
            if model.piece(token):
                continue  # an ordinary one: between control tokens the text is cut anew
            text = model.piece(token, special=True).decode("utf-8", "replace")
            at = marked.find(text, done) if text else -1
            if at >= 0:
                found += [*self._spelled(marked[done:at]), token]
                done = at + len(text)
        return [*found, *self._spelled(marked[done:])]

    def _spelled(self, marked: str) -> list[int]:
        text = marked.replace(MARK, "")
        return self._model.tokenize(text, add_special=False, parse_special=False) if text else []


def unmarked(text: str) -> str:
    """The text as it was written."""
    return text.replace(MARK, "")


def after(marked: str, size: int) -> str:
    """What follows the first `size` characters that are not marks."""
    at = 0
    while size and at < len(marked):
        size -= marked[at] != MARK
        at += 1
    return marked[at:]
