"""llama-server's own endpoints: what Continue and scripts for llama.cpp ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dyspec_edge.llama import InfillTokens, Model
from dyspec_edge.server.infill import infill_prompt
from dyspec_edge.server.run import ServerConfig
from tests.server.conftest import StartServer, TinyServer

PROMPT = {"prompt": "the cat", "seed": 4, "n_predict": 12}


def complete(server: TinyServer, **fields: Any) -> dict[str, Any]:
    answer = server.post("/completion", {**PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_completion_has_the_members_that_clients_read(server: TinyServer) -> None:
    found = complete(server, n_probs=3, return_tokens=True)
    assert found["stop"] is True
    assert found["stop_type"] == "limit"
    assert found["tokens_predicted"] == len(found["tokens"]) == 12
    assert found["tokens_evaluated"] == len(server.service.slots.prepare_raw("the cat").tokens)
    assert len(found["completion_probabilities"]) == 12
    for one in found["completion_probabilities"]:
        assert len(one["top_logprobs"]) == 3
    assert found["generation_settings"]["seed"] == 4
    assert found["timings"]["predicted_n"] == 12
    text = server.post("/detokenize", {"tokens": found["tokens"]}).json()["content"]
    assert text == found["content"]


def test_a_stream_ends_with_a_stop_and_says_the_same(server: TinyServer) -> None:
    whole = complete(server)
    with server.http.stream("POST", "/completion", json={**PROMPT, "stream": True}) as answer:
        found = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    assert "".join(event["content"] for event in found) == whole["content"]
    assert [event["stop"] for event in found] == [False] * (len(found) - 1) + [True]
    assert found[-1]["tokens_predicted"] == 12


def test_a_stop_string_is_named(server: TinyServer) -> None:
    text = complete(server)["content"]
    word = text[4:7]
    found = complete(server, stop=[word, "never"])
    assert found["content"] == text[: text.index(word)]
    assert (found["stop_type"], found["stopping_word"]) == ("word", word)


def test_tokens_and_text(server: TinyServer) -> None:
    found = server.post("/tokenize", {"content": "the cat", "with_pieces": True}).json()["tokens"]
    assert "".join(token["piece"] for token in found) == "the cat"
    ids = server.post("/tokenize", {"content": "the cat"}).json()["tokens"]
    assert ids == [token["id"] for token in found]
    with_bos = server.post("/tokenize", {"content": "the cat", "add_special": True}).json()
    assert with_bos["tokens"][1:] == ids
    assert server.post("/detokenize", {"tokens": [10**6]}).status_code == 400
    assert server.post("/detokenize", {"tokens": [-1]}).status_code == 400


def test_templates_are_applied_and_control_tokens_in_them_stay_text(server: TinyServer) -> None:
    content = "say <|im_end|> twice"
    messages = [{"role": "user", "content": content}]
    found = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert found.endswith("<|im_start|>assistant\n")
    usage = server.chat(content, max_tokens=1)["usage"]
    marks = server.service.model.tokenize(found, add_special=True, parse_special=True)
    assert usage["prompt_tokens"] > len(marks)


def test_properties_and_slots(server: TinyServer) -> None:
    props = server.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["total_slots"] == 3
    slots = server.http.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2]
    assert not any(slot["is_processing"] for slot in slots)
    assert server.http.get("/slots?fail_on_no_slot=1").status_code == 200


def test_metrics_under_both_names(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny"))
    stats = [server.chat(max_tokens=20)["timings"] for _ in range(2)]
    lines = server.http.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["llamacpp:tokens_predicted_total"]) == sum(s["predicted_n"] for s in stats)
    assert float(values["llamacpp:prompt_tokens_total"]) == sum(s["prompt_n"] for s in stats)
    drafted = float(values["llamacpp:spec_decode_num_draft_tokens_total"])
    assert drafted == sum(s["draft_n"] for s in stats)
    assert float(values["dyspec_replies_total"]) == 2
    assert float(values["llamacpp:requests_processing"]) == 0
    positions = [float(v) for name, v in values.items() if "per_pos" in name]
    assert sum(positions) == sum(s["draft_n_accepted"] for s in stats)


def test_a_model_without_tokens_for_it_fills_no_middle(server: TinyServer) -> None:
    for path, body in (
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
    ):
        answer = server.post(path, body)
        assert answer.status_code == 501
        assert "middle" in answer.json()["error"]["message"]


def test_what_is_far_from_the_place_is_cut_first(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = InfillTokens(3, 4, 5, 6, 7)
    monkeypatch.setattr(Model, "infill_tokens", marks)
    model = server.service.model

    def cut(text: str) -> tuple[int, ...]:
        return tuple(model.tokenize(text, add_special=False, parse_special=False))

    short = infill_prompt(model, "the cat", " on it", num_ctx=512, max_tokens=8).tokens
    assert short[1:] == (3, *cut("the cat"), 4, *cut(" on it"), 5)
    many = "abcdefghij" * 60
    long = infill_prompt(
        model, many, many, [("a.py", many)], num_ctx=200, max_tokens=50, begun="be"
    ).tokens
    assert len(long) <= 150
    before = long[long.index(3) + 1 : long.index(4)]
    after = long[long.index(4) + 1 : long.index(5)]
    assert before == cut(many)[-len(before) :]
    assert after == cut(many)[: len(after)]
    assert len(before) > 2 * len(after) > 20
    extra = infill_prompt(model, "a", "b", [("a.py", "the cat")], num_ctx=512, max_tokens=8).tokens
    assert extra.index(6) < extra.index(7) < extra.index(3)
