"""`Llama` against llama-cpp-python's own on the same tiny file, at temperature 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from dyspec_edge import Llama
from dyspec_edge.compat import llama as ours
from dyspec_edge.compat.arguments import NotSupported
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.files import stores
from tests import tiny
from tests.conftest import TinyPair

TEMPLATES = Path(__file__).parent.parent / "text" / "templates"
TEMPLATE = "{{ bos_token }}" + tiny.CHATML
PROMPTS = ["the tree is on", "leaf and root of the tree at"]
MESSAGES = [
    {"role": "system", "content": "be with it"},
    {"role": "user", "content": "the tree is on"},
]
EXACT: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "verbose": False, "type_k": 0, "type_v": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    folder = tmp_path_factory.mktemp("compat")
    return TinyPair(
        tiny.write_model(folder / "target.gguf", chat_template=TEMPLATE),
        tiny.write_model(folder / "draft.gguf", noise=0.05, chat_template=TEMPLATE),
    )


@pytest.fixture(scope="module")
def theirs(files: TinyPair) -> Iterator[llama_cpp.Llama]:
    model = llama_cpp.Llama(str(files.target), logits_all=True, **EXACT)
    yield model
    model.close()


@pytest.fixture(scope="module", params=["dyspec:16", "priced"])
def llm(request: pytest.FixtureRequest, files: TinyPair) -> Iterator[Llama]:
    with Llama(
        str(files.target), draft_model=str(files.draft), policy=request.param, **EXACT
    ) as model:
        yield model


def without_names(answer: Any) -> Any:
    """The same without what names this very answer."""
    if isinstance(answer, dict):
        named = ("id", "created")
        return {k: without_names(v) for k, v in answer.items() if k not in named}
    return [without_names(one) for one in answer] if isinstance(answer, list) else answer


def close(a: Any, b: Any) -> bool:
    """Whether two answers say the same, figures within 1e-3."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float):
        return isinstance(b, (float, np.floating)) and a == pytest.approx(float(b), abs=1e-3)
    return bool(a == b)


def assert_same(found: Any, want: Any) -> None:
    assert close(without_names(found), without_names(want)), (found, want)


COMPLETIONS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 40},
    {"max_tokens": -1},
    {"max_tokens": 30, "logprobs": 3},
    {"max_tokens": 30, "logprobs": 0},
    {"max_tokens": 25, "stop": ["tree"]},
    {"max_tokens": 25, "stop": "e"},
    {"max_tokens": 20, "echo": True},
    {"max_tokens": 20, "logit_bias": {280: 4.0, 300: -5.0}},
    {"max_tokens": 20, "model": "another name"},
]


@pytest.mark.parametrize("options", COMPLETIONS, ids=str)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_completions_are_the_same(
    llm: Llama, theirs: llama_cpp.Llama, prompt: str, options: dict[str, Any]
) -> None:
    theirs.reset()
    want = theirs.create_completion(prompt, temperature=0.0, **options)
    assert_same(llm.create_completion(prompt, temperature=0.0, **options), want)
    assert_same(llm(prompt, temperature=0.0, **options), want)


def test_a_prompt_of_tokens(llm: Llama, theirs: llama_cpp.Llama) -> None:
    tokens = theirs.tokenize(PROMPTS[0].encode())
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "logprobs": 1}
    theirs.reset()
    assert_same(llm(tokens, **options), theirs(tokens, **options))


@pytest.mark.parametrize("options", [{}, {"stop": ["tree"]}, {"logprobs": 2}], ids=str)
def test_a_streamed_completion_says_the_same_in_chunks_of_the_same_form(
    llm: Llama, theirs: llama_cpp.Llama, options: dict[str, Any]
) -> None:
    def streamed(model: Any) -> tuple[list[Any], str, Any]:
        chunks = list(model(PROMPTS[0], temperature=0.0, max_tokens=30, stream=True, **options))
        choices = [chunk["choices"][0] for chunk in chunks]
        assert len({chunk["id"] for chunk in chunks}) == 1
        likely = [c["logprobs"]["token_logprobs"] for c in choices if c["logprobs"]]
        return chunks, "".join(c["text"] for c in choices), [x for some in likely for x in some]

    theirs.reset()
    found, text, likely = streamed(llm)
    want, their_text, their_likely = streamed(theirs)
    assert text == their_text
    if "logprobs" in options:  # llama-cpp-python leaves the last token's out
        assert close(likely[: len(their_likely)], their_likely)
    for chunk, other in ((found[0], want[0]), (found[-1], want[-1])):
        assert chunk.keys() == other.keys()
        assert chunk["choices"][0].keys() == other["choices"][0].keys()
    assert_same(found[-1], want[-1])


