"""The multi-token-prediction head in the target's own file as its draft."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.draft.head import MOST_PENDING, HeadDrafter
from dyspec_edge.decode.draft.layered_head import LayeredHeadDrafter
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.policy import ROOT
from dyspec_edge.decode.tree import NUM_CANDIDATES, TokenTree
from dyspec_edge.llama import Model, hidden_states
from tests import batches
from tests.conftest import TinyPair
from tests.decode.test_loop import (
    COOL,
    GREEDY,
    PENALISED,
    WARM,
    PlainTexts,
    prompt,
    tokens_of,
    until_cancelled,
)
from tests.decoding import (
    aborted_after,
    is_partial_refusal,
    open_context,
    opened_decoder,
    reply,
    steps,
)

Row = npt.NDArray[np.float32]

NUM_SNAPSHOTS = 8
POLICIES = [
    "chain:1",
    "chain:6",
    "specinfer:4x2x1",
    "sequoia:16",
    "dyspec:16",
    "dyspec-threshold:24",
    "priced",
]
SNAPSHOTS = {"glm4moe": None, "hy_v3": None, "qwen35": NUM_SNAPSHOTS}


@pytest.fixture(scope="module", params=["glm4moe", "hy_v3", "qwen35"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(kind: str, tiny_headed: Callable[..., TinyPair]) -> TinyPair:
    return tiny_headed(kind)


@pytest.fixture(scope="module")
def plain(pair: TinyPair) -> Iterator[PlainTexts]:
    with opened_decoder(pair, "none") as decoder:
        yield PlainTexts(decoder)


def layers_of(decoder: Conversation) -> list[HeadDrafter]:
    if isinstance(decoder.drafter, LayeredHeadDrafter):
        return decoder.drafter.layers
    assert isinstance(decoder.drafter, HeadDrafter)
    return [decoder.drafter]


@pytest.mark.parametrize("policy", POLICIES)
def test_match_says_what_plain_decoding_says(
    pair: TinyPair, plain: PlainTexts, kind: str, policy: str
) -> None:
    drafted = accepted = partly = 0
    with opened_decoder(pair, policy, num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder:
        for params in (GREEDY, COOL, WARM, PENALISED):
            for seed in (1, 2):
                text = prompt(seed=seed)
                found = list(steps(decoder, text, params, seed=seed, max_tokens=60))
                wanted = plain.reply(tuple(text), params, seed, 60)
                assert tokens_of(found) == wanted
                for layer in layers_of(decoder):
                    head = layer.cache.tokens
                    assert head == [*text, *wanted][: len(head)]
                drafted += sum(step.num_drafted for step in found)
                accepted += sum(step.num_accepted for step in found)
                partly += sum(map(is_partial_refusal, found))
        trees = decoder.policy.max_leaves > 1
    assert drafted > 100
    assert accepted > 30
    assert partly > 5 or policy == "chain:1"
    assert trees == (kind != "qwen35" and not policy.startswith("chain"))


class RawHead:
    """A head as llama.cpp's own programs run it: every row with the true state before it."""

    def __init__(self, pair: TinyPair) -> None:
        self._model = Model(pair.target, with_head=True)
        self._target = open_context(self._model, num_outputs=512, gives_states=True)
        self._head = open_context(self._model, num_outputs=512, head_layer=0)

    def logits(self, tokens: list[int], drafted: list[int] | None = None) -> list[Row]:
        """What the head expects after the last of `tokens`, then after each of `drafted`.

        With several layers each takes its turn, over rows that those before it have left.
        """
        num, size = len(tokens), self._model.num_embd
        batches.clear(self._target)
        batch = batches.Batch(num)
        batch.add(tokens, 0, output=True)
        batch.decode(self._target)
        states = np.zeros((num, size), np.float32)
        states[1:] = self._target.hidden_states(num)[:-1]
        found = []
        for layer, token in enumerate([None, *(drafted or [])]):
            if token is not None:
                tokens = [*tokens, token]
                states = np.concatenate([states, self._head.hidden_states(len(tokens) - 1)[-1:]])
            hidden_states.choose_layer(self._head.handle, layer)
            found.append(self._pass(tokens, states))
        return found

    def _pass(self, tokens: list[int], states: Row) -> Row:
        num, size = states.shape
        batches.clear(self._head)
        raw = llama_cpp.llama_batch_init(num, size, 1)
        ids = (llama_cpp.llama_token * num)(*tokens)
        raw.token, raw.n_tokens = ids, num
        np.ctypeslib.as_array(raw.embd, shape=(num, size))[:] = states
        for row in range(num):
            raw.pos[row], raw.n_seq_id[row], raw.seq_id[row][0] = row, 1, 0
            raw.logits[row] = row == num - 1
        assert llama_cpp.llama_decode(self._head._context, raw) == 0
        raw.token = None
        llama_cpp.llama_batch_free(raw)
        found: Row = self._head.row_view(self._head.logits_address()).copy()
        return found

    def close(self) -> None:
        for thing in (self._head, self._target, self._model):
            thing.close()


