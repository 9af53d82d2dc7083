"""Tiny drafts with vocabularies of their own, and decoders that use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.draft.translation import TranslatedDrafter
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.drafts.trim import trim
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.files.pair import compare
from dyspec_edge.load.spelling import translation
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import model_drafter, opened_decoder

LOST = np.array(
    [t for t in tiny.VOCABULARY.normal if len(tiny.VOCABULARY.texts[t]) > 1][::2], np.int32
)
"""Every other token of more than one character: the words that texts are made of."""
KEPT = np.setdiff1d(np.arange(len(tiny.VOCABULARY)), LOST).astype(np.int32)


def trimmed(draft: Path, out: Path, kept: npt.NDArray[np.int32] = KEPT) -> Path:
    """A copy of `draft` with the tokens `kept`."""
    trim(inspect_file(draft, any_kind=True), kept, out, lambda _done: None)
    return out


def foreign(out: Path) -> Path:
    """A draft that says much what the tiny target does, in a vocabulary of its own.

    Tokens stand in another order, and for the words of `LOST` it has some that the target lacks.
    """
    whole = tiny.VOCABULARY
    order = np.arange(len(whole), dtype=np.int32)
    order[whole.normal] = np.random.default_rng(7).permutation(whole.normal)
    texts = [whole.texts[token] + "_" * (token in LOST) for token in order.tolist()]
    vocabulary = replace(whole, texts=tuple(texts))
    return tiny.write_model(out, vocabulary=vocabulary, noise=0.05, order=order)


@contextmanager
def opened_translated(pair: TinyPair, policy: str, **settings: Any) -> Iterator[Conversation]:
    """A decoder whose draft has a vocabulary of its own."""
    reports = (inspect_file(path, any_kind=True) for path in pair)
    found = compare(*reports)
    with opened_decoder(pair, policy, **settings) as decoder:
        model = model_drafter(decoder)
        both = decoder.target.context.model, model.cache.context.model
        between = translation(*both, found)
        assert between is not None
        decoder.drafter = TranslatedDrafter(model, between)
        yield decoder
