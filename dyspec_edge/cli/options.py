"""The options of the command line, spelled and defaulted as llama.cpp's.

Declared once for all commands; `sampling_params` and `engine_config` turn what was typed into the
engine's own types.  Which files the model options mean is the job of `model_choice`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dyspec_edge.cli.syntax import (
    Bias,
    Bytes,
    GroupedOption,
    JsonObject,
    Layers,
    Number,
    Size,
    Text,
    unescape,
)
from dyspec_edge.errors import OptionError
from dyspec_edge.text.built_in import BUILT_IN
from dyspec_edge.text.utf8 import read

if TYPE_CHECKING:
    from dyspec_edge.decode.sampling import SamplingParams
    from dyspec_edge.engine import EngineConfig

F = TypeVar("F", bound=Callable[..., Any])

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
MAX_SEED = 2**64 - 1

# Name: (mapped, locked).
LOAD_MODES = {
    "auto": (True, False),
    "none": (False, False),
    "mmap": (True, False),
    "mlock": (False, True),
    "mmap+mlock": (True, True),
}


TEXT = Text()
_FILE = click.Path(path_type=Path)


def _option(heading: str, *names: str, **settings: Any) -> Callable[[F], F]:
    return click.option(*names, cls=GroupedOption, heading=heading, **settings)


def _sets(variable: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """What an option says goes into the environment, where huggingface_hub looks for it."""

    def callback(_context: click.Context, _option: click.Parameter, value: Any) -> None:
        if value:
            os.environ[variable] = str(int(value))

    return callback


_HUB = "Model hub"
_HUB_OPTIONS = (
    _option(_HUB, "--offline", is_flag=True, expose_value=False, callback=_sets("HF_HUB_OFFLINE"),
            help="Use files that are here; never ask the network."),
    _option(_HUB, "--hub-timeout", type=Size(1, 3599), expose_value=False, metavar="SECONDS",
            callback=_sets("HF_HUB_ETAG_TIMEOUT"),
            help="Wait this long for the hub's answer. [default: 5]"),
)  # fmt: skip

_MODEL = "Models (the default is the pair qwen2.5-coder)"
_MODEL_OPTIONS = (
    _option(_MODEL, "-m", "--model", type=_FILE, metavar="FILE", help="The target, a GGUF file."),
    _option(_MODEL, "-md", "--model-draft", "--spec-draft-model", type=_FILE, metavar="FILE",
            help="The draft: a small model of the same family; mtp: the head in the target's own "
                 "file, which also drafts where no draft is named; self: a copy of the target in "
                 "fewer bits, made once and kept; none: not even the head."),
    _option(_MODEL, "--pair", metavar="NAME",
            help="Target and draft from the catalog (dyspec-edge models)."),
    _option(_MODEL, "-hf", "--hf-repo", metavar="USER/REPO[:QUANT]",
            help="The target from a Hugging Face repository."),
    _option(_MODEL, "-hfd", "--hf-repo-draft", "--spec-draft-hf",
            metavar="USER/REPO[:QUANT]", help="The draft."),
    _option(_MODEL, "--lora", multiple=True, type=_FILE, metavar="FILE",
            help="A LoRA adapter for the target; may be repeated."),
    _option(_MODEL, "--chat-template", "--chat-template-file", type=TEXT, metavar="TEXT|FILE|NAME",
            help="A Jinja chat template instead of the model's own, or the name of one: "
                 f"{', '.join(sorted(BUILT_IN))}."),
    _option(_MODEL, "--chat-template-kwargs", type=JsonObject(), default={}, metavar="JSON",
            help="Variables for the chat template, e.g. '{\"enable_thinking\": false}'."),
    _option(_MODEL, "-rea", "--reasoning", type=click.Choice(("on", "off", "auto")),
            default="auto", show_default=True,
            help="Whether the model thinks first: enable_thinking for the chat template; "
                 "auto: as the template has it."),
)  # fmt: skip

_TARGET_OPTIONS = (_MODEL_OPTIONS[0], _MODEL_OPTIONS[3], *_MODEL_OPTIONS[5:])
"""Those that name no draft."""

_CONTEXT = "Context and device"
_CONTEXT_OPTIONS = (
    _option(_CONTEXT, "-c", "--ctx-size", type=Size(0),
            help="Usable context in tokens; 0: the training length. "
                 "[default: what fits, at most 8192]"),
    _option(_CONTEXT, "-cd", "--ctx-size-draft", type=Size(0),
            help="The same for the draft."),
    _option(_CONTEXT, "-t", "--threads", type=Size(1), help="CPU threads."),
    _option(_CONTEXT, "-ngl", "--gpu-layers", "--n-gpu-layers", type=Layers(), default="auto",
            show_default=True, metavar="N|auto|all",
            help="Layers of the target on the GPU."),
    _option(_CONTEXT, "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl",
            type=Layers(), default="auto", show_default=True, metavar="N|auto|all",
            help="Layers of the draft on the GPU."),
    _option(_CONTEXT, "--rpc", metavar="HOST:PORT,...",
            help="Servers of other machines (llama.cpp's rpc-server) that take layers of the "
                 "target, as many as fit; the draft stays here."),
    _option(_CONTEXT, "--require-gpu", is_flag=True,
            help="Refuse to run where there is no GPU."),
    _option(_CONTEXT, "-fa", "--flash-attn", type=click.Choice(("on", "off", "auto")),
            default="auto", show_default=True,
            help="Flash attention; auto: off on a CPU where memory allows, it is faster there."),
    _option(_CONTEXT, "-ctk", "--cache-type-k", type=click.Choice(CACHE_TYPES), default="f16",
            show_default=True, metavar="TYPE", help="Type of the cached keys."),
    _option(_CONTEXT, "-ctv", "--cache-type-v", type=click.Choice(CACHE_TYPES), default="f16",
            show_default=True, metavar="TYPE", help="Type of the cached values."),
    _option(_CONTEXT, "-ctkd", "--cache-type-k-draft", "--spec-draft-type-k",
            type=click.Choice(CACHE_TYPES), metavar="TYPE",
            help="Type of the draft's keys. [default: as -ctk; f16 where that is quantised]"),
    _option(_CONTEXT, "-ctvd", "--cache-type-v-draft", "--spec-draft-type-v",
            type=click.Choice(CACHE_TYPES), metavar="TYPE",
            help="Type of the draft's values. [default: as -ctv; f16 where that is quantised]"),
    _option(_CONTEXT, "-lm", "--load-mode", type=click.Choice(tuple(LOAD_MODES)),
            help="How weights come into memory: mapped, read, locked. [default: auto, mapped]"),
    _option(_CONTEXT, "--no-mmap", is_flag=True,
            help="Read the files instead of mapping them: -lm none."),
    _option(_CONTEXT, "--mlock", is_flag=True, help="Keep the models in RAM: -lm mmap+mlock."),
    _option(_CONTEXT, "--memory-limit", type=Bytes(),
            help="Memory to take at most, as 700M or 12G. [default: what is free]"),
    _option(_CONTEXT, "--stream", type=click.Choice(("auto", "on", "off")), default="auto",
            help="Read the target's weights from disk in every pass, ahead of their use: auto "
                 "where they do not fit into memory; off leaves that to the system."),
)  # fmt: skip

_SPECULATION = "Speculation"
_DRAFT_TEMPERATURE = _option(_SPECULATION, "--draft-temp", type=Number(0.0),
                             help="Temperature of the draft.")  # fmt: skip
_DEVICE_SAMPLING = _option(
    _SPECULATION, "--device-sampling", type=click.Choice(("auto", "on", "off")), default="auto",
    show_default=True,
    help="Find the draft's candidates where its logits are; auto: where it is faster.",
)  # fmt: skip
_VERBOSE = _option(_SPECULATION, "-v", "--verbose", is_flag=True,
                   help="Show llama.cpp's log, and tracebacks.")  # fmt: skip
_SPECULATION_OPTIONS = (
    _option(_SPECULATION, "--policy", metavar="NAME[:N]",
            help="none, priced, chain:K[:P], specinfer:K1xK2x..., sequoia:N[:D], sequoia:auto, "
                 "dyspec:N, dyspec-threshold:N[:T]. [default: priced]"),
    _option(_SPECULATION, "--spec-type", metavar="TYPE",
            help="llama.cpp's word for what drafts: draft-simple (-md FILE), draft-mtp (-md mtp), "
                 "ngram-simple (the text's repetitions alone: -md none), none (--policy none)."),
    _option(_SPECULATION, "--spec-draft-n-max", type=Size(1), metavar="N",
            help="llama.cpp's word for --policy chain:N."),
    _option(_SPECULATION, "--spec-draft-p-min", "--draft-p-min", type=Number(0.0, 1.0),
            metavar="P", help="llama.cpp's word for the P of --policy chain:N:P."),
    _option(_SPECULATION, "--verify", type=click.Choice(("auto", "match", "residual")),
            default="auto", show_default=True, help="How drafted tokens are verified."),
    _DRAFT_TEMPERATURE,
    _DEVICE_SAMPLING,
    _VERBOSE,
)  # fmt: skip

_SAMPLING = "Sampling"
_TEMPERATURE = _option(_SAMPLING, "--temp", "--temperature", type=Number(0.0), default=0.8,
                       show_default=True,
                       help="Temperature; 0 takes the most probable token.")  # fmt: skip
_CHAIN_OPTIONS = (
    _option(_SAMPLING, "--top-k", type=Size(0), default=40, show_default=True,
            help="Keep the N most probable tokens; 0: all."),
    _option(_SAMPLING, "--top-p", type=Number(0.0, 1.0), default=0.95, show_default=True,
            help="Keep the most probable tokens up to this sum."),
    _option(_SAMPLING, "--min-p", type=Number(0.0, 1.0), default=0.05, show_default=True,
            help="Drop tokens below this share of the best."),
    _option(_SAMPLING, "--typical", "--typical-p", type=Number(0.0, 1.0), default=1.0,
            show_default=True, help="Locally typical sampling."),
    _option(_SAMPLING, "--repeat-penalty", type=Number(0.0, above=True), default=1.0,
            show_default=True, help="Penalty for repeated tokens."),
    _option(_SAMPLING, "--repeat-last-n", type=Size(-1), default=64, show_default=True,
            help="Tokens that penalties look back on."),
    _option(_SAMPLING, "--frequency-penalty", type=Number(), default=0.0, show_default=True,
            help="Penalty that grows with each repetition."),
    _option(_SAMPLING, "--presence-penalty", type=Number(), default=0.0, show_default=True,
            help="Penalty for tokens that were used at all."),
    _option(_SAMPLING, "--dry-multiplier", type=Number(0.0), default=0.0, show_default=True,
            help="Strength of DRY, against repeated phrases; 0: off."),
    _option(_SAMPLING, "--dry-base", type=Number(1.0), default=1.75, show_default=True,
            help="Base of DRY."),
    _option(_SAMPLING, "--dry-allowed-length", type=Size(0), default=2, show_default=True,
            help="Length of a phrase that DRY lets pass."),
    _option(_SAMPLING, "--dry-penalty-last-n", type=Size(-1), default=64, show_default=True,
            help="Tokens that DRY looks back on."),
    _option(_SAMPLING, "-l", "--logit-bias", type=Bias(), multiple=True,
            help="Add to the logit of a token, e.g. 15043+1; may be repeated."),
)  # fmt: skip
_GRAMMAR_OPTIONS = (
    _option(_SAMPLING, "--grammar", type=TEXT, metavar="GBNF",
            help="The reply fits this grammar, from its rule root on."),
    _option(_SAMPLING, "--grammar-file", type=_FILE, metavar="FILE", help="The same, from a file."),
    _option(_SAMPLING, "-j", "--json-schema", type=TEXT, metavar="SCHEMA",
            help="The reply is JSON that is valid under this schema; {}: any JSON."),
    _option(_SAMPLING, "-jf", "--json-schema-file", type=_FILE, metavar="FILE",
            help="The same, from a file."),
)  # fmt: skip
_SEED = _option(_SAMPLING, "-s", "--seed", type=Size(-1, MAX_SEED), default=-1,
                show_default=True, help="Seed of the first reply; -1: a random one.")  # fmt: skip
_IGNORE_EOS = _option(_SAMPLING, "--ignore-eos", is_flag=True,
                      help="Never draw an end token; the text ends with -n or --stop.")  # fmt: skip
_SAMPLING_OPTIONS = (_TEMPERATURE, *_CHAIN_OPTIONS, _IGNORE_EOS, *_GRAMMAR_OPTIONS, _SEED)

_TEXT_HEADING = "Text"
_TEXT_OPTIONS = (
    _option(_TEXT_HEADING, "-sys", "--system-prompt", type=TEXT, metavar="TEXT",
            help="System prompt."),
    _option(_TEXT_HEADING, "-n", "--predict", "--n-predict", type=Size(-1), default=-1,
            show_default=True,
            help="Tokens to generate at most; -1: no limit; 0 (complete): read the prompt only."),
    _option(_TEXT_HEADING, "-r", "--reverse-prompt", "--stop", "stop", multiple=True, type=TEXT,
            metavar="TEXT", help="End the text before this string; may be repeated."),
    _option(_TEXT_HEADING, "-e", "--escape/--no-escape", default=False,
            help="Read \\n, \\t, \\\\, \\xHH ... in PROMPT, -sys and -r as what they mean; files "
                 "and stdin stay as they are. [default: no, unlike llama.cpp]"),
)  # fmt: skip

_COMPLETION = "Prompt and output"
_COMPLETION_OPTIONS = (
    _option(_COMPLETION, "-f", "--file", type=_FILE, metavar="FILE",
            help="Read the prompt from a file; -: stdin."),
    _option(_COMPLETION, "--raw", is_flag=True, help="No chat template: continue the prompt."),
    _option(_COMPLETION, "--json", is_flag=True, help="One JSON document, with all figures."),
)  # fmt: skip

_TRACE = "Trace"
_TRACE_OPTIONS = (
    _option(_TRACE, "-o", "--output", type=_FILE, metavar="FILE", required=True,
            help="The page to write."),
    _option(_TRACE, "-n", "--predict", "--n-predict", type=Size(1), default=128,
            show_default=True, help="Tokens to generate at most."),
)  # fmt: skip

_SERVER = "Server"
_SERVER_OPTIONS = (
    _option(_SERVER, "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
            help="Address to listen on; 0.0.0.0: all of this machine."),
    _option(_SERVER, "--port", type=Size(0, 65535), default=8080, show_default=True,
            help="Port to listen on; 0: any free one."),
    _option(_SERVER, "--api-key", multiple=True, metavar="KEY",
            help="Answer only who sends this key; may be repeated."),
    _option(_SERVER, "--api-key-file", type=_FILE, metavar="FILE",
            help="The same, a key on each line."),
    _option(_SERVER, "--cors-origin", multiple=True, metavar="ORIGIN",
            help="Let pages of this origin ask, e.g. http://localhost:3000; may be repeated."),
    _option(_SERVER, "-np", "--parallel", type=Size(1, 256), default=4, show_default=True,
            help="Conversations that are kept, and answered in turns; each has -c tokens."),
    _option(_SERVER, "-cram", "--cache-ram", type=Size(-1), metavar="MIB",
            help="Memory for conversations that make room for others; 0: none, -1: no limit. "
                 "[default: a quarter of what is free, 8192 at most]"),
    _option(_SERVER, "-to", "--timeout", type=Size(1), default=3600, show_default=True,
            metavar="SECONDS", help="What a request may take, the wait included."),
    _option(_SERVER, "-a", "--alias", metavar="NAME",
            help="Name of the model for clients. [default: the file's]"),
    _option(_SERVER, "-n", "--predict", "--n-predict", type=Size(-1), default=-1,
            show_default=True, help="Tokens of a reply at most; -1: what fits."),
    _option(_SERVER, "--max-prompt", type=Size(1), metavar="N",
            help="Tokens of a prompt at most. [default: what fits]"),
    _option(_SERVER, "--max-body", type=Size(1), default=8 << 20, show_default=True,
            metavar="BYTES", help="Bytes of a request at most."),
    _option(_SERVER, "--log-content", is_flag=True,
            help="Let the log show what is asked; otherwise it says nothing of that."),
)  # fmt: skip

_WORK = "The work"
_WORK_OPTIONS = (
    _option(_WORK, "--prompts", type=_FILE, metavar="FILE", required=True,
            help="FILE.jsonl with id, category and turns on each line; "
                 "any other file is one prompt."),
    _option(_WORK, "--category", "categories", multiple=True, metavar="NAME",
            help="Prompts of this category; may be repeated. [default: all]"),
    _option(_WORK, "--each", type=Size(1), help="Prompts of a category. [default: all]"),
    _option(_WORK, "--skip", type=Size(0), default=0, show_default=True,
            help="Prompts of a category to leave out before these."),
    _option(_WORK, "-n", "--predict", "--n-predict", type=Size(1), default=128,
            show_default=True, help="Tokens to generate at most."),
    _option(_WORK, "--temp", "--temperature", "temperatures", multiple=True, type=Number(0.0),
            default=(0.0,), show_default=True, help="May be repeated."),
    _option(_WORK, "--verify", "verifiers", multiple=True,
            type=click.Choice(("match", "residual")), default=("match",), show_default=True,
            help="May be repeated; none and priced always run under match."),
)  # fmt: skip

_BENCH = "What is compared"
_BENCH_OPTIONS = (
    _option(_BENCH, "--policy", "policies", multiple=True, metavar="NAME[:N]",
            default=("none", "chain:2", "chain:4", "chain:8", "dyspec:16", "priced"),
            show_default=True, help="A competitor; may be repeated."),
    _option(_BENCH, "--rounds", type=Size(1), default=1, show_default=True,
            help="Times that everything runs."),
    _option(_BENCH, "--fresh", is_flag=True,
            help="A policy forgets after every run what it has learned; else it keeps it, as in "
                 "a conversation."),
    _option(_BENCH, "--out", type=_FILE, metavar="FILE", required=True,
            help="Finished runs, a line of JSON each; those that are there are not done again."),
)  # fmt: skip
_BENCH_SEED = _option(_SAMPLING, "-s", "--seed", type=Size(0, MAX_SEED), default=0,
                      show_default=True,
                      help="Seed of the first round; each later one has the next.")  # fmt: skip


def model_options(function: F) -> F:
    """Declares the options that say what is loaded, and how."""
    return _declare(
        function, *_MODEL_OPTIONS, *_HUB_OPTIONS, *_CONTEXT_OPTIONS, *_SPECULATION_OPTIONS
    )


def hub_options(function: F) -> F:
    """Declares the options that say how the hub is asked."""
    return _declare(function, *_HUB_OPTIONS)


def generation_options(function: F) -> F:
    """Declares the options of the commands that generate text."""
    return _declare(
        function,
        *_MODEL_OPTIONS,
        *_TEXT_OPTIONS,
        *_CONTEXT_OPTIONS,
        *_SPECULATION_OPTIONS,
        *_SAMPLING_OPTIONS,
        *_HUB_OPTIONS,
    )


def bench_options(function: F) -> F:
    """Declares the options of `bench run`."""
    return _declare(
        function,
        *_MODEL_OPTIONS,
        *_HUB_OPTIONS,
        *_BENCH_OPTIONS,
        *_WORK_OPTIONS,
        *_CONTEXT_OPTIONS,
        _DRAFT_TEMPERATURE,
        _DEVICE_SAMPLING,
        _VERBOSE,
        *_CHAIN_OPTIONS,
        _BENCH_SEED,
    )


def evaluation_options(function: F) -> F:
    """Declares the options of `draft evaluate`."""
    return _declare(
        function,
        _option(_MODEL, "-md", "--model-draft", "--spec-draft-model", "drafts", multiple=True,
                type=_FILE, metavar="FILE", help="A draft to judge; may be repeated."),
        *_TARGET_OPTIONS,
        *_HUB_OPTIONS,
        *_WORK_OPTIONS,
        _option(_BENCH, "--out", type=_FILE, metavar="FILE",
                help="Finished runs; those that are there are not done again. "
                     "[default: in the cache directory]"),
        *_CONTEXT_OPTIONS,
        _DRAFT_TEMPERATURE,
        _DEVICE_SAMPLING,
        _VERBOSE,
        *_CHAIN_OPTIONS,
        _BENCH_SEED,
        click.option("--json", "as_json", is_flag=True,
                     help="One JSON document instead of a table."),
    )  # fmt: skip


def fit_options(function: F) -> F:
    """Declares the options of `bench fit-sequoia`."""
    return _declare(
        function,
        *_MODEL_OPTIONS,
        *_HUB_OPTIONS,
        *_WORK_OPTIONS,
        *_CONTEXT_OPTIONS,
        _DRAFT_TEMPERATURE,
        _DEVICE_SAMPLING,
        _VERBOSE,
        *_CHAIN_OPTIONS,
    )


def trace_options(function: F) -> F:
    """Declares the options of `trace`."""
    return _declare(
        function,
        *_TRACE_OPTIONS,
        *_MODEL_OPTIONS,
        *_CONTEXT_OPTIONS,
        *_SPECULATION_OPTIONS,
        _TEMPERATURE,
        *_CHAIN_OPTIONS,
        _SEED,
        *_HUB_OPTIONS,
    )


def server_options(function: F) -> F:
    """Declares the options of `serve`."""
    return _declare(
        function,
        *_MODEL_OPTIONS,
        *_SERVER_OPTIONS,
        *_CONTEXT_OPTIONS,
        *_SPECULATION_OPTIONS,
        _TEMPERATURE,
        *_CHAIN_OPTIONS,
        *_HUB_OPTIONS,
    )


def completion_options(function: F) -> F:
    """Declares the options of `complete` alone."""
    return _declare(function, *_COMPLETION_OPTIONS)


def _declare(function: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def sampling_params(typed: Mapping[str, Any]) -> SamplingParams:
    """The sampling options as the engine takes them."""
    from dyspec_edge.decode.sampling import SamplingParams

    return SamplingParams(
        temperature=typed["temp"],
        top_k=typed["top_k"],
        top_p=typed["top_p"],
        min_p=typed["min_p"],
        typical=typed["typical"],
        repeat_penalty=typed["repeat_penalty"],
        repeat_last_n=typed["repeat_last_n"],
        frequency_penalty=typed["frequency_penalty"],
        presence_penalty=typed["presence_penalty"],
        dry_multiplier=typed["dry_multiplier"],
        dry_base=typed["dry_base"],
        dry_allowed_length=typed["dry_allowed_length"],
        dry_penalty_last_n=typed["dry_penalty_last_n"],
        logit_bias=tuple(typed["logit_bias"]),
        ignore_eos=typed.get("ignore_eos", False),
        grammar=grammar(typed),
        seed=None if typed.get("seed", -1) == -1 else typed["seed"],
    )


def grammar(typed: Mapping[str, Any]) -> str | None:
    """The GBNF that --grammar, --json-schema or their files say, if one of them is there.

    Raises:
        OptionError: several are given, or what they say cannot be used.
        DyspecError: a file is not UTF-8.
    """
    names = ("grammar", "grammar_file", "json_schema", "json_schema_file")
    given = [(name, typed[name]) for name in names if isinstance(typed.get(name), (str, Path))]
    if not given:
        return None
    spelled = [f"--{name.replace('_', '-')}" for name, _ in given]
    if len(given) > 1:
        raise OptionError(f"{spelled[0]} and {spelled[1]} exclude each other; give one of them")
    text = given[0][1]
    if isinstance(text, Path):
        try:
            with text.open("rb") as file:
                text = read(file, f"the file '{text}'")
        except OSError as error:
            raise OptionError(f"{spelled[0]}: cannot read '{text}': {error.strerror}") from None
    if spelled[0].startswith("--grammar"):
        return str(text)
    from dyspec_edge.text.json_schema import to_gbnf

    try:
        return to_gbnf(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{spelled[0]} is no JSON: {error}") from None


def engine_config(typed: Mapping[str, Any], target: Path, draft: Path | None) -> EngineConfig:
    """The model options as the engine takes them, with the files that they turned out to mean."""
    from dyspec_edge.engine import EngineConfig

    use_mmap, use_mlock = _load_mode(typed)
    return EngineConfig(
        model=target,
        draft=_draft(typed, draft),
        num_ctx=typed["ctx_size"],
        num_ctx_draft=typed["ctx_size_draft"],
        num_conversations=typed.get("parallel", 1),
        num_threads=typed["threads"],
        num_gpu_layers=typed["gpu_layers"],
        num_gpu_layers_draft=typed["gpu_layers_draft"],
        rpc=tuple(filter(None, (typed["rpc"] or "").split(","))),
        require_gpu=typed["require_gpu"],
        flash_attn=typed["flash_attn"],
        cache_type_k=typed["cache_type_k"],
        cache_type_v=typed["cache_type_v"],
        cache_type_k_draft=typed["cache_type_k_draft"],
        cache_type_v_draft=typed["cache_type_v_draft"],
        lora=tuple(typed["lora"]),
        use_mmap=use_mmap,
        use_mlock=use_mlock,
        memory_limit=typed["memory_limit"],
        stream=typed["stream"],
        policy=_policy(typed),
        verify=typed["verify"],
        draft_temperature=typed["draft_temp"],
        device_sampling=typed["device_sampling"],
        chat_template=chat_template(typed["chat_template"]),
        template_kwargs=_template_kwargs(typed),
        verbose=typed["verbose"],
    )


def unescaped(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed, with escapes in its texts replaced if -e asks for it.

    Raises:
        OptionError: an escape makes something that is not UTF-8.
    """
    if not typed["escape"]:
        return dict(typed)
    texts = {name: unescape(typed[name]) for name in ("prompt", "system_prompt") if typed.get(name)}
    return {**typed, **texts, "stop": tuple(unescape(text) for text in typed["stop"])}


