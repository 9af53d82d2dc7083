"""JSON schemas asked of a real model: -m model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.policy import Nodes
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.engine import EngineConfig
from dyspec_edge.files import catalog, fetch
from dyspec_edge.server.run import ServerConfig
from tests.server.conftest import TinyServer, running

pytestmark = pytest.mark.model

INVOICE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "invoice_number": {"type": "integer", "minimum": 1, "maximum": 9999},
        "billing_address_city": {"enum": ["Bern", "Basel", "Geneva"]},
        "date_of_delivery": {"type": "string", "format": "date"},
        "payment_has_been_received": {"type": "boolean"},
    },
    "required": [
        "invoice_number",
        "billing_address_city",
        "date_of_delivery",
        "payment_has_been_received",
    ],
}


@pytest.fixture(scope="module")
def real_server() -> Iterator[TinyServer]:
    """SmolLM2 that drafts for itself."""
    path = fetch.ensure(catalog.load()["smollm2"].target)
    config = EngineConfig(path, path, policy="dyspec:8", num_ctx=2048, num_threads=1)
    with running(config, ServerConfig("smollm2")) as found:
        found.http.timeout = 600.0
        yield found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts steps, those whose tree branches, and the tokens that they emit."""
    found, step = Counter[str](), Conversation._step

    def watched(self: Conversation, *arguments: Any) -> Step:
        one = step(self, *arguments)
        found.update(steps=1, branches=not one.is_chain, tokens=len(one.tokens))
        found.update(accepted=one.num_accepted, forced=one.num_forced)
        return one

    monkeypatch.setattr(Conversation, "_step", watched)
    return found


def ask(server: TinyServer, schema: Any, text: str = "", **fields: Any) -> tuple[str, str]:
    """The text and why it ended."""
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    text = text or f"Answer in JSON under this schema: {json.dumps(schema)}"
    choice = server.chat(text, response_format=wanted, **fields)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


# The prompt does not say what the properties are called: only the grammar knows.
def test_forced_text_takes_fewer_passes_with_the_grammar_in_the_tree(
    real_server: TinyServer, seen: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranking = Conversation._ranking

    def without(self: Conversation, sampler: Sampler) -> Ranking:
        return replace(ranking(self, sampler), grammar=None)

    def grown(self: Conversation, tree: TokenTree, max_depth: int) -> Nodes:
        return self.policy.grow(tree, self.drafter, max_depth)

    def measured() -> tuple[list[str], float]:
        seen.clear()
        texts = [
            ask(real_server, INVOICE, "Write an invoice.", seed=seed, max_tokens=200)[0]
            for seed in range(5)
        ]
        return texts, seen["tokens"] / seen["steps"]

    texts, tokens_per_pass = measured()
    assert seen["forced"] > 0
    monkeypatch.setattr(Conversation, "_ranking", without)
    monkeypatch.setattr(Conversation, "_grow", grown)
    others, fewer = measured()
    same = sum(a == b for a, b in zip(texts, others, strict=True))
    print(f"tokens a pass {tokens_per_pass:.2f}, without {fewer:.2f}; same texts {same}")  # noqa: T201
    assert tokens_per_pass > fewer
