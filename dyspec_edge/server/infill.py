"""Prompts for filling in the middle: what stands before and after the place, and other files.

[repository] name [separator] file, text ... [separator] this file [prefix] . [suffix] . [middle]

Source: Qwen2.5-Coder (arXiv 2409.12186, section 3.2), as llama-server builds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dyspec_edge.engine import Prompt
from dyspec_edge.llama import Model
from dyspec_edge.server.errors import ApiError

PREFIX_SHARE = 0.75
"""Of the room for the file itself, what the text before the place may take if both are long."""

REPLY_ROOM = 256
"""Tokens that are left for the reply where a request names no number."""

Extra = tuple[str, str]
"""A file's name and its text."""


def infill_prompt(
    model: Model,
    prefix: str,
    suffix: str,
    extra: Sequence[Extra] = (),
    *,
    begun: str = "",
    num_ctx: int,
    max_tokens: int | None,
) -> Prompt:
    """The prompt whose reply belongs between prefix and suffix.

    What is too long for the context is cut where it is farthest from the place.

    Args:
        extra: other files, the most important one last.
        begun: the beginning of the reply.

    Raises:
        ApiError: 501, the model was not trained for it.
    """
    marks = model.infill_tokens
    if marks is None:
        raise ApiError(
            501,
            "this model has no tokens for filling in the middle; use one that was trained for it "
            "(Qwen2.5-Coder, CodeLlama ...)",
            "not_supported_error",
        )

    def cut(text: str) -> list[int]:
        return model.tokenize(text, add_special=False, parse_special=False)

    head = model.tokenize("", add_special=True, parse_special=False)
    rest = cut(begun)
    room = num_ctx - (max_tokens or REPLY_ROOM) - len(head) - len(rest) - 4
    before, after = cut(prefix), cut(suffix)
    shown_after = after[: max(0, room - min(len(before), int(room * PREFIX_SHARE)))]
    shown_before = before[max(0, len(before) - max(0, room - len(shown_after))) :]
    room -= len(shown_before) + len(shown_after)
    others: list[int] = []
    if extra and marks.separator >= 0:
        files = [[marks.separator, *cut(f"{name}\n{text}")] for name, text in extra]
        this = [marks.separator, *cut("filename\n")]
        name = [marks.repository, *cut("myproject\n")] if marks.repository >= 0 else []
        others = [token for file in files for token in file]
        others = others[max(0, len(others) - max(0, room - len(this) - len(name))) :]
        others = [*name, *others, *this] if others else []
    tokens = (
        *head,
        *others,
        *(marks.prefix, *shown_before),
        *(marks.suffix, *shown_after),
        *(marks.middle, *rest),
    )
    text = b"".join(model.piece(token, special=True) for token in tokens)
    return Prompt(text.decode("utf-8", "replace"), tokens, opens_thought=False, is_raw=True)
