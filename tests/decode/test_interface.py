"""Another vocabulary behind the four verbs: nothing outside a drafter may rely on its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge.decode.draft.interface import Drafter, NoDrafter
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.decode.tree import NUM_CANDIDATES, TokenTree
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import model_drafter, opened_decoder, reply, steps

Ids = npt.NDArray[np.int32]

GREEDY = SamplingParams(temperature=0.0)
ORDER = np.random.default_rng(5).permutation(len(tiny.VOCABULARY)).astype(np.int32)
"""The target's id of each of the draft's."""


class RenumberedDrafter(Drafter):
    """A draft whose id i is the target's ORDER[i]; its own tree mirrors the target's."""

    def __init__(self, model: ModelDrafter) -> None:
        self.model = model
        self._own_ids = np.argsort(ORDER).astype(np.int32)
        self._tree = TokenTree(model.cache.tree_capacity, NUM_CANDIDATES)

    def own(self, tokens: Sequence[int] | Ids) -> list[int]:
        return self._own_ids[np.asarray(tokens, np.int32)].tolist()  # type: ignore[no-any-return]

    def begin(self, text: Sequence[int], ranking: Ranking) -> None:
        self.ranking = ranking
        self.model.begin(self.own(text), ranking)

    @property
    def num_behind(self) -> int:
        return self.model.num_behind

    def read(self, *, on_progress: Callable[[int, int], None] | None = None) -> None:
        self.model.read(on_progress=on_progress)

    def start_step(self, text: Sequence[int], index: int) -> None:
        self.model.start_step(self.own(text), index)
        self._tree.struct.n_nodes = 0

    def propose(self, tree: TokenTree, nodes: Ids) -> None:
        mirror, tokens = self._tree, self.own(tree.token[: tree.size])
        if mirror.size == 0:
            mirror.reset(tokens[0])
        for node in range(mirror.size, tree.size):
            mirror.add(int(tree.parent[node]), tokens[node], 1.0)
        self.model.propose(mirror, nodes)
        ids = mirror.candidate_ids[nodes]
        tree.candidate_ids[nodes] = np.where(ids < 0, ids, ORDER[ids])
        tree.candidate_probs[nodes] = mirror.candidate_probs[nodes]
        tree.num_candidates[nodes] = mirror.num_candidates[nodes]

    def passes(self) -> Sequence[tuple[int, float]]:
        return self.model.passes()

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        known = [node for node in path if node < self._tree.size]
        assert self._tree.token[known].tolist() == self.own(tree.token[known])
        self.model.commit(self._tree, known)

    def rewind(self, length: int) -> None:
        self.model.rewind(length)


@pytest.fixture(scope="module")
def renumbered(tiny_pair: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """The target and the same draft as `tiny_pair`'s with other ids."""
    path = tmp_path_factory.mktemp("models") / "renumbered.gguf"
    return TinyPair(tiny_pair.target, tiny.write_model(path, noise=0.05, order=ORDER))


def prompt(length: int = 20, seed: int = 0) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(tiny.VOCABULARY.normal, length - 1).tolist()]


@pytest.mark.parametrize("policy", ["chain:6", "dyspec:16", "specinfer:3x2", "sequoia:12"])
def test_other_ids_change_no_step(tiny_pair: TinyPair, renumbered: TinyPair, policy: str) -> None:
    """At temperature 0 noise, which goes by the id, has no part in it."""
    with opened_decoder(tiny_pair, policy) as ordinary, opened_decoder(renumbered, policy) as other:
        drafter = other.drafter = RenumberedDrafter(model_drafter(other))
        accepted = 0
        for seed in range(3):
            text = prompt(seed=seed)
            for one, two in zip(
                steps(ordinary, text, GREEDY, seed=1, max_tokens=80),
                steps(other, text, GREEDY, seed=1, max_tokens=80),
                strict=True,
            ):
                assert (one.tokens, one.path, one.nodes) == (two.tokens, two.path, two.nodes)
                accepted += two.num_accepted
            read = drafter.model.cache.tokens
            assert read == drafter.own(other.target.tokens)[: len(read)]
            assert len(other.target.tokens) - len(read) <= 2, "what was evaluated is kept"
        assert accepted > 60


@pytest.mark.parametrize("policy", ["chain:6", "dyspec:16", "dyspec-threshold:16", "priced"])
def test_other_ids_change_no_text(tiny_pair: TinyPair, renumbered: TinyPair, policy: str) -> None:
    params = SamplingParams(temperature=0.7)
    with opened_decoder(tiny_pair, "none") as plain, opened_decoder(renumbered, policy) as decoder:
        decoder.drafter = RenumberedDrafter(model_drafter(decoder))
        text, accepted = prompt(), 0
        for seed in range(3):
            found = list(steps(decoder, text, params, seed=seed, max_tokens=60))
            said = [token for step in found for token in step.tokens]
            assert said == reply(plain, text, params, seed=seed, max_tokens=60)
            accepted += sum(step.num_accepted for step in found)
            text = [*text, *said, *prompt(8, seed=seed)]
            decoder.rewind(len(text) - 12)
        assert accepted > 10


def test_a_drafter_that_is_closed_proposes_nothing(tiny_pair: TinyPair) -> None:
    with opened_decoder(tiny_pair, "dyspec:4") as decoder:
        drafter = model_drafter(decoder)
        drafter.begin(prompt()[:-1], Ranking(GREEDY, 1))
        decoder.tree.reset(270)
        drafter.close()
        drafter.close()
        drafter.start_step(prompt()[:-1], 0)
        with pytest.raises(ValueError, match="closed"):
            drafter.propose(decoder.tree, np.zeros(1, np.int32))


def test_no_drafter_keeps_nothing_and_proposes_nothing() -> None:
    drafter, tree = NoDrafter(), TokenTree(4, 8)
    tree.reset(5)
    drafter.begin([1, 2], Ranking(GREEDY, 1))
    drafter.read()
    drafter.start_step([1, 2], 0)
    drafter.proposer(tree)
    drafter.propose(tree, np.zeros(1, np.int32))
    drafter.commit(tree, [0])
    drafter.rewind(1)
    assert (tree.num_candidates[0], drafter.num_behind, drafter.shared_cache) == (0, 0, None)
    assert (drafter.passes(), drafter.read_seconds, sum(drafter.totals)) == ((), 0.0, 0.0)
