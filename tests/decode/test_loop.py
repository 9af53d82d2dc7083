"""The step loop: whatever drafts, the text is the one that plain decoding gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from ctypes import CFUNCTYPE, c_int32, c_void_p
from functools import cache
from itertools import count, product

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.decode.verify import MatchVerifier, Verifier
from dyspec_edge.errors import Cancelled, DyspecError
from dyspec_edge.llama import Context
from dyspec_edge.llama.context import function_address
from dyspec_edge.native import address_of
from tests import tiny
from tests.conftest import PairFactory, TinyPair
from tests.decoding import PlainReference, model_drafter, opened_decoder, reply, steps

GREEDY = SamplingParams(temperature=0.0)
COOL = SamplingParams(temperature=0.7)
WARM = SamplingParams(temperature=1.0)
PENALISED = SamplingParams(
    temperature=0.7,
    repeat_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    dry_multiplier=0.8,
    typical=0.98,
    logit_bias=((300, 1.0),),
)
GREEDY_PENALISED = SamplingParams(temperature=0.0, repeat_penalty=1.3, dry_multiplier=0.8)
# The end of a text is rare in the tiny models; here it comes every few dozen tokens.
ENDING = SamplingParams(temperature=1.0, logit_bias=((2, 4.5),))

BANNED = tuple((token, -np.inf) for token in range(len(tiny.VOCABULARY)))

SIZES = [1, 4, 16, 64, 200]
POLICIES = [
    *(f"chain:{length}" for length in (1, 4, 16)),
    "chain:8:0.3",
    "specinfer:3",
    "specinfer:4x2x2x1",
    "sequoia:4",
    "sequoia:64",
    "sequoia:24:3",
    "specinfer:1x1x3x1x1x1x1x1",
    *(f"dyspec:{size}" for size in SIZES),
    *(f"dyspec-threshold:{size}" for size in SIZES),
    "dyspec-threshold:64:0.03",
]
ENDED = ["chain:6", "specinfer:4x2x1", "sequoia:16", "dyspec:16", "dyspec-threshold:24"]


def prompt(length: int = 20, seed: int = 0) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(tiny.VOCABULARY.normal, length - 1).tolist()]


class PlainTexts:
    """What plain decoding says, remembered."""

    def __init__(self, decoder: Conversation) -> None:
        self._decoder = decoder
        self.reply = cache(self._reply)

    def _reply(
        self, text: tuple[int, ...], params: SamplingParams, seed: int, max_tokens: int
    ) -> list[int]:
        return reply(self._decoder, text, params, seed=seed, max_tokens=max_tokens)


@pytest.fixture(scope="module")
def plain(tiny_pair: TinyPair) -> Iterator[PlainTexts]:
    with opened_decoder(tiny_pair, "none") as decoder:
        yield PlainTexts(decoder)


def tokens_of(found: Sequence[Step]) -> list[int]:
    return [token for step in found for token in step.tokens]


def assert_caches_hold(decoder: Conversation, text: Sequence[int]) -> None:
    """Both caches are at the last emitted token but one, which will be the next root."""
    assert decoder.target.tokens == list(text[:-1])
    if decoder.drafter.shared_cache is not None:
        read = model_drafter(decoder).cache.tokens
        assert read == list(text[: len(read)])


@pytest.mark.parametrize("policy", POLICIES)
def test_match_says_what_plain_decoding_says(
    tiny_pair: TinyPair, plain: PlainTexts, policy: str
) -> None:
    accepted = 0
    with opened_decoder(tiny_pair, policy) as decoder:
        size = decoder.policy.max_nodes
        length = 100 if size < 16 else 60 if size < 64 else 30  # 240 tokens at least
        for params in (GREEDY, COOL, WARM, PENALISED):
            for seed in (1, 2):
                text = prompt(seed=seed)
                found = list(steps(decoder, text, params, seed=seed, max_tokens=length))
                wanted = plain.reply(tuple(text), params, seed, 100)[:length]
                assert tokens_of(found) == wanted
                assert_caches_hold(decoder, [*text, *wanted])
                accepted += sum(step.num_accepted for step in found)
    assert accepted > 8 * length / 4, "the draft is good: much of it is accepted"


def test_penalties_see_the_path_at_temperature_0(tiny_pair: TinyPair, plain: PlainTexts) -> None:
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), GREEDY_PENALISED, 1, 120)
    assert wanted != plain.reply(tuple(text), GREEDY, 1, 120)
    for policy in ("chain:8", "specinfer:4x2x1", "dyspec:24", "dyspec-threshold:24"):
        with opened_decoder(tiny_pair, policy) as decoder:
            assert reply(decoder, text, GREEDY_PENALISED, seed=1, max_tokens=120) == wanted


def test_a_poor_draft_changes_nothing(make_pair: PairFactory, plain: PlainTexts) -> None:
    with opened_decoder(make_pair(0.5), "dyspec:16") as decoder:
        for params in (GREEDY, WARM):
            text = prompt(seed=1)
            wanted = plain.reply(tuple(text), params, 1, 100)
            assert reply(decoder, text, params, seed=1, max_tokens=100) == wanted


@pytest.mark.parametrize("policy", ENDED)
def test_an_end_token_ends_the_text_exactly(
    tiny_pair: TinyPair, plain: PlainTexts, policy: str
) -> None:
    drafted_ends = num_ended = 0
    with opened_decoder(tiny_pair, policy) as decoder:
        for seed in range(12):
            text = prompt(seed=seed)
            found = list(steps(decoder, text, ENDING, seed=seed, max_tokens=80))
            out = tokens_of(found)
            assert out == plain.reply(tuple(text), ENDING, seed, 80)
            ends = np.isin(out, list(decoder.end_tokens))
            assert not ends[:-1].any()
            if ends[-1]:
                num_ended += 1
                last, tree = found[-1], decoder.tree
                child = tree.child(last.path[-1], out[-1])
                drafted_ends += child >= 0
                assert last.num_accepted == len(last.tokens) - 1 + (child >= 0)
            assert_caches_hold(decoder, [*text, *out])
    assert num_ended > 5
    assert drafted_ends > 0, "some of them in the middle of a tree"


@pytest.mark.parametrize("policy", ["none", *ENDED])  # what `priced` does depends on real time
@pytest.mark.parametrize("params", [GREEDY, COOL, PENALISED, ENDING])
def test_one_native_call_ends_a_step_as_its_parts_do(
    tiny_pair: TinyPair, policy: str, params: SamplingParams
) -> None:
    """The same tokens, counts and cache contents; the seeds have end tokens in and out of trees."""

    def told(verifier: Verifier) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        with opened_decoder(tiny_pair, policy) as decoder:
            decoder.verifier = verifier
            drafter = decoder.drafter.shared_cache
            for seed in range(4):
                for step in steps(decoder, prompt(seed=seed), params, seed=seed, max_tokens=60):
                    drafted = list(drafter.tokens) if drafter is not None else []
                    held = list(decoder.target.tokens), drafted
                    found.append((step.tokens, step.path, step.num_accepted, step.nodes, held))
        return found

    assert told(MatchVerifier()) == told(MatchVerifier(in_parts=True))


@pytest.mark.parametrize("interrupted", [0, 1, 2, 3])
def test_an_interrupt_right_after_the_native_call(
    tiny_pair: TinyPair, plain: PlainTexts, monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    """A signal that comes during a pass is raised when Python goes on: nothing is noted yet."""
    text, note, calls = prompt(), Cache.note_committed, count()

    def interrupting(cache: Cache, tokens: Sequence[int]) -> None:
        if next(calls) == interrupted:
            raise KeyboardInterrupt
        note(cache, tokens)

    monkeypatch.setattr(Cache, "note_committed", interrupting)
    with opened_decoder(tiny_pair, "dyspec:16") as decoder:
        with pytest.raises(KeyboardInterrupt):
            reply(decoder, text, GREEDY, seed=0, max_tokens=40)
        want = plain.reply(tuple(text), GREEDY, 0, 40)
        assert reply(decoder, text, GREEDY, seed=0, max_tokens=40) == want
        assert reply(decoder, text[:9], GREEDY, seed=0, max_tokens=40) == plain.reply(
            tuple(text[:9]), GREEDY, 0, 40
        )


@pytest.mark.parametrize("verifier", [MatchVerifier(), MatchVerifier(in_parts=True)])
def test_a_row_without_a_token_to_choose_leaves_the_caches_right(
    tiny_pair: TinyPair, plain: PlainTexts, verifier: Verifier
) -> None:
    nothing = SamplingParams(temperature=0.0, logit_bias=BANNED)
    text = prompt()
    with opened_decoder(tiny_pair, "dyspec:16") as decoder:
        decoder.verifier = verifier
        for _ in range(2):
            with pytest.raises(DyspecError, match="bans every token"):
                reply(decoder, text, nothing, seed=0, max_tokens=10)
            want = plain.reply(tuple(text), GREEDY, 0, 40)
            assert reply(decoder, text, GREEDY, seed=0, max_tokens=40) == want


@pytest.mark.parametrize("policy", ["none", *ENDED])
def test_max_tokens_is_met_exactly(tiny_pair: TinyPair, plain: PlainTexts, policy: str) -> None:
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), WARM, 1, 100)
    with opened_decoder(tiny_pair, policy) as decoder:
        for max_tokens in (0, 1, 2, 3, 7, 20):
            found = list(steps(decoder, text, WARM, seed=1, max_tokens=max_tokens))
            assert tokens_of(found) == wanted[:max_tokens]
            for step in found:
                assert len(step.tokens) == len(step.path)
                assert 0 <= step.num_accepted <= step.num_drafted
            assert_caches_hold(decoder, [*text, *wanted[:max_tokens]])


def assert_wholly_accepted(decoder: Conversation, found: Iterator[Step]) -> int:
    """Every step ends at a leaf or with a drafted end token, never at a wrong child."""
    tree, accepted = decoder.tree, 0
    for step in found:
        last, token = step.path[-1], step.tokens[-1]
        assert tree.num_children[last] == 0 or tree.terminal[max(tree.child(last, token), 0)]
        accepted += step.num_accepted
    return accepted


@pytest.mark.parametrize("policy", ENDED)
@pytest.mark.parametrize("params", [GREEDY, COOL, SamplingParams(temperature=1.0, top_k=20)])
def test_a_draft_that_is_the_target_is_accepted_wholly(
    tiny_equal: TinyPair, policy: str, params: SamplingParams
) -> None:
    """Under `match` the first child of every node is the target's own draw."""
    with opened_decoder(tiny_equal, policy) as decoder:
        found = steps(decoder, prompt(), params, seed=3, max_tokens=60)
        accepted = assert_wholly_accepted(decoder, found)
        assert accepted > 30
        if policy == "chain:6":
            assert accepted == 60 - 9, "9 steps of 6 drafted tokens and a bonus token, 7 at most"


