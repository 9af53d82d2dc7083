"""JSON schemas asked of a real model: -m model."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.policy import Nodes
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.text.json_schema import to_gbnf
from tests.server.conftest import TinyServer
from tests.test_structured_output import random_schema

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


def may_go_on(server: TinyServer, schema: Any, text: str) -> bool:
    """Whether a text is the beginning of one that is valid."""
    tokens = server.service.model.tokenize(text, add_special=False, parse_special=False)
    grammar = Grammar(server.service.model, to_gbnf(schema))
    num_fitting = grammar.num_following(tokens)
    grammar.close()
    return num_fitting == len(tokens)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_200_random_schemas(real_server: TinyServer, seen: Counter[str], part: int) -> None:
    """What ends is valid, what is cut begins something valid, and trees are at work."""
    rng, reasons = random.Random(part), Counter[str]()
    for seed in range(25):
        schema = random_schema(rng)
        text, reason = ask(
            real_server,
            schema,
            seed=seed,
            temperature=rng.choice([0.0, 0.8, 1.2]),
            max_tokens=rng.choice([8, 40, 400]),
        )
        reasons[reason] += 1
        if reason == "stop":
            jsonschema.validate(json.loads(text), schema)
        else:
            assert may_go_on(real_server, schema, text), (schema, text)
    print(f"{dict(reasons)}, {seen['tokens'] / seen['steps']:.2f} tokens a pass")  # noqa: T201
    assert set(reasons) == {"stop", "length"}
    assert seen["accepted"] > 100
    assert seen["branches"] > 0
