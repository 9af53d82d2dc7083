"""llama.cpp's programs and prompt lookup, and the settings of each that are searched."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import build
from benchmarks.peers.engines import PromptLookup
from benchmarks.peers.programs import OneShot, Peer, Server
from benchmarks.peers.settings import Axis, words
from benchmarks.workbench import Setup, flash_attention

PLAIN = "llama-server, no draft"

_N_MAX = Axis("n-max", ("--spec-draft-n-max",), (4, 2, 8, 16))
_P_MIN = Axis("p-min", ("--spec-draft-p-min",), (0.75, 0.0, 0.5, 0.9))
_N_MIN = Axis("n-min", ("--spec-draft-n-min",), (0, 2))
_NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
_NGRAM_TYPE = Axis("type", ("--spec-type",), (*_NGRAMS, "ngram-mod", "ngram-cache"))
_NGRAM_SIZE = Axis(
    "n-gram",
    (*(f"--spec-{kind}-size-n" for kind in _NGRAMS), "--spec-ngram-mod-n-match"),
    (4, 2, 12),
)
_NGRAM_DRAFT = Axis(
    "n-gram draft",
    (*(f"--spec-{kind}-size-m" for kind in _NGRAMS), "--spec-ngram-mod-n-max"),
    (8, 4, 16, 48),
)
_MIX = Axis(
    "type",
    ("--spec-type",),
    ("draft-simple", "ngram-simple,draft-simple", "ngram-mod,draft-simple"),
)


def rivals(setup: Setup, programs: dict[str, Path], *, repacks: bool = True) -> list[Peer]:
    """Everybody but ourselves.

    Nobody but us sees by himself that flash attention is slower on a CPU, or that weights which
    do not fit in memory must not be copied there: they are told.

    llama-speculative reads neither p-min nor n-min, and at temperature 0 it never splits a branch:
    its draft's sampler leaves one candidate, of probability 1.
    """
    threads = str(setup.num_threads)
    target = ["-m", str(setup.model), "-c", str(setup.num_ctx), "-t", threads, "-tb", threads]
    target += [] if flash_attention() == "on" else ["-fa", "off"]
    target += [] if repacks else ["--no-repack"]
    draft = [*target, "-md", str(setup.draft), "-td", threads, "-tbd", threads]
    chain = (_N_MAX, _P_MIN, _N_MAX, _N_MIN)
    ngram_min = ["--spec-ngram-mod-n-min", "1"]
    small = {_NGRAM_SIZE.name: 4, _NGRAM_DRAFT.name: 8}
    mixed = [*draft, *ngram_min, *words((_NGRAM_SIZE, _NGRAM_DRAFT), small)]
    simple, speculative, server = (programs[name] for name in build.PROGRAMS)
    one_draft = ["--spec-type", "draft-simple"]
    ngrams = (_NGRAM_TYPE, _NGRAM_SIZE, _NGRAM_DRAFT)
    return [
        Server(PLAIN, server, target, ()),
        OneShot(build.SIMPLE, simple, [*draft, *one_draft], chain, num_free=0),
        OneShot(build.SPECULATIVE, speculative, draft, (_N_MAX,), num_free=1),
        Server("llama-server, draft", server, mixed, (*chain, _MIX)),
        Server("llama-server, n-gram", server, [*target, *ngram_min], ngrams),
        PromptLookup(setup),
    ]
