"""Sequoia (arXiv 2402.12374): one static tree, the best for measured acceptance rates.

    sequoia:N       the tree of N drafted nodes that is expected to give most tokens
    sequoia:N:D     the same, at most D layers deep
    sequoia:auto    size and depth that give most tokens a second at the measured prices of passes

The rates, how often the k-th child of a node is the accepted one, belong to a pair, a verifier and
a temperature.  `dyspec-edge bench fit-sequoia` measures them and keeps them in the cache
directory; until then `DEFAULT` stands in.  Children are the
first candidates: drawn without replacement under `residual`, ranked under `match`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.policy.interface import Nodes, Policy
from dyspec_edge.decode.policy.sequoia_tree import Programme, Shape, fastest
from dyspec_edge.decode.prices import LivePrices
from dyspec_edge.decode.timing import StepCost
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import ResidualVerifier, Verifier, then_uniform
from dyspec_edge.errors import OptionError
from dyspec_edge.native import MAX_SEQUENCES

AUTO_NODES = 63
"""Drafted nodes that `sequoia:auto` considers at most: prices are measured up to 64 rows."""

WIDTH = 16
"""Children of a node at most, and of the root while acceptance is measured."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often each child was the accepted one.

    Attributes:
        rates: of the first child, the second, ...: `WIDTH` of them, with a sum of at most 1.
        temperature: at which tokens were sampled.
        num_steps: nodes that were looked at.
    """

    rates: tuple[float, ...]
    temperature: float
    num_steps: int


_COUNTS = (251, 32, 7, 1, 1, 1, 1, 1, 2, 1, 0, 2, 0, 0, 0, 0)

DEFAULT = Acceptance(tuple(count / 303 for count in _COUNTS), temperature=0.8, num_steps=303)
"""Of Qwen2.5-Coder 1.5B and 0.5B, Q4_K_M, under `match` with llama.cpp's default sampling:
48 tokens for one prompt of each of 15 categories (chat, translation, questions, code and so on)."""


class SequoiaPolicy(Policy):
    """`sequoia:N[:D]` and `sequoia:auto`.

    Args:
        num_nodes: drafted nodes; None for `auto`.
        end_tokens: int32 ids that end a text; nothing is drafted below them.
        max_depth: layers at most; None for as many as are of use.
        fits: rates that were measured, as `fit` takes them.

    Attributes:
        fits: the rates in use, one per temperature.
        needs_prices: `set_prices` comes before the first reply.
        num_steps: steps whose root had children.
        num_accepted: int64[WIDTH], how often the child of that rank was the accepted one.

    Raises:
        OptionError: the tree has more leaves than there are sequence ids, or cannot be so shallow.
    """

    def __init__(
        self,
        num_nodes: int | None,
        end_tokens: npt.NDArray[np.int32],
        *,
        max_depth: int | None = None,
        fits: Sequence[Acceptance] = (),
    ) -> None:
        size = "auto" if num_nodes is None else str(num_nodes)
        self.name = f"sequoia:{size}" + ("" if max_depth is None else f":{max_depth}")
        self.max_nodes = AUTO_NODES if num_nodes is None else num_nodes
        self.needs_prices = num_nodes is None
        self._max_depth = max_depth
        self._end_tokens = frozenset(end_tokens.tolist())
        self.num_steps = 0
        self.num_accepted = np.zeros(WIDTH, np.int64)
        self._width = WIDTH
        self.fit(fits)

    def narrow(self, num_nodes: int) -> None:
        """One child a node."""
        deepest = self.max_nodes if self._max_depth is None else self._max_depth
        super().narrow(min(num_nodes, deepest))
        self._width = 1
        self.fit(self.fits)

    def residual_verifier(self) -> Verifier:
        """Sequoia's own: where no likely candidate is left, the draft is uniform over the rest."""
        return ResidualVerifier(then_uniform)

    def fit(self, fits: Sequence[Acceptance]) -> None:
        """Take the rates that were measured; before the contexts are made, which leaves decide.

        Args:
            fits: one per temperature, of which a reply takes the nearest; if none, `DEFAULT`.

        Raises:
            OptionError: as the constructor.
        """
        self.fits = tuple(fits) or (DEFAULT,)
        self._shapes = [self._best_tree(fit) for fit in self.fits]
        # Prices are measured in contexts that exist already: those of `auto` hold any tree.
        leaves = [shape.num_leaves for shape in self._shapes]
        any_tree = min(self.max_nodes, self._width**self.max_nodes)
        self.max_leaves = any_tree if self.needs_prices else max(leaves)
        if self.max_leaves > MAX_SEQUENCES:
            raise OptionError(
                f"policy '{self.name}' grows trees of {self.max_leaves} leaves; "
                f"{MAX_SEQUENCES} is the most"
            )
        self._shape = self._shapes[0]

    def set_prices(self, prices: LivePrices) -> None:
        """Choose size and depth by what passes cost now."""
        self.prices = prices
        self.fit(self.fits)

    @property
    def explanation(self) -> str | None:
        """Which rates are used, and what was chosen by them."""
        at = ", ".join(f"{fit.temperature:g}" for fit in self.fits)
        rates = f"acceptance rates measured at temperature {at}"
        if self.fits[0] is DEFAULT:  # not the same pair's own, which may be equal
            rates = "typical acceptance rates, `dyspec-edge bench fit-sequoia` measures this pair's"
        sizes = ", ".join(
            f"{len(shape.children) - 1} nodes in {len(shape.layers())} layers"
            for shape in self._shapes
        )
        return f"policy {self.name}: {sizes}; {rates}"

    def begin(self, _text: Sequence[int], drafter: Drafter) -> bool:
        """Take the tree for the temperature that is nearest."""
        if drafter.ranking is not None:
            wanted = drafter.ranking.params.temperature
            gaps = [abs(fit.temperature - wanted) for fit in self.fits]
            self._shape = self._shapes[int(np.argmin(gaps))]
        return True

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Fill the shape with tokens, a layer per draft pass."""
        shape, place = self._shape, {0: 0}  # the tree's node for each node of the shape
        for layer in shape.layers()[:max_depth]:
            inner = [i for i in layer if i in place and not tree.terminal[place[i]]]
            if not inner:
                break
            drafter.propose(tree, np.array([place[i] for i in inner], np.int32))
            for i in inner:
                node = place[i]
                for rank, child in enumerate(shape.children[i][: self._drawable(tree, node)]):
                    token = int(tree.candidate_ids[node, rank])
                    confidence = float(tree.candidate_probs[node, rank])
                    ends = token in self._end_tokens
                    place[child] = tree.add(node, token, confidence, terminal=ends)
        return native.depth_first(tree.parent, tree.size)

    def learn(
        self, tree: TokenTree, path: Sequence[int], tokens: Sequence[int], _cost: StepCost
    ) -> None:
        """Count which child of the root was accepted."""
        children = tree.children(0)
        # An end token was accepted, too, but is not on the path.
        accepted = path[1] if len(path) > 1 else tree.child(0, tokens[0])
        self.num_steps += bool(children)
        if accepted >= 0:
            self.num_accepted[children.index(accepted)] += 1

    def _best_tree(self, fit: Acceptance) -> Shape:
        rates = fit.rates[: self._width]
        if self.prices is not None:
            target, draft = self.prices.target, self.prices.draft
            assert draft is not None, "it needs a draft"
            return fastest(Programme(rates, 1 + self.max_nodes), target.at, draft.at)
        shape = _best(rates, 1 + self.max_nodes, self._max_depth)
        if shape is None:
            raise OptionError(
                f"policy '{self.name}': with {WIDTH} children a node at most, a tree of "
                f"{self.max_nodes} nodes is more than {self._max_depth} deep"
            )
        return shape

    @staticmethod
    def _drawable(tree: TokenTree, node: int) -> int:
        """Candidates that may become children, those without a probability included."""
        if tree.num_candidates[node] == 0:
            return 0
        return int(np.count_nonzero(tree.candidate_ids[node] >= 0))


@cache
def _best(rates: tuple[float, ...], num_nodes: int, max_depth: int | None) -> Shape | None:
    """The best tree of so many nodes, the root among them, if there is one."""
    programme = Programme(rates, num_nodes, max_depth)
    if not np.isfinite(programme.tokens[-1][num_nodes]):
        return None
    return programme.tree(num_nodes, len(programme.tokens) - 1)