@pytest.mark.parametrize(
    ("policy", "temperature"),
    [
        *product(["chain:5", "sequoia:12", "dyspec:12"], [0.0, 0.6, 1.0]),
        *product(["dyspec-threshold:12:0.05"], [0.0, 0.6, 1.0]),
        ("specinfer:3x2x1", 0.6),  # at temperature 0 it draws all the same
        ("specinfer:3x2x1", 1.0),
    ],
)
def test_an_equal_draft_is_accepted_wholly_under_residual(
    tiny_six_equal: TinyPair, policy: str, temperature: float
) -> None:
    """Its D must be the target's P: no cut, all candidates kept, the target's temperature."""
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    with opened_decoder(tiny_six_equal, policy, verify="residual") as decoder:
        for seed in range(4):
            found = steps(decoder, [1, 3, 4], params, seed=seed, max_tokens=40)
            assert_wholly_accepted(decoder, found)


@pytest.fixture(scope="module")
def tiny_six_equal(tiny_six: TinyPair) -> TinyPair:
    return TinyPair(tiny_six.target, tiny_six.target)


@pytest.mark.parametrize("verify", ["match", "residual"])
@pytest.mark.parametrize("policy", ENDED)
def test_an_adversarial_draft_is_never_accepted(
    tiny_adversarial: TinyPair, policy: str, verify: str
) -> None:
    with (
        opened_decoder(tiny_adversarial, "none", verify=verify) as none,
        opened_decoder(tiny_adversarial, policy, verify=verify) as decoder,
    ):
        for params in (GREEDY, WARM):
            found = list(steps(decoder, prompt(), params, seed=1, max_tokens=40))
            assert sum(step.num_drafted for step in found) > 40
            assert sum(step.num_accepted for step in found) == 0
            if verify == "match" or params is GREEDY:
                assert tokens_of(found) == reply(none, prompt(), params, seed=1, max_tokens=40)


