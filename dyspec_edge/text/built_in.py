"""Chat templates for files that have none or a broken one, as Jinja, under llama.cpp's names.

Each continues its own prompt: what a reply adds is what the next prompt has in its place, so that
nothing is read twice.
"""

from __future__ import annotations

from typing import NamedTuple


class BuiltIn(NamedTuple):
    """A template.

    Attributes:
        title: what people call it.
        token: a token that only its vocabularies have; "" if none tells.
        source: Jinja text.
    """

    title: str
    token: str
    source: str


_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' + role + '\n' + message.content + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{ message.content + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
_PHI3 = (
    "{% for message in messages %}"
    "{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_PHI4 = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
_ZEPHYR = (
    "{% for message in messages %}"
    "{{ '<|' + message.role + '|>\n' + message.content + '<|endoftext|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

# In the order in which a vocabulary is asked for their tokens.
BUILT_IN = {
    "gemma": BuiltIn("Gemma's", "<start_of_turn>", _GEMMA),
    "llama3": BuiltIn("Llama 3's", "<|start_header_id|>", _LLAMA3),
    "phi4": BuiltIn("Phi 4's", "<|im_sep|>", _PHI4),
    "chatml": BuiltIn("ChatML", "<|im_start|>", _CHATML),
    "phi3": BuiltIn("Phi 3's", "", _PHI3),
    "zephyr": BuiltIn("Zephyr's", "", _ZEPHYR),
}