CHATS: list[dict[str, Any]] = [
    {"max_tokens": 30},
    {},
    {"max_tokens": 30, "logprobs": True, "top_logprobs": 2},
    {"max_tokens": 30, "stop": ["of"]},
]


@pytest.mark.parametrize("options", CHATS, ids=str)
def test_chats_are_the_same(llm: Llama, theirs: llama_cpp.Llama, options: dict[str, Any]) -> None:
    theirs.reset()
    want = theirs.create_chat_completion(MESSAGES, temperature=0.0, **options)
    assert_same(llm.create_chat_completion(MESSAGES, temperature=0.0, **options), want)


def test_a_streamed_chat_has_the_same_form(llm: Llama, theirs: llama_cpp.Llama) -> None:
    def streamed(model: Any) -> tuple[list[Any], str]:
        chunks = list(
            model.create_chat_completion(MESSAGES, temperature=0.0, max_tokens=30, stream=True)
        )
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        return chunks, "".join(delta.get("content", "") for delta in deltas)

    theirs.reset()
    found, text = streamed(llm)
    want, their_text = streamed(theirs)
    assert text == their_text
    for place in (0, 1, -1):
        chunk, other = found[place], want[place]
        chunk["choices"][0]["delta"].pop("content", None)
        other["choices"][0]["delta"].pop("content", None)
        assert_same(chunk, other)


def test_tokens_and_sizes_are_the_same(llm: Llama, theirs: llama_cpp.Llama) -> None:
    for text in (b"the tree", " é 家".encode(), b"<|im_start|>user"):
        for add_bos in (True, False):
            for special in (True, False):
                ids = llm.tokenize(text, add_bos, special)
                assert ids == theirs.tokenize(text, add_bos, special)
                assert llm.detokenize(ids) == theirs.detokenize(ids)
                assert llm.detokenize(ids, special=True) == theirs.detokenize(ids, special=True)
    for name in ("n_ctx", "n_vocab", "token_eos", "token_bos", "token_nl"):
        assert getattr(llm, name)() == getattr(theirs, name)()


def test_the_draft_is_at_work(files: TinyPair) -> None:
    with Llama(files.target, draft_model=files.draft, policy="dyspec:16", **EXACT) as llm:
        llm(PROMPTS[0], temperature=0.0, max_tokens=60)
        step = llm.engine.last_step
        assert step is not None
        assert step.num_drafted > 0


def test_seeds(llm: Llama) -> None:
    def said(**options: Any) -> str:
        return str(llm(PROMPTS[0], max_tokens=30, temperature=1.0, **options)["choices"][0]["text"])

    assert said(seed=4) == said(seed=4) != said(seed=5)
    llm.set_seed(7)
    try:
        assert said() == said()
    finally:
        llm.set_seed(0xFFFFFFFF)
    assert said() != said()


def test_grammars_and_schemas(llm: Llama) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "tree" | "leaf"', verbose=False)
    for given in (grammar, 'root ::= "tree" | "leaf"'):
        found = llm(PROMPTS[0], grammar=given, max_tokens=20)
        assert found["choices"][0]["text"] in ("tree", "leaf")
    for form in (
        {"type": "json_object", "schema": {"enum": ["tree"]}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["tree"]}}},
    ):
        found = llm.create_chat_completion(MESSAGES, response_format=form)
        assert found["choices"][0]["message"]["content"] == '"tree"'
    with pytest.raises(OptionError, match="response_format"):
        llm.create_chat_completion(MESSAGES, response_format={"type": "yaml"})