@pytest.mark.parametrize("policy", ["chain:4", "specinfer:3x2x1", "sequoia:12", "dyspec:12"])
def test_residual_with_the_same_seed_says_the_same(tiny_pair: TinyPair, policy: str) -> None:
    with opened_decoder(tiny_pair, policy, verify="residual") as decoder:
        first = reply(decoder, prompt(), COOL, seed=1, max_tokens=60)
        other = reply(decoder, prompt(), COOL, seed=2, max_tokens=60)
        again = reply(decoder, prompt(), COOL, seed=1, max_tokens=60)
    assert first == again
    assert first != other


def exact_pairs(pair: TinyPair, text: list[int], params: SamplingParams) -> npt.NDArray[np.float64]:
    """The joint distribution of the first two tokens; an end at once counts as (end, end)."""
    num, end = len(tiny.SIX_TOKENS), tiny.SIX_TOKENS.eos
    plain = PlainReference(pair.target)

    def after(tokens: list[int]) -> npt.NDArray[np.float64]:
        z = plain.logits(tokens)[-1].astype(np.float64) / params.temperature
        return np.asarray(np.exp(z - np.logaddexp.reduce(z)))

    first = after(text)
    pairs = np.stack([first[token] * after([*text, token]) for token in range(num)])
    pairs[end], pairs[end, end] = 0, first[end]
    plain.close()
    return pairs


