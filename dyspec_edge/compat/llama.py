"""`Llama`: what programs for llama-cpp-python call, over an engine with trees and a draft.

    from dyspec_edge import Llama          was: from llama_cpp import Llama
    llm = Llama("target.gguf", draft_model="draft.gguf", n_ctx=4096)

Methods, defaults and the dictionaries that they return are those of version 0.3.36.  At
temperature 0 the text is the same; at others each has its own noise.  What is not supported raises
an error that names it.  Differences: `logprobs` need no `logits_all`, tools come back as
`tool_calls`, a chat prompt begins with the model's beginning-of-text token where its template
forgets that, and penalties count the prompt, as in llama.cpp's own programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dyspec_edge.compat import arguments
from dyspec_edge.compat.answers import Writer
from dyspec_edge.compat.arguments import NotSupported
from dyspec_edge.engine import Engine, EngineConfig, Prompt
from dyspec_edge.engine.turn import Stream


class Llama:
    """A model that completes texts and answers chats.

    Args:
        model_path: GGUF file of the target.
        draft_model: GGUF file of a draft, or None: the text's own repetitions are drafted.
        n_gpu_layers: -1 for all, None for as many as fit.
        n_ctx: usable tokens; 0 for the training length.
        seed: of all replies that have none of their own; llama.cpp's default for random ones.
        chat_format: name of a built-in template (text/built_in.py); None for the file's own.
        type_k, type_v: of the cache, by name or ggml's number.
        policy, verify: as in `EngineConfig`.
        options: llama-cpp-python's other options.  Those that only say how passes are cut have no
            effect; others must have their defaults.

    Attributes:
        engine: what does the work; `engine.cancel()` ends a reply.

    Raises:
        NotSupported: an option that has no meaning here.
        DyspecError: as `Engine.load`.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        draft_model: str | Path | None = None,
        n_gpu_layers: int | None = 0,
        n_ctx: int = 512,
        n_threads: int | None = None,
        seed: int = arguments.RANDOM_SEED,
        chat_format: str | None = None,
        lora_path: str | Path | None = None,
        use_mmap: bool = True,
        use_mlock: bool = False,
        flash_attn: bool = False,
        last_n_tokens_size: int = 64,
        type_k: int | str | None = None,
        type_v: int | str | None = None,
        policy: str | None = None,
        verify: str = "auto",
        verbose: bool = True,
        **options: Any,
    ) -> None:
        arguments.refuse(options)
        self.model_path = str(model_path)
        self.chat_format = chat_format
        self.verbose = verbose
        self._seed, self._last_n = seed, last_n_tokens_size
        config = EngineConfig(
            Path(model_path),
            arguments.draft_path(draft_model),
            num_ctx=n_ctx,
            num_threads=n_threads,
            num_gpu_layers=n_gpu_layers,
            flash_attn="on" if flash_attn else "auto",
            cache_type_k=arguments.cache_type(type_k),
            cache_type_v=arguments.cache_type(type_v),
            lora=() if lora_path is None else (Path(lora_path),),
            use_mmap=use_mmap,
            use_mlock=use_mlock,
            policy=policy,
            verify=verify,
            chat_template=arguments.chat_template(chat_format),
            verbose=verbose,
        )
        self.engine = Engine.load(config)

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str, **options: Any) -> Llama:
        """Open a file of a hub repository, fetched if it is not here.

        Args:
            filename: its name there, or a pattern that fits one file.
            options: as for the class.

        Raises:
            OptionError: no file, or more than one, has such a name.
            DownloadError: it cannot be fetched.
        """
        return cls(arguments.fetched(repo_id, filename), **options)

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Any:
        """Complete a text: a dictionary, or with `stream` an iterator over chunks of one.

        Raises:
            NotSupported: an option that has no meaning here; and DyspecError as `Engine.stream`.
        """
        options = dict(locals())
        if echo and logprobs is not None:
            raise NotSupported("echo with logprobs is not supported by dyspec_edge.Llama")
        asked = self._prompt(prompt)
        chunks = self._stream(asked, options, logprobs)
        before = (prompt if isinstance(prompt, str) else self._text(prompt)) if echo else ""
        name, offset = model or self.model_path, 0 if echo else len(prompt)
        writer = Writer(name, asked, self._text, offset, before)
        return writer.completion_chunks(chunks) if stream else writer.completion(chunks)

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: Any = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """Answer messages: a dictionary, or with `stream` an iterator over chunks of one.

        Raises:
            NotSupported: an option that has no meaning here; and DyspecError as `Engine.stream`.
        """
        options = dict(locals())
        offered, choice = arguments.tools_of(functions, function_call, tools, tool_choice)
        use = self.engine.tools(offered, choice) if offered else None
        asked = self.engine.prepare(messages, tools=use)
        schema = arguments.schema_of(response_format)
        chunks = self._stream(asked, options, (top_logprobs or 0) if logprobs else None, schema)
        writer = Writer(model or self.model_path, asked, self._text, len(asked.tokens))
        return writer.chat_chunks(chunks) if stream else writer.chat(chunks)

    def create_chat_completion_openai_v1(self, *args: Any, **options: Any) -> Any:
        """`create_chat_completion` in the types of `openai`, which must be installed."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        found = self.create_chat_completion(*args, **options)
        if isinstance(found, dict):
            return ChatCompletion.model_validate(found)
        return (ChatCompletionChunk.model_validate(chunk) for chunk in found)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The ids of a text in UTF-8."""
        with self.engine.open_model() as model:
            return model.tokenize(
                text.decode("utf-8", "replace"), add_special=add_bos, parse_special=special
            )

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,  # noqa: ARG002 (llama-cpp-python's does nothing)
        special: bool = False,
    ) -> bytes:
        """The bytes of tokens."""
        with self.engine.open_model() as model:
            text = b"".join(model.piece(token, special=special) for token in tokens)
            begins = len(tokens) > 0 and tokens[0] == model.bos
        return text.removeprefix(b" ") if begins else text

    def n_ctx(self) -> int:
        """Usable tokens."""
        return self.engine.num_ctx

    def n_vocab(self) -> int:
        """Ids of the vocabulary."""
        with self.engine.open_model() as model:
            return model.num_vocab

    def token_bos(self) -> int:
        """The id that begins a text, or -1."""
        with self.engine.open_model() as model:
            return model.bos

    def token_eos(self) -> int:
        """The id that ends a text, or -1."""
        with self.engine.open_model() as model:
            return model.eos

    def token_nl(self) -> int:
        """The id of a line's end, or -1."""
        with self.engine.open_model() as model:
            return model.nl

    def set_seed(self, seed: int) -> None:
        """The seed of replies that have none of their own."""
        self._seed = seed

    def reset(self) -> None:
        """Nothing to do: a prompt finds by itself what the cache has of it."""

    def close(self) -> None:
        """Free the models.  Idempotent."""
        self.engine.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name in arguments.METHODS:
            raise NotSupported(f"{name} is not supported by dyspec_edge.Llama")
        raise AttributeError(f"'Llama' object has no attribute '{name}'")

    def _prompt(self, prompt: str | Sequence[int]) -> Prompt:
        if isinstance(prompt, str):
            return self.engine.prepare(prompt, raw=True)
        tokens = tuple(prompt)
        return Prompt(self._text(tokens) or "tokens", tokens, opens_thought=False, is_raw=True)

    def _stream(
        self,
        prompt: Prompt,
        options: Mapping[str, Any],
        num_logprobs: int | None,
        schema: Mapping[str, Any] | None = None,
    ) -> Stream[Any]:
        given = {name: value for name, value in options.items() if name in arguments.REFUSED}
        arguments.refuse(given)
        most = options["max_tokens"]
        seed = arguments.seed_of(options["seed"], self._seed)
        return self.engine.stream(
            prompt,
            sampling=arguments.sampling(options, seed=seed, last_n=self._last_n),
            max_tokens=None if most is None or most <= 0 else most,
            stop=options["stop"],
            json_schema=schema,
            logprobs=num_logprobs,
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return self.detokenize(tokens).decode("utf-8", "ignore")
