"""Chat templates: real ones, strict ones, broken ones, and files without any."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import llama_cpp
import pytest

from dyspec_edge.errors import OptionError
from dyspec_edge.text.built_in import BUILT_IN
from dyspec_edge.text.template import ChatTemplate
from dyspec_edge.text.thoughts import opens_thought

TEMPLATES = Path(__file__).parent / "templates"

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi <b> & é"}
REPLY = {"role": "assistant", "content": "Hello."}


def load(name: str) -> ChatTemplate:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos="<s>", eos="</s>")


# Real templates


def test_qwen_has_its_own_system_text_and_takes_the_users() -> None:
    template = load("qwen2.5")
    assert template.render([USER]) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. "
        "You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi <b> & é<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render([SYSTEM, USER], add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> & é<|im_end|>\n"
    )


def test_qwen_writes_tools_as_json_without_html_escapes() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "a < b & é"}}
    text = load("qwen2.5").render([USER], tools=[tool])
    assert '{"type": "function", "function": {"name": "f", "description": "a < b & é"}}' in text


def test_smollm_renders_two_turns() -> None:
    assert load("smollm2").render([SYSTEM, USER, REPLY, USER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> & é<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nHi <b> & é<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_llama3_starts_with_bos_once_and_takes_a_date() -> None:
    template = load("llama3")
    text = template.render([SYSTEM, USER], variables={"date_string": "1 Jan 2025"})
    assert text.startswith("<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 1 Jan")
    assert text.count("<s>") == 1
    assert template.starts_with_bos(text)
    assert not load("smollm2").starts_with_bos(load("smollm2").render([USER]))
    assert "Today Date: " in template.render([USER])


# The next turn goes on where the cache ends


def is_continued(template: ChatTemplate, reply: str, first: Iterable[dict[str, str]]) -> bool:
    before = list(first)
    prompt = template.render(before)
    after = template.render([*before, {"role": "assistant", "content": reply}, USER])
    return after.startswith(prompt + reply)


@pytest.mark.parametrize("name", ["qwen2.5", "smollm2", "strict", "llama3"])
@pytest.mark.parametrize("first", [[USER], [SYSTEM, USER], [USER, REPLY, USER]])
def test_the_next_prompt_continues_this_one(name: str, first: list[dict[str, str]]) -> None:
    assert is_continued(load(name), "Hello.\n\nMore: é", first)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("reply", ["Hello.", " padded \n", ""])
def test_built_in_templates_are_continued_by_any_reply(name: str, reply: str) -> None:
    template = ChatTemplate.from_model(None, name, bos="<s>")
    for first in ([USER], [SYSTEM, USER], [USER, REPLY, USER]):
        assert is_continued(template, reply, first)


@pytest.mark.parametrize(
    ("name", "continued"), [("qwen2.5", True), ("smollm2", True), ("strict", False)]
)
def test_templates_that_strip_lose_white_space_at_the_ends(name: str, continued: bool) -> None:
    assert is_continued(load(name), "Hello.\n", [USER]) is continued


def test_thoughts_are_not_continued() -> None:
    template = load("thinking")
    prompt = template.render([USER])
    assert opens_thought(prompt)
    assert not opens_thought(template.render([USER], variables={"enable_thinking": False}))
    reply = {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nHello."}
    assert "let me see" not in template.render([USER, reply, USER])


# Conversations that a template refuses


def test_two_user_messages_are_joined() -> None:
    two = [USER, {"role": "user", "content": "And?"}]
    assert load("strict").render(two) == (
        "<s><start_of_turn>user\nHi <b> & é\n\nAnd?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert "And?<|im_end|>" in load("qwen2.5").render(two)  # accepted as it is


def test_a_system_message_goes_into_the_first_user_message() -> None:
    expected = (
        "<s><start_of_turn>user\nBe brief.\n\nHi <b> & é<end_of_turn>\n<start_of_turn>model\n"
    )
    assert load("strict").render([SYSTEM, USER]) == expected
    assert ChatTemplate.from_model(None, "gemma", bos="<s>").render([SYSTEM, USER]) == expected


def test_a_system_message_alone_becomes_the_users() -> None:
    assert "user\nBe brief.<end" in load("strict").render([SYSTEM])


def test_an_empty_system_message_leaves_no_trace() -> None:
    empty = {"role": "system", "content": ""}
    assert load("strict").render([empty, USER]) == load("strict").render([USER])


def test_a_system_message_that_is_passed_over_is_moved() -> None:
    deaf = ChatTemplate(
        "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    assert deaf.render([SYSTEM, USER]) == "[user]Be brief.\n\nHi <b> & é"


def test_roles_are_joined_before_the_system_message_is_moved() -> None:
    alternating = ChatTemplate(
        "{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0-1].role %}"
        "{{ raise_exception('twice') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    assert alternating.render([SYSTEM, USER, USER]) == (
        "[system]Be brief.[user]Hi <b> & é\n\nHi <b> & é"
    )


def test_what_stays_refused_says_so_in_the_templates_words() -> None:
    with pytest.raises(OptionError, match=r"refuses these messages: Conversation roles must"):
        load("strict").render([REPLY, USER])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "no messages"),
        ([{"role": "user"}], "message 1 has no text as its 'content'"),
        ([USER, {"role": 3, "content": "x"}], "message 2 has no text as its 'role'"),
        ([{"role": "user", "content": ["x"]}], "message 1 has no text"),
    ],
)
def test_malformed_messages(messages: list[dict[str, object]], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        load("smollm2").render(messages)


# Templates that are broken or hostile


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% for a in b %}", "{% unknown %}"])
def test_a_template_that_cannot_be_parsed(source: str) -> None:
    with pytest.raises(OptionError, match="cannot be parsed") as error:
        ChatTemplate(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.nothing.at_all }}",
        "{{ 1 + messages[0].content }}",
        "{{ messages[7].content + 'x' }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__()[0]() }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{% include 'x' %}",
        "{{ 'x' * 1000000000000000 }}",
    ],
)
def test_a_template_that_fails_is_one_line(source: str) -> None:
    with pytest.raises(OptionError, match="refuses these messages") as error:
        ChatTemplate(source).render([USER])
    assert "\n" not in str(error.value)


def test_what_transformers_gives_to_templates_is_there() -> None:
    template = ChatTemplate(
        "{%- for m in messages %}\n"
        "    {%- if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {%- generation %}{{ m | tojson }}{% endgeneration %}\n"
        "{%- endfor %}{{ strftime_now('%%') }}{{ eos_token }}{{ tools is none }}",
        eos="</s>",
    )
    assert template.render([USER, REPLY]) == ('{"role": "user", "content": "Hi <b> & é"}%</s>True')


# Which template


def test_the_files_template_is_used_without_a_word() -> None:
    template = ChatTemplate.from_model("[{{ messages[0].content }}]")
    assert template.render([SYSTEM]) == "[Be brief.]"
    assert template.note == ""


def test_the_users_template_wins() -> None:
    template = ChatTemplate.from_model("file", "{{ messages[0].content }}!")
    assert template.render([SYSTEM]) == "Be brief.!"
    assert "given by the user" in template.note


@pytest.mark.parametrize(
    ("token", "title", "start"),
    [
        ("<start_of_turn>", "Gemma's", "<s><start_of_turn>user\n"),
        ("<|start_header_id|>", "Llama 3's", "<s><|start_header_id|>user"),
        ("<|im_start|>", "ChatML", "<|im_start|>user\n"),
        ("<|im_sep|>", "Phi 4's", "<|im_start|>user<|im_sep|>"),
        ("nothing", "ChatML", "<|im_start|>user\n"),
    ],
)
def test_a_file_without_a_template_gets_a_fitting_one(token: str, title: str, start: str) -> None:
    template = ChatTemplate.from_model(None, bos="<s>", has_token=lambda text: text == token)
    assert template.render([USER]).startswith(start)
    assert template.note == (
        f"the model file has no chat template; {title} is used (see --chat-template)"
    )


def test_a_built_in_template_by_name() -> None:
    template = ChatTemplate.from_model("{{ x }}", "chatml")
    assert template.render([USER]) == (
        "<|im_start|>user\nHi <b> & é<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'alpaca' is neither .* chatml, gemma, llama3"):
        ChatTemplate.from_model(None, "alpaca")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_templates_write_what_llama_cpp_writes_under_their_names(name: str) -> None:
    messages = [USER, REPLY, USER] if name == "gemma" else [SYSTEM, USER, REPLY, USER]
    chat = (llama_cpp.llama_chat_message * len(messages))(
        *((message["role"].encode(), message["content"].encode()) for message in messages)
    )
    room = ctypes.create_string_buffer(4096)
    size = llama_cpp.llama_chat_apply_template(
        name.encode(), chat, len(messages), True, ctypes.cast(room, ctypes.c_char_p), len(room)
    )
    assert 0 < size < len(room)
    assert ChatTemplate.from_model(None, name).render(messages) == room.raw[:size].decode()


# Variables


def test_variables_reach_the_template_and_those_that_do_not_are_known() -> None:
    template = ChatTemplate("{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}")
    assert template.render([SYSTEM], variables={"enable_thinking": True}) == "Be brief.<think>"
    assert template.render([SYSTEM], variables={"enable_thinking": False}) == "Be brief."
    assert template.unread(["enable_thinking", "effort"]) == ["effort"]


@pytest.mark.parametrize("name", ["bos_token", "messages", "add_generation_prompt"])
def test_the_prompts_own_variables_are_not_the_users(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}: a chat template gets that from the prompt"):
        load("qwen2.5").render([USER], variables={name: "x"})