def test_the_roots_candidates_are_those_of_true_states(pair: TinyPair, kind: str) -> None:
    """Step after step, whatever was accepted, refused or decoded plainly before."""
    text, num_seen = prompt(40, seed=4), 0
    with (
        closing(RawHead(pair)) as raw,
        opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder,
    ):
        grow, turn = decoder.policy.grow, count()

        def sometimes(*args: Any) -> Any:
            return np.zeros(1, np.int32) if next(turn) % 5 == 4 else grow(*args)

        decoder.policy.grow = sometimes  # type: ignore[assignment, method-assign]
        for step in steps(decoder, text, COOL, seed=4, max_tokens=60):
            tree = decoder.tree
            if tree.num_candidates[0] > 0:
                before = decoder.target.tokens[: len(decoder.target.tokens) - len(step.path)]
                assert_candidates(tree, 0, raw.logits([*before, int(tree.token[0])])[0])
                num_seen += 1
    assert num_seen > 10


def test_each_layer_of_a_head_drafts_at_its_depth(tiny_headed: Callable[..., TinyPair]) -> None:
    """From rows that llama.cpp's own programs would give it; below the last one none does."""
    pair, num_deep = tiny_headed("hy_v3"), 0
    with closing(RawHead(pair)) as raw, opened_decoder(pair, "chain:5", with_head=True) as decoder:
        assert len(layers_of(decoder)) == 3
        for step in steps(decoder, prompt(40, seed=4), COOL, seed=4, max_tokens=40):
            tree, drafted = decoder.tree, decoder.tree.token[1 : decoder.tree.size].tolist()
            assert step.num_drafted <= 3
            before = decoder.target.tokens[: len(decoder.target.tokens) - len(step.path)]
            rows = raw.logits([*before, int(tree.token[0])], drafted[:2])
            for node, row in enumerate(rows):
                if tree.num_candidates[node] > 0:  # not in the last step
                    assert_candidates(tree, node, row)
                    num_deep += node == 2
    assert num_deep > 10


def assert_candidates(tree: TokenTree, node: int, row: Row) -> None:
    """Those of a node are the largest logits of a row."""
    wanted = np.sort(row)[::-1][:NUM_CANDIDATES]
    found = np.sort(row[tree.candidate_ids[node]])[::-1]
    assert np.abs(found - wanted).max() < 1e-3


def test_a_head_that_is_right(kind: str, tiny_headed: Callable[..., TinyPair]) -> None:
    pair = tiny_headed(kind, layer_gain=0.0)
    with opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder:
        found = [
            s
            for n in range(4)
            for s in steps(decoder, prompt(seed=n), GREEDY, seed=n, max_tokens=60)
        ]
    drafted = [step for step in found if step.num_drafted]
    num_right = sum(step.num_accepted for step in drafted)
    num_wrong = sum(step.num_accepted < step.num_drafted for step in drafted)
    acceptance = num_right / (num_right + num_wrong)
    assert acceptance > 0.8
    # What the acceptance of one token predicts for chains of them is what comes.
    predicted = np.mean([sum(acceptance**i for i in range(1 + s.num_drafted)) for s in drafted])
    assert np.mean([len(step.tokens) for step in drafted]) == pytest.approx(predicted, rel=0.1)


