"""Which tokens of a draft's vocabulary are worth their rows.

Special tokens and single bytes always are, and the words of the chat template: they
stand before every reply, and no corpus need have them.  The others stand in the order of how often
they are expected: half by a corpus, half by their ids, since tokenizers that merge bytes number
their tokens by frequency in the text that they were made from.  A corpus alone would cut the words
of all other text: one of software has more tokens than are kept, and "farmer" is none of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import TokenType

from dyspec_edge import llama
from dyspec_edge.errors import OptionError
from dyspec_edge.files.model_file import FileReport

_BLOCK = 1 << 16
"""Characters of a corpus that are tokenized at a time."""

TYPICAL_RANK = 2048
"""A token of ordinary text has a lower id than this one time in two (see `by_id`)."""

_WORD = re.compile(r"[^\W\d_]{2,}")


def ranked(report: FileReport, counts: Counter[int]) -> tuple[npt.NDArray[np.int32], int]:
    """All tokens, the most useful first: int32[vocabulary]; and how many are always kept.

    Args:
        report: of the draft.
        counts: how often a corpus has each token.
    """
    tokens = np.arange(report.num_vocab, dtype=np.int32)
    template = (report.chat_template or "").replace("\\n", " ")  # as Jinja's sources write it
    words = set(_WORD.findall(template))
    always = np.array([_is_indispensable(report, int(t), words) for t in tokens], bool)
    padding = np.array([report.is_padding(int(t)) for t in tokens], bool)
    order = np.lexsort((tokens, -frequencies(counts, report.num_vocab), padding, ~always))
    return tokens[order], int(always.sum())


def frequencies(counts: Counter[int], num_vocab: int) -> npt.NDArray[np.float64]:
    """How often text is expected to have each token: float64[num_vocab], at most 1 in all.

    Half is what a corpus has, the other half, or all without a corpus, goes by ids.

    Args:
        counts: of each token in the corpus; empty: there is none.
    """
    if not counts:
        return by_id(num_vocab)
    found = np.array([counts[token] for token in range(num_vocab)])
    mixed: npt.NDArray[np.float64] = (found / found.sum() + by_id(num_vocab)) / 2
    return mixed


def by_id(num_vocab: int) -> npt.NDArray[np.float64]:
    """How often text that nothing is known of has each token: float64[num_vocab].

    A share c / (n + c) of it, with c = `TYPICAL_RANK`, has ids from n on.  (By Qwen's tokenizer
    English and code have 0.15 and 0.09 from 16,384 on, 0.08 and 0.04 from 32,768 on and 0.03 and
    0.02 from 65,536 on.)
    """
    shares: npt.NDArray[np.float64] = TYPICAL_RANK / (np.arange(num_vocab) + TYPICAL_RANK) ** 2.0
    return shares


def choose(report: FileReport, num: int, counts: Counter[int]) -> npt.NDArray[np.int32]:
    """The `num` most useful tokens: int32[num], ascending.

    Args:
        report: of the draft.
        num: at least as many as are always kept, at most the vocabulary.
        counts: how often a corpus has each token.

    Raises:
        OptionError: another number.
    """
    order, num_always = ranked(report, counts)
    if not num_always <= num <= report.num_vocab:
        raise OptionError(
            f"--keep {num}: {report.path.name} has {report.num_vocab:,} tokens, of which "
            f"{num_always:,} are always kept"
        )
    return np.sort(order[:num])


def count_tokens(
    model: llama.Model, paths: Sequence[Path], on_progress: Callable[[float], None]
) -> Counter[int]:
    """How often text files, read as UTF-8, have each token of the model.

    Raises:
        OptionError: a file that cannot be read.
    """
    counts = Counter[int]()
    for number, path in enumerate(paths):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise OptionError(f"--corpus {path}: {error.strerror or error}") from error
        for start in range(0, len(text), _BLOCK):
            block = text[start : start + _BLOCK]
            counts.update(model.tokenize(block, add_special=False, parse_special=False))
            on_progress((number + start / len(text)) / len(paths))
    return counts


def _is_indispensable(report: FileReport, token: int, words: set[str]) -> bool:
    if report.token_types[token] not in (TokenType.NORMAL, TokenType.UNUSED):
        return True
    if report.token_text(token).lstrip("Ġ▁") in words:
        return True
    # In a byte-level vocabulary every byte is one character, and any text can be spelled.
    is_byte = report.tokenizer == "gpt2" and len(report.token_text(token)) == 1
    return is_byte or token in (report.bos_id, report.eos_id, report.eot_id)
