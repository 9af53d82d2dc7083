"""Grammars: the text is plain decoding's under the same grammar, and the tree keeps to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.llama import Model
from dyspec_edge.llama.log import sink
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import opened_decoder

WORDS = r"""
root ::= "[" item (", " item){3,6} "]"
item ::= "\"" word (" " word){0,3} "\"" | [1-9] [0-9]{0,3} | "null"
word ::= [a-z]{2,7}
"""
SPOKEN = r'root ::= (" " [a-z]{1,6}){12} "."'
POLICIES = [
    "chain:4",
    "specinfer:4x2x1",
    "sequoia:16",
    "dyspec:16",
    "dyspec-threshold:24",
    "priced",
]


def prompt(seed: int) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(tiny.VOCABULARY.normal, 11).tolist()]


@pytest.fixture(scope="module")
def model(tiny_pair: TinyPair) -> Iterator[Model]:
    with Model(tiny_pair.target) as found:
        yield found


def text_of(model: Model, tokens: list[int]) -> str:
    return b"".join(model.piece(token) for token in tokens).decode()


class Written:
    """One reply, and what its trees looked like."""

    def __init__(
        self,
        decoder: Conversation,
        params: SamplingParams,
        seed: int,
        max_tokens: int = 200,
    ) -> None:
        text = prompt(seed)
        self.tokens: list[int] = []
        self.branches = self.accepted = self.forbidden = 0
        model = decoder.target.context.model
        sampler = Sampler(model, params, seed, text)
        try:
            decoder.begin(text, sampler)
            for step in decoder.generate(max_tokens, keep_trees=True):
                self.branches += not step.is_chain
                self.accepted += step.num_accepted
                self.forbidden += self._forbidden(decoder, model, params, step.nodes)
                self.tokens += step.tokens
        finally:
            sampler.close()

    def _forbidden(
        self, decoder: Conversation, model: Model, params: SamplingParams, nodes: tuple[int, ...]
    ) -> int:
        """Nodes of the last tree whose path the grammar forbids."""
        assert params.grammar is not None
        tree, grammar, count = decoder.tree, Grammar(model, params.grammar), 0
        for node in nodes[1:]:
            path = [*self.tokens, *tree.token[tree.path(node)[1:]].tolist()]
            count += grammar.num_following(path) < len(path)
        grammar.close()
        return count


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("grammar", [WORDS, SPOKEN])
def test_a_reply_is_plain_decodings_and_no_tree_leaves_the_grammar(
    tiny_pair: TinyPair, policy: str, grammar: str
) -> None:
    branches = accepted = 0
    with opened_decoder(tiny_pair, policy) as decoder, opened_decoder(tiny_pair, "none") as plain:
        for temperature in (0.0, 0.7, 1.0):
            params = SamplingParams(temperature=temperature, grammar=grammar)
            for seed in (1, 2, 3):
                found = Written(decoder, params, seed)
                assert found.tokens == Written(plain, params, seed).tokens
                assert found.tokens[-1] in decoder.end_tokens
                assert not found.forbidden
                branches, accepted = branches + found.branches, accepted + found.accepted
    assert accepted > 50
    assert branches > 20 or policy.startswith("chain")


@pytest.mark.parametrize("policy", ["none", "dyspec:16", "priced"])
def test_a_finished_reply_fits_and_one_that_is_cut_is_its_beginning(
    tiny_pair: TinyPair, model: Model, policy: str
) -> None:
    params = SamplingParams(temperature=1.0, grammar=WORDS)
    with opened_decoder(tiny_pair, policy) as decoder:
        for seed in range(4):
            whole = Written(decoder, params, seed).tokens
            items = json.loads(text_of(model, whole[:-1]))
            assert 4 <= len(items) <= 7
            for length in (1, 7):
                assert Written(decoder, params, seed, length).tokens == whole[:length]


def test_the_end_comes_where_the_grammar_allows_it_and_nowhere_else(
    tiny_pair: TinyPair, model: Model
) -> None:
    eager = ((tiny.VOCABULARY.eos, 100.0),)
    with opened_decoder(tiny_pair, "dyspec:16") as decoder:
        for grammar, wanted in ((r'root ::= "{" "}"', "{}"), (r'root ::= "ab" [c-e]*', "ab")):
            params = SamplingParams(temperature=0.8, grammar=grammar, logit_bias=eager)
            tokens = Written(decoder, params, 1).tokens
            assert text_of(model, tokens[:-1]) == wanted
            assert tokens[-1] == tiny.VOCABULARY.eos


def test_characters_of_several_tokens(tiny_pair: TinyPair, model: Model) -> None:
    params = SamplingParams(temperature=1.0, grammar='root ::= ("ä" | "家" | "👪"){5}')
    with opened_decoder(tiny_pair, "none") as plain, opened_decoder(tiny_pair, "dyspec:16") as tree:
        tokens = Written(tree, params, 3).tokens
        assert tokens == Written(plain, params, 3).tokens
    assert re.fullmatch("[ä家👪]{5}", text_of(model, tokens[:-1]))


def test_control_tokens_are_no_text(tiny_pair: TinyPair) -> None:
    start = tiny.VOCABULARY.texts.index("<|im_start|>")
    params = SamplingParams(
        temperature=0.0, grammar=r'root ::= [^"]{20}', logit_bias=((start, 1000.0),)
    )
    with opened_decoder(tiny_pair, "none") as decoder:
        assert start not in Written(decoder, params, 1).tokens


def test_a_vocabulary_that_lacks_what_the_grammar_wants(tiny_six: TinyPair) -> None:
    with opened_decoder(tiny_six, "none") as decoder:
        sampler = Sampler(
            decoder.target.context.model, SamplingParams(grammar='root ::= "z"'), 1, [1]
        )
        decoder.begin([1], sampler)
        with pytest.raises(DyspecError, match="no token of the model's vocabulary fits"):
            list(decoder.generate(5))
        sampler.close()


def test_residual_keeps_no_grammar(tiny_pair: TinyPair) -> None:
    with (
        opened_decoder(tiny_pair, "dyspec:16", verify="residual") as decoder,
        pytest.raises(OptionError, match="--verify match"),
    ):
        Written(decoder, SamplingParams(grammar=SPOKEN), 1)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "empty"),
        ('root ::= "a"\0', "NUL"),
        ("root ::= missing", "missing"),
        ('roof ::= "a"', "root"),
        ("root ::= root", "left recursion"),
        ('root ::= "a', "unexpected end"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nests brackets"),
        ("root ::= [a-z]{2001}", "repetitions"),
        ('root ::= "a" <[5]>', "tokens"),
        ('root ::= "' + "a" * (1 << 20) + '"', "bytes"),
    ],
)
def test_a_grammar_that_cannot_be_used_says_why(
    model: Model, capfd: pytest.CaptureFixture[str], grammar: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message) as error:
        Grammar(model, grammar)
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


def test_other_threads_keep_their_stderr_while_a_grammar_is_read(
    model: Model, capfd: pytest.CaptureFixture[str]
) -> None:
    is_over, num_lines = threading.Event(), 0

    def parse() -> None:
        for _ in range(200):
            with pytest.raises(OptionError, match="unexpected end"):
                Grammar(model, 'root ::= "a')
        is_over.set()

    parsing = threading.Thread(target=parse)
    parsing.start()
    while not is_over.is_set():
        os.write(2, b"mine\n")
        num_lines += 1
    parsing.join()
    assert capfd.readouterr().err == "mine\n" * num_lines


def test_a_thread_hears_what_its_own_calls_complain_of(model: Model) -> None:
    with pytest.raises(OptionError, match="left recursion"):
        Grammar(model, "root ::= root")
    complaint = sink.complaint
    assert complaint
    elsewhere: list[str] = []
    other = threading.Thread(target=lambda: elsewhere.append(sink.complaint))
    other.start()
    other.join()
    assert elsewhere == [""]
    assert sink.complaint == complaint


def test_what_a_grammar_forbids_is_never_accepted(model: Model) -> None:
    """llama.cpp would end the process."""
    grammar = Grammar(model, 'root ::= "ab"')
    a, b = (tiny.VOCABULARY.texts.index(letter) for letter in "ab")
    assert grammar.num_following([a, b, tiny.VOCABULARY.eos]) == 3
    assert grammar.num_following([a, a]) == 1
    assert grammar.num_following([tiny.VOCABULARY.eos]) == 0
    assert grammar.num_following([]) == 0
    grammar.close()


FUZZ = """
import random, sys
from pathlib import Path
from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.errors import OptionError
from dyspec_edge.llama import Model
from dyspec_edge.llama.log import sink

rng, parts = random.Random(0), sys.argv[2]
kept = 0
with Model(Path(sys.argv[1]), vocab_only=True) as model:
    for _ in range(3000):
        body = "".join(rng.choice(parts.split("~")) for _ in range(rng.randrange(1, 14)))
        try:
            grammar = Grammar(model, "root ::= " + body + "\\nx ::= [a-c]? \\"d\\"\\n")
        except OptionError:
            continue
        kept += 1
        for _ in range(8):
            grammar.num_following([rng.randrange(model.num_vocab) for _ in range(6)])
        grammar.close()
print(kept)
"""


def test_no_grammar_and_no_token_ends_the_process(tiny_pair: TinyPair) -> None:
    parts = '"a"~[a-z]~[^a]~.~x~root~(~)~*~+~?~{2}~{0}~{0,3}~ | ~ ~\n~"\\x00"~"é"~<[5]>~]~"'
    run = subprocess.run(
        [sys.executable, "-c", FUZZ, str(tiny_pair.target), parts],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-500:]
    assert int(run.stdout) > 200