@pytest.mark.parametrize(
    ("policy", "device_sampling"),
    [
        ("specinfer:3x2", False),
        ("sequoia:12:2", False),
        ("dyspec:3", False),
        ("dyspec:3", True),
        ("dyspec:24", False),
    ],
)
def test_residual_follows_the_targets_distribution(
    tiny_six: TinyPair, policy: str, device_sampling: bool
) -> None:
    """End to end, on the first two tokens of replies that may be longer."""
    params = SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
    text, num_replies = [1, 3, 4, 5], 600
    wanted = exact_pairs(tiny_six, text, params)
    observed = np.zeros_like(wanted)
    with (
        opened_decoder(
            tiny_six, policy, verify="residual", num_ctx=64, device_sampling=device_sampling
        ) as decoder,
        closing(Sampler(decoder.target.context.model, params, 0)) as sampler,
    ):
        for seed in range(num_replies):
            sampler.seed = seed
            decoder.begin(text, sampler)
            out: list[int] = []
            for step in decoder.generate(4):
                out += step.tokens
                if len(out) >= 2:
                    break
            observed[out[0], out[min(1, len(out) - 1)]] += 1
    possible = wanted > 0
    assert observed[~possible].sum() == 0
    assert chisquare(observed[possible], num_replies * wanted[possible]).pvalue > 1e-3


@pytest.mark.parametrize("policy", ["none", "dyspec:16"])
def test_a_consumer_walks_away(tiny_pair: TinyPair, plain: PlainTexts, policy: str) -> None:
    text, other = prompt(seed=1), [*prompt(seed=1)[:10], *prompt(seed=2)[1:]]
    with opened_decoder(tiny_pair, policy) as decoder:
        found = steps(decoder, text, WARM, seed=1, max_tokens=100)
        out = [*next(found).tokens, *next(found).tokens]
        found.close()  # type: ignore[attr-defined]
        assert_caches_hold(decoder, [*text, *out])
        assert reply(decoder, other, WARM, seed=2, max_tokens=60) == plain.reply(
            tuple(other), WARM, 2, 60
        )
        following = [*text, *out, *prompt(seed=5)[1:]]
        assert reply(decoder, following, WARM, seed=3, max_tokens=60) == plain.reply(
            tuple(following), WARM, 3, 60
        )