def test_tools_come_back_as_calls(files: TinyPair) -> None:
    template = (TEMPLATES / "qwen2.5.jinja").read_text(encoding="utf-8")
    function = {
        "name": "plant",
        "parameters": {"type": "object", "properties": {"kind": {"enum": ["oak"]}},
                       "required": ["kind"]},
    }  # fmt: skip
    tools = [{"type": "function", "function": function}]
    exact = {**EXACT, "n_ctx": 1024, "chat_format": template}
    with Llama(files.target, draft_model=files.draft, policy="dyspec:8", **exact) as llm:
        for options in (
            {"tools": tools, "tool_choice": "required"},
            {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "plant"}}},
            {"functions": [function], "function_call": {"name": "plant"}},
        ):
            found = llm.create_chat_completion(MESSAGES, seed=1, max_tokens=80, **options)
            choice = found["choices"][0]
            call = choice["message"]["tool_calls"][0]
            assert call["function"]["name"] == "plant"
            assert '"oak"' in call["function"]["arguments"]
            chunks = list(
                llm.create_chat_completion(MESSAGES, seed=1, max_tokens=80, stream=True, **options)
            )
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
            assert parts[0]["function"] == {"name": "plant", "arguments": ""}
            written = "".join(p["function"]["arguments"] for p in parts if p["index"] == 0)
            assert written == call["function"]["arguments"]
            reason = chunks[-1]["choices"][0]["finish_reason"]
            assert reason == choice["finish_reason"]
        assert reason == "tool_calls"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"logits_processor": [len]}, "logits_processor"),
        ({"stopping_criteria": [len]}, "stopping_criteria"),
        ({"suffix": "end"}, "suffix"),
        ({"mirostat_mode": 2}, "mirostat_mode"),
        ({"tfs_z": 0.5}, "tfs_z"),
        ({"echo": True, "logprobs": 1}, "echo with logprobs"),
        ({"grammar": 5}, "grammar is a int"),
    ],
)
def test_what_is_not_supported_is_named(llm: Llama, options: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionError, match=name):
        llm(PROMPTS[0], **options)


def test_pictures_and_methods_that_are_not_supported(llm: Llama) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "file:x"}}]
    with pytest.raises(OptionError, match="'image_url'"):
        llm.create_chat_completion([{"role": "user", "content": parts}])
    for name in ("create_embedding", "embed", "save_state", "eval"):
        with pytest.raises(NotSupported, match=name):
            getattr(llm, name)
    assert not hasattr(llm, "embed")
    assert not hasattr(llm, "something_else")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"embedding": True}, "embedding"),
        ({"vocab_only": True}, "vocab_only"),
        ({"rope_freq_base": 1.0}, "rope_freq_base"),
        ({"draft_model": object()}, "draft_model is a object"),
        ({"no_such_option": 1}, "no_such_option"),
        ({"chat_format": "functionary"}, "functionary"),
    ],
)
def test_options_of_the_constructor_that_are_not_supported(
    files: TinyPair, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(OptionError, match=name):
        Llama(files.target, verbose=False, **options)


def test_options_that_change_nothing_here_are_taken(files: TinyPair) -> None:
    with Llama(
        files.target,
        n_batch=64,
        logits_all=True,
        n_threads_batch=2,
        embedding=False,
        policy="none",
        **EXACT,
    ) as llm:
        assert llm(PROMPTS[0], max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_closed_one_says_so(files: TinyPair) -> None:
    llm = Llama(files.target, policy="none", **EXACT)
    llm.close()
    llm.close()
    for call in (lambda: llm("the"), lambda: llm.tokenize(b"the"), llm.n_vocab):
        with pytest.raises(DyspecError, match="closed"):
            call()


def test_from_pretrained_takes_what_is_here(
    files: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stores.own_path("somebody/tiny", "target.gguf")
    place.parent.mkdir(parents=True)
    place.write_bytes(files.target.read_bytes())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with Llama.from_pretrained("somebody/tiny", "target.gguf", policy="none", **EXACT) as llm:
        assert llm.model_path == str(place)
    with pytest.raises(DyspecError, match=r"\*.gguf cannot be looked for"):
        Llama.from_pretrained("somebody/tiny", "*.gguf", **EXACT)


def test_openai_types(llm: Llama) -> None:
    pytest.importorskip("openai")
    found = llm.create_chat_completion_openai_v1(MESSAGES, max_tokens=5)
    assert found.choices[0].message.role == "assistant"
    chunks = list(llm.create_chat_completion_openai_v1(MESSAGES, max_tokens=5, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_it_says_what_it_follows() -> None:
    assert f"version {llama_cpp.__version__}" in " ".join((ours.__doc__ or "").split())
