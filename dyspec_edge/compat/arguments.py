"""What llama-cpp-python's `Llama` may be given: defaults, forms, and what is not supported here."""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dyspec_edge import llama
from dyspec_edge.engine import SamplingParams
from dyspec_edge.errors import DownloadError, OptionError
from dyspec_edge.files import fetch, hub
from dyspec_edge.files.catalog import ModelSource
from dyspec_edge.files.transfer import Unavailable

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's word for: another seed each time."""

NO_EFFECT = frozenset(
    (
        *("main_gpu", "n_batch", "n_ubatch", "n_threads_batch", "logits_all", "offload_kqv"),
        *("op_offload", "swa_full", "no_perf", "numa", "spm_infill"),
    )
)
"""Of the constructor: how passes are cut and where buffers lie is decided here."""

REFUSED: Mapping[str, Any] = {
    "split_mode": 1,
    "tensor_split": None,
    "vocab_only": False,
    "kv_overrides": None,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "embedding": False,
    "lora_base": None,
    "lora_scale": 1.0,
    "chat_handler": None,
    "tokenizer": None,
    "suffix": None,
    "tfs_z": 1.0,
    "mirostat_mode": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "stopping_criteria": None,
    "logits_processor": None,
}
"""Options that only their defaults may be given for."""

METHODS = frozenset(
    (
        *("create_embedding", "embed", "eval", "sample", "generate", "set_cache", "save_state"),
        *("load_state", "n_embd", "pooling_type", "tokenizer", "ctx", "model", "scores"),
        *("eval_tokens", "eval_logits", "metadata"),
    )
)

_CHAT_FORMATS = {"llama-3": "llama3"}


class NotSupported(OptionError, AttributeError):
    """Something of llama-cpp-python's `Llama` that dyspec_edge.Llama does not have."""


def refuse(given: Mapping[str, Any]) -> None:
    """Raise for options that are not supported, unless they have their defaults.

    Raises:
        NotSupported: names the first of them.
    """
    for name, value in given.items():
        if name in NO_EFFECT:
            continue
        if name not in REFUSED:
            raise NotSupported(f"{name} is not known to dyspec_edge.Llama; leave it out")
        if value is not REFUSED[name] and value != REFUSED[name]:
            hint = "send several parts as text" if name == "suffix" else "leave it out"
            raise NotSupported(f"{name} is not supported by dyspec_edge.Llama; {hint}")


def fetched(repo: str, filename: str) -> Path:
    """The one file of a hub repository that has this name, or fits this pattern.

    Raises:
        OptionError: none does, or more than one.
        DownloadError: it cannot be fetched.
    """
    if set(filename) & set("*?["):
        try:
            names = hub.list_files(repo)
        except Unavailable as error:
            raise DownloadError(f"{filename} cannot be looked for: {error}") from error
        found = [name for name in names if fnmatch.fnmatch(name, filename)]
        if len(found) != 1:
            raise OptionError(f"{len(found)} files of {repo} are named {filename!r}; name one")
        (filename,) = found
    return fetch.ensure(ModelSource(repo, filename))


def draft_path(draft: Any) -> Any:
    """The draft's file.

    Raises:
        NotSupported: an object of llama-cpp-python that drafts.
    """
    if draft is not None and not isinstance(draft, str) and not hasattr(draft, "__fspath__"):
        raise NotSupported(
            f"draft_model is a {type(draft).__name__}; give the path of a GGUF file, or leave it "
            "out: what the text repeats is drafted anyway"
        )
    return draft


def cache_type(value: Any) -> str:
    """The name of a cache type that is given by ggml's number or by name."""
    if value is None:
        return "f16"
    names = {int(number): name for name, number in llama.CACHE_TYPES.items()}
    return names.get(value, str(value)) if isinstance(value, int) else str(value)


def chat_template(chat_format: str | None) -> str | None:
    """The built-in template of a chat format; None for the file's own."""
    return None if chat_format is None else _CHAT_FORMATS.get(chat_format, chat_format)


def seed_of(seed: int | None, constructors: int) -> int | None:
    """The seed of a reply: its own, or one that the constructor's fixes; None for a random one."""
    if seed is not None:
        return None if seed in (-1, RANDOM_SEED) else seed
    if constructors in (-1, RANDOM_SEED):
        return None
    return random.Random(constructors).randint(0, 2**32)


def grammar_of(grammar: Any) -> str | None:
    """The text of a grammar: GBNF, or what llama_cpp.LlamaGrammar holds.

    Raises:
        OptionError: something else.
    """
    text = getattr(grammar, "_grammar", grammar)
    if text is not None and not isinstance(text, str):
        raise OptionError(f"grammar is a {type(grammar).__name__}; give GBNF or a LlamaGrammar")
    return text


def schema_of(response_format: Any) -> dict[str, Any] | None:
    """The JSON schema of a `response_format`.

    Raises:
        OptionError: a type that is not known, or a schema that is missing.
    """
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return response_format.get("schema") or {"type": "object"}
    schema = None
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
    if schema is None:
        raise OptionError(
            f"response_format is {response_format!r:.80}; its type must be text, json_object or "
            "json_schema, the last with a schema"
        )
    return dict(schema)


def tools_of(
    functions: Sequence[Any] | None, function_call: Any, tools: Any, tool_choice: Any
) -> tuple[Any, Any]:
    """Tools and the choice among them; functions are what OpenAI called them once."""
    if functions is not None:
        tools = [{"type": "function", "function": function} for function in functions]
    if isinstance(function_call, str):
        tool_choice = function_call
    elif function_call is not None:
        tool_choice = {"type": "function", "function": dict(function_call)}
    return tools, "auto" if tool_choice is None else tool_choice


def sampling(options: Mapping[str, Any], *, seed: int | None, last_n: int) -> SamplingParams:
    """Sampling options under their names here.

    Args:
        options: temperature, top_p, top_k, min_p, typical_p, penalties, logit_bias, grammar.
        last_n: tokens that penalties look back at.
    """
    bias = options["logit_bias"] or {}
    return SamplingParams(
        temperature=max(0.0, options["temperature"]),
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        typical=options["typical_p"],
        repeat_penalty=options["repeat_penalty"],
        repeat_last_n=last_n,
        frequency_penalty=options["frequency_penalty"],
        presence_penalty=options["presence_penalty"],
        logit_bias=tuple((int(token), float(amount)) for token, amount in bias.items()),
        grammar=grammar_of(options["grammar"]),
        seed=seed,
    )