def test_a_head_that_is_wrong(kind: str, tiny_headed: Callable[..., TinyPair]) -> None:
    pair = tiny_headed(kind, layer_gain=3.0)
    with (
        opened_decoder(pair, "none") as none,
        opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder,
    ):
        found = list(steps(decoder, prompt(), WARM, seed=1, max_tokens=60))
        assert tokens_of(found) == reply(none, prompt(), WARM, seed=1, max_tokens=60)
    accepted = sum(step.num_accepted for step in found)
    assert accepted < 0.2 * sum(step.num_drafted for step in found)


def test_turns_rewinds_and_long_prompts(pair: TinyPair, plain: PlainTexts, kind: str) -> None:
    with opened_decoder(
        pair, "chain:4", num_ctx=1500, num_snapshots=SNAPSHOTS[kind], with_head=True
    ) as decoder:
        text = prompt(600, seed=2)  # more than a pass, and than the states that are kept
        for turn in range(4):
            if turn == 2:
                text = [*text[:300], *prompt(30, seed=9)[1:]]
            out = reply(decoder, text, WARM, seed=turn, max_tokens=30)
            assert out == plain.reply(tuple(text), WARM, turn, 30)
            decoder.rewind(len(text) + 10 * (turn % 2))
            text = [*text, *out[:10], *prompt(10, seed=turn)[1:]]


def test_an_abort_at_any_step(pair: TinyPair, plain: PlainTexts, kind: str) -> None:
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), WARM, 1, 100)
    with opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder:
        for where in ("grow", "learn"):
            for at in range(4):
                with aborted_after(decoder, decoder.policy, where, at):
                    out = until_cancelled(decoder, text)
                    decoder.clear_abort()
                    assert out == wanted[: len(out)]
                    assert reply(decoder, text, WARM, seed=1, max_tokens=60) == wanted[:60]


def test_an_abort_in_the_heads_own_pass(pair: TinyPair, plain: PlainTexts, kind: str) -> None:
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), WARM, 1, 100)
    with opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder:
        for at in range(4):
            with aborted_after(decoder, decoder.drafter, "start_step", at):
                out = until_cancelled(decoder, text)
                decoder.clear_abort()
                assert out == wanted[: len(out)]
                assert reply(decoder, text, WARM, seed=1, max_tokens=60) == wanted[:60]


def test_a_context_that_gets_full(pair: TinyPair, plain: PlainTexts, kind: str) -> None:
    text = prompt(40, seed=2)
    with opened_decoder(
        pair, "chain:4", num_ctx=251, num_snapshots=SNAPSHOTS[kind], with_head=True
    ) as decoder:
        room = decoder.target.context.num_ctx - len(text)
        wanted = plain.reply(tuple(text), WARM, 2, room)
        assert reply(decoder, text, WARM, seed=2, max_tokens=room) == wanted


