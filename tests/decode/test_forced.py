"""What a grammar leaves no choice about needs no draft, and changes no text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.llama import Model
from dyspec_edge.native import lib, pointer
from tests import tiny
from tests.conftest import TinyPair
from tests.decode.test_grammar import POLICIES, prompt
from tests.decoding import opened_decoder

KEYS = (
    r'root ::= "{\"the name of the tree\": \"" [a-z]{2,9} "\", \"number of leaves\": " [1-9] '
    r'[0-9]? ", \"is it for you\": " ("true" | "false") "}"'
)


@pytest.fixture(scope="module")
def model(tiny_pair: TinyPair) -> Iterator[Model]:
    with Model(tiny_pair.target) as found:
        yield found


def text_of(model: Model, tokens: list[int]) -> str:
    return b"".join(model.piece(token) for token in tokens).decode()


@pytest.mark.parametrize(
    ("grammar", "written", "forced"),
    [
        ('root ::= "the tree" [a-z]', "", "the tree"),
        ('root ::= "the tree" [a-z]', "the", " tree"),
        ('root ::= "the tree" [a-z]', "the tree", ""),
        ('root ::= [ab] "leaf"', "", ""),
        ('root ::= [ab] "leaf"', "a", "leaf"),
        ('root ::= "tree" | "trees"', "", "tree"),  # and then it may end
        ('root ::= "leaf" "\\n"? "x"', "", "leaf"),
        ('root ::= "is é"', "", "is "),  # what is not ASCII is not looked for
        ('root ::= "{" ("}" | "{}" )', "{", ""),
    ],
)
def test_the_only_way_to_go_on(model: Model, grammar: str, written: str, forced: str) -> None:
    found = Grammar(model, grammar)
    tokens = model.tokenize(written, add_special=False, parse_special=False) if written else []
    ids = np.array(tokens, np.int32)
    lib.dyspec_grammar_accept(found.handle.address, pointer(ids, np.int32, len(ids)), len(ids))
    assert text_of(model, found.forced(50)) == forced
    assert found.num_following(found.forced(50)) == len(found.forced(50))
    for most in range(3):
        assert found.forced(most) == found.forced(50)[:most]
    found.close()


def oracle(model: Model, gbnf: str, written: list[int], ids: list[int], most: int) -> list[int]:
    """One character after the other, each asked for by itself."""
    found: list[int] = []
    while len(found) < most:
        fitting = []
        for token in [*ids, tiny.VOCABULARY.eos]:
            grammar = Grammar(model, gbnf)
            if grammar.num_following([*written, *found, token]) == len(written) + len(found) + 1:
                fitting.append(token)
            grammar.close()
        if len(fitting) != 1 or fitting[0] == tiny.VOCABULARY.eos:
            break
        found += fitting
    return found


@pytest.mark.parametrize("seed", range(4))
def test_native_code_agrees_with_asking_for_each_character(model: Model, seed: int) -> None:
    rng = np.random.default_rng(seed)
    letters = [tiny.VOCABULARY.texts.index(letter) for letter in "abcde"]
    parts = ['"ab"', "[ab]", '"c" "d"?', '"eee"', '("ad" | "ae")']
    gbnf = "root ::= " + " ".join(rng.choice(parts, 6).tolist())
    grammar = Grammar(model, gbnf)
    ids, out, written = np.array(letters, np.int32), np.empty(20, np.int32), list[int]()
    for _ in range(12):
        n = lib.dyspec_grammar_forced(
            grammar.handle.address,
            pointer(ids, np.int32, 5),
            5,
            tiny.VOCABULARY.eos,
            pointer(out, np.int32, 20),
            20,
        )
        assert out[:n].tolist() == oracle(model, gbnf, written, letters, 20)
        fitting = [token for token in letters if grammar.num_following([token])]
        if not fitting:
            break
        written.append(int(rng.choice(fitting)))
        one = np.array(written[-1:], np.int32)
        lib.dyspec_grammar_accept(grammar.handle.address, pointer(one, np.int32, 1), 1)
    grammar.close()


def test_a_tokenizer_that_begins_texts_with_a_space(tmp_path: Path) -> None:
    path = tiny.write_model(tmp_path / "spaced.gguf", space_prefix=True)
    with Model(path) as spaced:
        grammar = Grammar(spaced, 'root ::= "the tree" [a-z]')
        assert text_of(spaced, grammar.forced(50)) == "the tree"
        grammar.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_fewer_passes_and_the_same_text(
    tiny_pair: TinyPair, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same policy without them, and against plain decoding."""

    def written(decoder: Conversation, seed: int) -> tuple[list[int], int, int]:
        params = SamplingParams(temperature=0.7, grammar=KEYS)
        sampler = Sampler(decoder.target.context.model, params, seed, prompt(seed))
        tokens, steps, forced = list[int](), 0, 0
        before = decoder.drafter.totals.num_passes
        decoder.begin(prompt(seed), sampler)
        for step in decoder.generate(200):
            tokens += step.tokens
            steps += 1
            forced += step.num_forced
        sampler.close()
        passes = decoder.drafter.totals.num_passes - before
        return tokens, steps + passes, forced

    with opened_decoder(tiny_pair, policy) as decoder, opened_decoder(tiny_pair, "none") as plain:
        with_them = [written(decoder, seed) for seed in range(4)]
        plainly = [written(plain, seed) for seed in range(4)]
        monkeypatch.setattr(Grammar, "forced", lambda _self, _most: [])
        without = [written(decoder, seed) for seed in range(4)]
    assert [one[0] for one in with_them] == [one[0] for one in plainly]
    assert [one[0] for one in without] == [one[0] for one in plainly]
    assert sum(one[2] for one in with_them) > 60
    assert not any(one[2] for one in [*plainly, *without])
    assert sum(one[1] for one in with_them) < 0.8 * sum(one[1] for one in without)