def _load_mode(typed: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether weights are mapped, and whether they are locked."""
    if typed["load_mode"] is None:
        return not typed["no_mmap"], typed["mlock"]
    if typed["no_mmap"] or typed["mlock"]:
        raise OptionError("--load-mode says what --no-mmap and --mlock say; leave those out")
    return LOAD_MODES[typed["load_mode"]]


def _draft(typed: Mapping[str, Any], draft: Path | None) -> Path | None:
    """The draft, or what llama.cpp's --spec-type means."""
    from dyspec_edge.load.config import HEAD, NO_DRAFT

    kind = typed.get("spec_type")
    if kind in (None, "none"):
        return draft
    meant = {"draft-mtp": HEAD, "draft-simple": draft}.get(kind)
    if kind.startswith("ngram-"):
        meant = NO_DRAFT
    elif kind == "draft-simple" and draft in (None, HEAD, NO_DRAFT):
        raise OptionError("--spec-type draft-simple needs a draft's file; name one with -md FILE")
    if meant is None:
        raise OptionError(
            f"--spec-type {kind}: that cannot draft here; draft-simple, draft-mtp, ngram-simple "
            "and none can"
        )
    if draft not in (None, meant):
        raise OptionError(f"--spec-type {kind} means -md {meant}; leave the other draft out")
    return meant


def _policy(typed: Mapping[str, Any]) -> str | None:
    """The policy, or what llama.cpp's options mean."""
    if typed.get("spec_type") == "none":
        if typed["policy"] not in (None, "none"):
            raise OptionError(
                "--spec-type none means --policy none; leave out the one or the other"
            )
        return "none"
    size, least = typed.get("spec_draft_n_max"), typed.get("spec_draft_p_min")
    if size is None and least is None:
        return typed["policy"]  # type: ignore[no-any-return]
    if typed["policy"] is not None:
        raise OptionError(
            "--spec-draft-n-max and --spec-draft-p-min mean --policy chain:N:P; leave them out "
            "beside --policy"
        )
    if size is None:
        raise OptionError("--spec-draft-p-min needs --spec-draft-n-max N, the length of the chain")
    return f"chain:{size}" if least is None else f"chain:{size}:{least:g}"


def _template_kwargs(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The template's variables: those of --reasoning, and over them those named one by one."""
    reasoning = typed["reasoning"]
    thinking = {} if reasoning == "auto" else {"enable_thinking": reasoning == "on"}
    return {**thinking, **typed["chat_template_kwargs"]}


def chat_template(value: str | None) -> str | None:
    """The text or name of a template that was given as text, as a built-in name or as a file.

    Raises:
        OptionError: it is neither.
        DyspecError: the file is not UTF-8.
    """
    if value is None or value in BUILT_IN or "{{" in value or "{%" in value:
        return value
    try:
        with Path(value).open("rb") as file:
            return read(file, f"the template file '{value}'")
    except (OSError, ValueError):
        names = ", ".join(sorted(BUILT_IN))
        raise OptionError(
            f"--chat-template '{value}' is neither a file, nor one of {names}, "
            "nor a Jinja template, which has {{ ... }} or {% ... %} in it"
        ) from None
