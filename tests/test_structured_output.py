"""What apps get: replies that fit a grammar or a schema, and log-probabilities, with trees."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from dyspec_edge.engine import Completion, Engine, EngineConfig, SamplingParams
from dyspec_edge.errors import OptionError
from dyspec_edge.files import catalog, fetch
from tests.conftest import TinyPair
from tests.engines import PROMPT, opened


@pytest.fixture(scope="module")
def plain(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(tiny_pair.target) as engine:
        yield engine


@pytest.fixture(scope="module")
def tree(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(tiny_pair.target, tiny_pair.draft) as engine:
        yield engine


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """One whose documents a model that babbles can end: nothing in it is long."""
    kinds = ["text", "integer", "number", "enum", "bool", "null"]
    kind = rng.choice(kinds + ["object", "array", "union"] * (3 if depth < 3 else 0))
    if kind == "object" or depth == 0:
        names = rng.sample(
            ["name", "age", "the tree", "x", 'a"b', "é", "leaf"], rng.randrange(1, 5)
        )
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": [name for name in names if rng.random() < 0.6],
            "additionalProperties": False,
        }
    if kind == "array":
        least = rng.randrange(3)
        most = least + rng.randrange(1, 3)
        items = random_schema(rng, depth + 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": most}
    if kind == "union":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    low = rng.randrange(-50, 50)
    simple: dict[str, dict[str, Any]] = {
        "text": {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 9)},
        "integer": {"type": "integer", "minimum": low, "maximum": low + rng.randrange(200)},
        "number": {"type": "number", "exclusiveMinimum": low},
        "enum": {"enum": rng.sample(["red", "green", 'say "hi"', "back\\slash", 1, None, [2]], 3)},
        "bool": {"type": "boolean"},
        "null": {"type": "null"},
    }
    return simple[kind]


def test_50_random_schemas(plain: Engine, tree: Engine) -> None:
    """Every finished answer is valid, every answer is plain decoding's, and trees are at work."""
    rng, finished, accepted = random.Random(0), 0, 0
    for number in range(50):
        schema = random_schema(rng)
        sampling = SamplingParams(temperature=rng.choice([0.0, 0.8, 1.2]), seed=number)

        def reply(
            engine: Engine, schema: Any = schema, sampling: SamplingParams = sampling
        ) -> Completion:
            return engine.generate(PROMPT, sampling=sampling, json_schema=schema, max_tokens=300)

        found = reply(tree)
        assert found.tokens == reply(plain).tokens
        accepted += found.stats.accepted_tokens
        if found.finish_reason == "stop":
            finished += 1
            jsonschema.validate(json.loads(found.text), schema)
    assert finished >= 48
    assert accepted > 500


def test_an_answer_that_is_cut_is_the_beginning_of_a_valid_one(tree: Engine) -> None:
    schema = random_schema(random.Random(3))
    sampling = SamplingParams(temperature=0.8, seed=5)
    whole = tree.generate(PROMPT, sampling=sampling, json_schema=schema)
    cut = tree.generate(PROMPT, sampling=sampling, json_schema=schema, max_tokens=6)
    assert (whole.finish_reason, cut.finish_reason) == ("stop", "length")
    assert whole.text.startswith(cut.text)
    assert len(cut.tokens) == 6


def test_a_schema_that_cannot_be_used_is_an_error_before_anything_is_read(tree: Engine) -> None:
    for schema, message in (({"not": {}}, "`not`"), ({"type": 1}, "`type`")):
        with pytest.raises(OptionError, match=message):
            tree.generate(PROMPT, json_schema=schema)
    with pytest.raises(OptionError, match="one of them"):
        tree.generate(PROMPT, json_schema=True, sampling=SamplingParams(grammar='root ::= "a"'))
    with pytest.raises(OptionError, match="logprobs is -1"):
        tree.generate(PROMPT, logprobs=-1)
    with pytest.raises(OptionError, match="grammar is 3"):
        tree.generate(PROMPT, sampling=SamplingParams(grammar=3))  # type: ignore[arg-type]


def test_log_probabilities_stand_beside_the_tokens_that_were_emitted(
    plain: Engine, tree: Engine
) -> None:
    sampling = SamplingParams(seed=2)
    want = plain.generate(PROMPT, sampling=sampling, max_tokens=30, logprobs=3)
    for stop in ((), (want.text[8:10],)):
        found = tree.generate(PROMPT, sampling=sampling, max_tokens=30, stop=stop, logprobs=3)
        assert found.logprobs is not None
        assert want.logprobs is not None
        assert tuple(one.token for one in found.logprobs) == found.tokens
        for one, other in zip(found.logprobs, want.logprobs, strict=False):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
    assert tree.generate(PROMPT, sampling=sampling, max_tokens=5).logprobs is None


RECIPES: list[dict[str, Any]] = [
    {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}},
    {"enum": ["red", "green", "blue"]},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "minItems": 3,
     "maxItems": 5},
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
     "required": ["a", "b"]},
    {"type": "object", "properties": {"date": {"type": "string", "format": "date"}},
     "required": ["date"]},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 10}]},
    {"type": "object", "required": ["name", "age", "email"], "properties": {
        "name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "minimum": 0},
        "email": {"type": "string", "maxLength": 30}}},
    {"type": "object", "properties": {"tags": {"type": "array", "maxItems": 4, "items": {
        "type": "string", "maxLength": 12}}}, "required": ["tags"]},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "required": ["x"], "properties": {"x": {"type": "number", "minimum": 0,
     "maximum": 1}}},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["value"],
     "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}}},
    {"oneOf": [
        {"type": "object", "required": ["kind", "r"], "properties": {"kind": {"const": "circle"},
         "r": {"type": "integer"}}},
        {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "point"}}}]},
]  # fmt: skip


@pytest.mark.model
def test_a_dozen_schemas_on_a_real_model() -> None:
    path = fetch.ensure(catalog.load()["smollm2"].target)
    config = EngineConfig(path, path, policy="dyspec:8", num_ctx=1024, num_threads=1)
    finished = accepted = 0
    with Engine.load(config) as engine:
        for number, schema in enumerate(RECIPES):
            found = engine.generate(
                f"Answer in JSON under this schema: {json.dumps(schema)}",
                sampling=SamplingParams(temperature=0.8, seed=number),
                json_schema=schema,
                max_tokens=200,
            )
            accepted += found.stats.accepted_tokens
            if found.finish_reason == "stop":
                finished += 1
                jsonschema.validate(json.loads(found.text), schema)
    assert finished >= 9
    assert accepted > 50


@pytest.mark.model
@pytest.mark.parametrize("policy", ["dyspec:8", "priced"])
def test_200_random_schemas_on_a_real_model(policy: str) -> None:
    """Every answer is valid, and trees are at work."""
    path = fetch.ensure(catalog.load()["smollm2"].target)
    config = EngineConfig(path, path, policy=policy, num_ctx=2048, num_threads=1)
    rng, finished, accepted = random.Random(1), 0, 0
    with Engine.load(config) as engine:
        for number in range(200):
            schema = random_schema(rng)
            found = engine.generate(
                f"Answer in JSON under this schema: {json.dumps(schema)}",
                sampling=SamplingParams(temperature=rng.choice([0.0, 0.8, 1.2]), seed=number),
                json_schema=schema,
                max_tokens=600,
            )
            accepted += found.stats.accepted_tokens
            if found.finish_reason == "stop":
                finished += 1
                jsonschema.validate(json.loads(found.text), schema)
    assert finished >= 198
    assert accepted > 1000 or policy == "priced"