def test_a_second_turn_reads_what_is_new(
    pair: TinyPair, plain: PlainTexts, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head as well as the target; and so it does after old thoughts were dropped."""
    with opened_decoder(
        pair, "chain:4", num_ctx=1500, num_snapshots=SNAPSHOTS[kind], with_head=True
    ) as decoder:
        history, cache = prompt(400), layers_of(decoder)[-1].cache
        read = cache.read
        unread: list[int] = []

        def counting(tokens: list[int]) -> None:
            unread.append(len(tokens))
            read(tokens)

        monkeypatch.setattr(cache, "read", counting)
        for turn in range(4):
            unread.clear()
            out = reply(decoder, history, WARM, seed=turn, max_tokens=80)
            assert out == plain.reply(tuple(history), WARM, turn, 80)
            assert sum(unread) < 100 if turn else sum(unread) == 399
            history = [*history, *out[-20:], *prompt(30, seed=turn + 5)[1:]]


def test_a_head_that_is_wrong_is_left_alone(
    kind: str, tiny_headed: Callable[..., TinyPair]
) -> None:
    """By `priced`, in most steps."""
    pair = tiny_headed(kind, layer_gain=3.0)
    dear = CostCurve((1, 4, 16), (1.0, 1.3, 2.0)), CostCurve((1, 16), (0.2, 0.5))
    with (
        opened_decoder(pair, "none") as none,
        opened_decoder(
            pair, "priced", prices=dear, num_snapshots=SNAPSHOTS[kind], with_head=True
        ) as decoder,
    ):
        found = []
        for seed in range(4):
            made = list(steps(decoder, prompt(seed=seed), WARM, seed=seed, max_tokens=60))
            assert tokens_of(made) == reply(none, prompt(seed=seed), WARM, seed=seed, max_tokens=60)
            found += made
        num_asked = decoder.drafter.totals.num_passes
    assert num_asked < 0.6 * len(found), "one pass of several that a chain would take"


def test_hearing_costs_the_same_however_much_is_unread(
    kind: str, tiny_headed: Callable[..., TinyPair]
) -> None:
    """What waits to be read is not copied for each token that joins it."""
    pair = tiny_headed(kind)
    with opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder:
        head = layers_of(decoder)[0]
        row = np.ones((1, head.cache.context.model.num_embd), np.float32)
        grown = 0
        tracemalloc.start()
        for position in range(400):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            head.hear(position, [3], row)
            _, peak = tracemalloc.get_traced_memory()
            grown += peak - before > 10 * row.nbytes
        tracemalloc.stop()
        assert grown < 12


def test_hearing_is_no_part_of_what_the_targets_pass_took(
    pair: TinyPair, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head may read meanwhile; what passes cost must not depend on it."""
    with opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder:
        hear = decoder.drafter.hear
        slow = 0.2

        def slowly(*heard: Any) -> None:
            time.sleep(slow)
            hear(*heard)

        monkeypatch.setattr(decoder.drafter, "hear", slowly)
        found = list(steps(decoder, prompt(), WARM, seed=1, max_tokens=4))
    assert all(step.cost.target_seconds < slow < step.cost.seconds for step in found)


def test_what_is_not_asked_reads_nothing(
    pair: TinyPair, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a prompt nor a long stretch of plain steps; then it goes on from the last states."""
    text, num_plain, num_all = prompt(600, seed=2), 500, 600
    long: dict[str, Any] = {"num_ctx": 1500, "end_tokens": np.empty(0, np.int32)}
    with (
        opened_decoder(pair, "none", **long) as none,
        opened_decoder(
            pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True, **long
        ) as decoder,
    ):
        policy = decoder.policy
        grow = policy.grow
        monkeypatch.setattr(policy, "begin", lambda *_: False)

        def late(tree: TokenTree, drafter: Any, max_depth: int) -> Any:
            is_late = len(decoder.target.tokens) >= len(text) + num_plain
            return grow(tree, drafter, max_depth) if is_late else ROOT

        monkeypatch.setattr(policy, "grow", late)
        found = []
        for step in steps(decoder, text, WARM, seed=1, max_tokens=num_all):
            found.append(step)
            if step.num_drafted == 0 and len(decoder.target.tokens) < len(text) + num_plain:
                for head in layers_of(decoder):
                    assert (head.cache.tokens, head.cache.num_passes) == ([], 0)
                    assert head.num_behind <= MOST_PENDING
        assert tokens_of(found) == reply(none, text, WARM, seed=1, max_tokens=num_all)
        assert sum(step.num_accepted for step in found) > 20
        known = [*text, *tokens_of(found)]
        for head in layers_of(decoder):
            read = head.cache.tokens
            assert MOST_PENDING // 2 < len(read) < MOST_PENDING + 200
            assert any(known[at : at + len(read)] == read for at in range(len(known)))


def test_of_a_prompt_the_last_tokens_are_read_where_not_all_pay(
    pair: TinyPair, plain: PlainTexts, kind: str
) -> None:
    text = prompt(700, seed=3)
    with opened_decoder(pair, "chain:4", num_snapshots=SNAPSHOTS[kind], with_head=True) as decoder:
        decoder.drafter.longest_read = 100
        wanted = plain.reply(tuple(text), WARM, 1, 40)
        found = list(steps(decoder, text, WARM, seed=1, max_tokens=40))
        assert tokens_of(found) == wanted
        assert sum(step.num_accepted for step in found) > 3
        for head in layers_of(decoder):
            assert head.cache.tokens[:100] == text[-101:-1]
            assert len(head.cache.tokens) <= 100 + 40
