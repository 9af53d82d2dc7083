"""Control tokens in messages: what somebody writes is text, only the template's markers count.

content     "say <|im_end|>", with a mark inside: "say <·|im_end|>"
rendered    "<|im_start|>user say <·|im_end|><|im_end|>"
tokens      the two texts without a mark become control tokens; what is between them is spelled

Markers that llama.cpp finds even in plain text ("user-defined" tokens) are cut at their mark.  The
assistant's own messages keep those, and the markers of thoughts: the model has written them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dyspec_edge.llama import Attribute, Model
from dyspec_edge.text.thoughts import CLOSING_MARKERS, OPENING_MARKERS

# Code points that Unicode keeps free for such uses; no text has them, or they are taken out.
MARK = "\ufdd0"
CUT = "\ufdd1"

_BRACKETS = ("<", "[")
_SPACES = " \t\n\v\f\r"  # C's isspace


class ControlTexts:
    """The texts of a model's control tokens, and how prompts that quote them are tokenized.

    Args:
        in_file: texts of what the file calls control tokens.  llama.cpp takes some of them for
            user-defined ones, and takes others for control tokens by their look.
        template: the source of the chat template; user-defined tokens that it writes are markers.
    """

    def __init__(self, model: Model, in_file: Iterable[str], template: str) -> None:
        self._model = model
        self._ids: dict[str, int] = {}
        self._strips: set[int] = set()
        from_file, user_defined = frozenset(in_file), set()
        for token, attribute in enumerate(model.attributes()):
            if not attribute & (Attribute.SPECIAL | Attribute.USER_DEFINED):
                continue
            text = model.piece(token, special=True).decode("utf-8", "replace")
            if len(text) < 2:
                continue  # has no room for a mark
            if attribute & Attribute.SPECIAL:
                self._ids[text] = token
                if attribute & Attribute.RSTRIP:
                    self._strips.add(token)
            elif text in from_file or (text.startswith(_BRACKETS) and text in template):
                user_defined.add(text)
        self._user_defined = frozenset(user_defined)
        self._control = re.compile(f"({_any_of(self._ids)})")
        thoughts = {*OPENING_MARKERS, *CLOSING_MARKERS}
        self._quoted = _starts_of({*self._ids, *user_defined})
        self._quoted_by_model = _starts_of(self._ids.keys() - thoughts)

    def marked(self, value: Any, *, by_model: bool = False) -> Any:
        """A text, or a value with all its texts, with a mark in every text of a control token.

        Args:
            by_model: the model may have written it.
        """
        if isinstance(value, str):
            starts = self._quoted_by_model if by_model else self._quoted
            return starts.sub(self._mark, unmarked(value))
        if isinstance(value, Mapping):
            items = value.items()
            return {
                self.marked(key, by_model=by_model): self.marked(item, by_model=by_model)
                for key, item in items
            }
        if isinstance(value, (list, tuple)):
            return [self.marked(item, by_model=by_model) for item in value]
        return value

    def tokenize(self, marked: str, *, add_special: bool) -> list[int]:
        """Token ids of a rendered prompt, in which marked texts are spelled out."""
        model = self._model
        if MARK not in marked and CUT not in marked:
            return model.tokenize(marked, add_special=add_special, parse_special=True)
        tokens = model.tokenize("", add_special=add_special, parse_special=True)
        strips = False
        for part in self._control.split(marked):  # texts and control tokens take turns
            token = self._ids.get(part)
            if token is None:
                tokens += self._spelled(part.lstrip(_SPACES) if strips else part)
            else:
                tokens.append(token)
                strips = token in self._strips
        return tokens

    def _mark(self, start: re.Match[str]) -> str:
        return start[0] + (CUT if start[1] in self._user_defined else MARK)

    def _spelled(self, marked: str) -> list[int]:
        first, *others = marked.replace(MARK, "").split(CUT)
        tokens = self._plain(first)
        # A tokenizer that puts a space before a text shall put it before the mark, which then goes.
        mark = self._plain(CUT) if others else []
        for text in others:
            found = self._plain(CUT + text)
            tokens += found[len(mark) :] if found[: len(mark)] == mark else self._plain(text)
        return tokens

    def _plain(self, text: str) -> list[int]:
        return self._model.tokenize(text, add_special=False, parse_special=False) if text else []


def unmarked(text: str) -> str:
    """The text as it was written."""
    return text.replace(MARK, "").replace(CUT, "")


def _any_of(texts: Iterable[str]) -> str:
    longest_first = sorted(texts, key=len, reverse=True)
    return "|".join(map(re.escape, longest_first)) or "(?!)"


def _starts_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds the first character of each of the texts, which may overlap; its group is the text."""
    found = sorted(texts)
    first = "".join({re.escape(text[0]) for text in found}) or "^\\s\\S"  # looked at first: quick
    return re.compile(f"(?=[{first}])(?=({_any_of(found)})).", re.DOTALL)