@pytest.mark.parametrize("length", [0, 15, 30, 45])
def test_rewinding_cuts_both_caches(tiny_pair: TinyPair, plain: PlainTexts, length: int) -> None:
    """A stop string ends the text before the last token that was emitted."""
    text = prompt(seed=1)
    with opened_decoder(tiny_pair, "dyspec:16") as decoder:
        drafter = model_drafter(decoder)
        out = reply(decoder, text, WARM, seed=1, max_tokens=40)
        decoder.rewind(length)
        assert decoder.target.tokens == [*text, *out][:length]
        assert drafter.cache.tokens == [*text, *out][:length]
        following = [*[*text, *out][:length], *prompt(seed=6)]
        assert reply(decoder, following, WARM, seed=2, max_tokens=30) == plain.reply(
            tuple(following), WARM, 2, 30
        )


def test_three_replies_in_a_row_are_all_drafted(tiny_pair: TinyPair, plain: PlainTexts) -> None:
    with opened_decoder(tiny_pair, "dyspec:8") as decoder:
        for seed in range(3):
            text = prompt(seed=seed)[seed % 2 :]  # with another first token, too
            found = list(steps(decoder, text, COOL, seed=seed, max_tokens=40))
            assert tokens_of(found) == plain.reply(tuple(text), COOL, seed, 40)
            assert sum(step.num_drafted for step in found) > 40


def until_cancelled(decoder: Conversation, text: list[int]) -> list[int]:
    """What was said of the last reply; replies are made until one is cancelled."""
    while True:
        out: list[int] = []
        try:
            for step in steps(decoder, text, WARM, seed=1, max_tokens=100):
                out += step.tokens
        except Cancelled:
            return out


@pytest.mark.parametrize("who", ["target", "draft"])
def test_an_abort_at_any_moment_leaves_both_caches_right(
    tiny_pair: TinyPair, plain: PlainTexts, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The flag is set inside a pass: the n-th decode of a context is aborted, for n = 1, 2, ..."""
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), WARM, 1, 100)
    calls = aborted_call = 0
    watched: list[Context] = []

    def aborting(handle: int, batch: llama_cpp.llama_batch) -> int:
        nonlocal calls
        if watched and handle == address_of(watched[0]._context):
            calls += 1
            if calls == aborted_call:
                watched[0].abort_flag.set()
        return int(llama_cpp.llama_decode(handle, batch))

    callback = CFUNCTYPE(c_int32, c_void_p, llama_cpp.llama_batch)(aborting)
    resolve = function_address

    def address(name: str) -> int:
        return address_of(callback) if name == "decode" else resolve(name)

    monkeypatch.setattr("dyspec_edge.llama.context.function_address", address)
    with opened_decoder(tiny_pair, "dyspec:16") as decoder:
        drafter = model_drafter(decoder)
        context = (decoder.target if who == "target" else drafter.cache).context
        watched.append(context)
        for nth in range(1, 9):
            calls, aborted_call = 0, nth
            out = until_cancelled(decoder, text)
            aborted_call = 0
            context.abort_flag.clear()
            assert calls == nth
            assert out == wanted[: len(out)]
            assert decoder.target.tokens == [*text, *out][: len(decoder.target.tokens)]
            assert reply(decoder, text, WARM, seed=1, max_tokens=40) == wanted[:40]


def test_an_abort_from_another_thread(tiny_pair: TinyPair, plain: PlainTexts) -> None:
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), WARM, 1, 100)
    with opened_decoder(tiny_pair, "dyspec:64") as decoder:
        for delay in (0.005, 0.03, 0.08):
            timer = threading.Timer(delay, decoder.abort)
            timer.start()
            started = time.perf_counter()
            out = until_cancelled(decoder, text)
            assert time.perf_counter() - started < 10
            timer.join()
            decoder.clear_abort()
            assert out == wanted[: len(out)]
            assert reply(decoder, text, WARM, seed=1, max_tokens=60) == wanted[:60]


def test_a_sliding_window_pair(tiny_sliding: TinyPair) -> None:
    text = prompt(50)  # longer than the window
    with ExitStack() as stack:
        none = stack.enter_context(opened_decoder(tiny_sliding, "none"))
        decoder = stack.enter_context(opened_decoder(tiny_sliding, "dyspec:16"))
        for params in (GREEDY, COOL):
            wanted = reply(none, text, params, seed=1, max_tokens=60)
            assert reply(decoder, text, params, seed=1, max_tokens=60) == wanted
